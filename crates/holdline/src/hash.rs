//! Stable hashes, which do not change with the version of this program or of Rust.

/// 64-bit FNV-1a. Each seed gives a different hash; 0 gives the standard one.
pub(crate) fn fnv(seed: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325 ^ seed, step)
}

/// A 128-bit id for a value of another program; ids differ in their first digits, too.
#[cfg(any(feature = "etcd", feature = "zookeeper", feature = "postgres", feature = "mysql"))]
pub(crate) fn wide(bytes: &[&[u8]]) -> u128 {
    let half = |seed| u128::from(mix(fnv(seed, bytes.iter().copied().flatten().copied())));
    half(0) << 64 | half(1)
}

/// The last step of SplitMix64, which spreads differences over all bits of the hash.
pub(crate) fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_other_programs() {
        assert_eq!(fnv(0, []), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(0, *b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    }
}
