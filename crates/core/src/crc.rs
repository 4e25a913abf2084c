//! CRC-32C (Castagnoli), sixteen bytes at a time: sixteen look-ups that wait
//! for nothing but the four that need the sum so far.
//!
//! It finds every burst of up to 32 damaged bits and every odd number of
//! them. The tables are computed by the compiler; a driver on a processor
//! with an instruction for it may use that, the numbers are the same.

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// How many bytes at a time.
const STEP: usize = 16;

static TABLES: [[u32; 256]; STEP] = tables();

const fn tables() -> [[u32; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
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
    while row < STEP {
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
        let (steps, rest) = bytes.as_chunks::<STEP>();
        let crc = steps.iter().fold(self.0, |crc, step| {
            let [first, second, third, fourth] = crc.to_le_bytes();
            let mut bytes = *step;
            bytes[0] ^= first;
            bytes[1] ^= second;
            bytes[2] ^= third;
            bytes[3] ^= fourth;
            // The last byte is the one that nothing is shifted past.
            let rows = TABLES.iter().rev();
            rows.zip(bytes)
                .fold(0, |sum, (row, byte)| sum ^ row[usize::from(byte)])
        });
        let crc = rest.iter().fold(crc, |crc, byte| {
            (crc >> 8) ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xff) as usize]
        });
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

/// CRC-32C of more bytes, going on from the sum of those before them; from 0
/// at the beginning. [`crc32c_append`] is one; a driver may bring its own that
/// uses the processor's instruction.
pub type Checksum = fn(u32, &[u8]) -> u32;

/// The checksum of what had the checksum `so_far` (0 for nothing) and `bytes`
/// behind it.
pub fn crc32c_append(so_far: u32, bytes: &[u8]) -> u32 {
    Crc32c(!so_far).and(bytes).value()
}
