//! FNV-1a, 64 bits (Fowler, Noll and Vo): a hash that is the same in every
//! build, on every machine and in every release. It is small and quick, and
//! no protection against somebody who looks for collisions.

/// The hash of these bytes.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    /// From the test vectors of its authors.
    #[test]
    fn it_is_the_published_function() {
        assert_eq!(fnv1a([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }
}
