//! CRC-32C (Castagnoli), eight bytes at a time.
//!
//! It finds every burst of up to 32 damaged bits and every odd number of
//! them. The tables are computed by the compiler; a driver on a processor
//! with an instruction for it may use that, the numbers are the same.

const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut row = 1;
    while row < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[row - 1][byte];
            tables[row][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        row += 1;
    }
    tables
}

/// A checksum in the making.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Of nothing.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// Of `bytes` too.
    #[must_use]
    pub fn and(self, bytes: &[u8]) -> Self {
        let mut crc = self.0;
        let mut eights = bytes.chunks_exact(8);
        for eight in &mut eights {
            let low = u32::from_le_bytes([eight[0], eight[1], eight[2], eight[3]]) ^ crc;
            crc = TABLES[7][(low & 0xff) as usize]
                ^ TABLES[6][(low >> 8 & 0xff) as usize]
                ^ TABLES[5][(low >> 16 & 0xff) as usize]
                ^ TABLES[4][(low >> 24) as usize]
                ^ TABLES[3][usize::from(eight[4])]
                ^ TABLES[2][usize::from(eight[5])]
                ^ TABLES[1][usize::from(eight[6])]
                ^ TABLES[0][usize::from(eight[7])];
        }
        for byte in eights.remainder() {
            crc = (crc >> 8) ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xff) as usize];
        }
        Self(crc)
    }

    /// The checksum.
    pub const fn value(self) -> u32 {
        !self.0
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    Crc32c::new().and(bytes).value()
}

/// The checksum of what had the checksum `so_far` (0 for nothing) and `bytes`
/// behind it.
pub fn crc32c_append(so_far: u32, bytes: &[u8]) -> u32 {
    Crc32c(!so_far).and(bytes).value()
}
