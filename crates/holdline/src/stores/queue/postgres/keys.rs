//! The keys of advisory locks: how a lock's name becomes a number, in this library and in others
//! that share locks with it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt;

/// The key of an advisory lock. The server keeps numbers and pairs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Number(i64),
    Pair(i32, i32),
}

/// The arguments of the server's functions.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Number(number) => write!(f, "{number}"),
            Key::Pair(high, low) => write!(f, "{high}, {low}"),
        }
    }
}

/// A mapping from names to keys: its index in [`SCHEMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyScheme(usize);

/// The key of a name, if there is one for it.
type KeyOf = fn(&str) -> Option<Key>;

/// The mappings, by their names in a URL.
const SCHEMES: [(&str, KeyOf); 10] = [
    // This library's own.
    ("native", |name| Some(Key::Number(i64::from_be_bytes(first(&native(name)))))),
    // The name is the number, or two numbers separated by a comma.
    ("number", |name| Some(Key::Number(name.parse().ok()?))),
    ("pair", |name| {
        let (high, low) = name.split_once(',')?;
        Some(Key::Pair(high.trim().parse().ok()?, low.trim().parse().ok()?))
    }),
    // Rails migrations; the name is the database's.
    ("rails", |name| Some(Key::Number(2_053_462_845 * crc32(name)))),
    // The Ruby gem.
    ("with_advisory_lock", |name| Some(Key::Pair((crc32(name) & 0x7fff_ffff) as i32, 0))),
    // The name is `schema/table/database`.
    ("golang-migrate", |name| {
        let crc = crc32(&name.replace('/', "\0"));
        Some(Key::Number((crc * 1_486_364_155) & 0xffff_ffff))
    }),
    // `PgAdvisoryLock::new`, and sqlx' migrations; the name of these is the database's.
    ("sqlx", |name| Some(Key::Number(sqlx(name)))),
    ("sqlx-migrate", |name| Some(Key::Number(0x3d32_ad9e * crc32(name)))),
    // Symfony's Lock component.
    ("symfony", |name| Some(Key::Number(crc32(name)))),
    // DistributedLock for .NET, hashing allowed.
    ("madelson", |name| Some(madelson(name))),
];

impl KeyScheme {
    pub(super) const NATIVE: KeyScheme = KeyScheme(0);

    /// The scheme of this name in a URL.
    pub(super) fn named(name: &str) -> Option<Self> {
        SCHEMES.iter().position(|(known, _)| *known == name).map(KeyScheme)
    }

    /// The key of a name, if the scheme has one for it.
    pub(super) fn key(self, name: &str) -> Option<Key> {
        (SCHEMES[self.0].1)(name)
    }
}

/// A hash of the name. Any part of it may be used.
pub(super) fn native(name: &str) -> [u8; 32] {
    Sha256::new().chain_update(b"holdline lock 1\0").chain_update(name).finalize().into()
}

fn first(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|at| bytes[at])
}

/// The first eight bytes of HKDF with SHA-256.
fn sqlx(name: &str) -> i64 {
    let hmac = |key: &[u8], text: &[u8]| {
        let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("every length will do");
        hmac.update(text);
        hmac.finalize().into_bytes()
    };
    let secret = hmac(&[0; 32], name.as_bytes());
    let okm = hmac(&secret, b"SQLx (Rust) Postgres advisory lock\x01");
    i64::from_le_bytes(first(&okm))
}

/// Up to nine ASCII characters are packed as bits; 16 hexadecimal digits are the number, 8 and 8
/// with a comma the pair; everything else is hashed.
fn madelson(name: &str) -> Key {
    let half = |bits: u64| (bits as u32).cast_signed();
    let pair = |bits: u64| Key::Pair(half(bits >> 32), half(bits));
    if name.len() <= 9 && name.is_ascii() {
        let bits = name.bytes().fold(0, |bits, byte| bits << 7 | u64::from(byte));
        let rest = 64 - 7 * name.len();
        // A zero, then ones.
        return pair(bits.checked_shl(rest as u32).unwrap_or(0) | ((1 << (rest - 1)) - 1));
    }
    let hexadecimal = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    if name.len() == 16
        && let Some(number) = hexadecimal(name)
    {
        return Key::Number(number.cast_signed());
    }
    if name.len() == 17
        && let Some((high, low)) = name.split_once(',')
        && high.len() == 8
        && let (Some(high), Some(low)) = (hexadecimal(high), hexadecimal(low))
    {
        return pair(high << 32 | low);
    }
    let digest = sha1_smol::Sha1::from(name).digest().bytes();
    Key::Number(i64::from_le_bytes(first(&digest)))
}

/// The checksum of zip and Ethernet, of 32 bits.
fn crc32(name: &str) -> i64 {
    let add = |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)))
    };
    i64::from(!name.bytes().fold(!0, add))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(scheme: &str, name: &str) -> Option<Key> {
        KeyScheme::named(scheme).expect("it is known").key(name)
    }

    /// Most were computed by the libraries themselves, or are in their documentation and tests.
    #[test]
    fn keys_are_those_of_the_other_libraries() {
        let long = "漢".repeat(18);
        let vectors: [(&str, &str, Key); 17] = [
            ("number", "-7", Key::Number(-7)),
            ("pair", "1, -2", Key::Pair(1, -2)),
            ("rails", "myapp_production", Key::Number(8_572_362_244_439_197_575)),
            ("rails", "postgres", Key::Number(737_815_420_147_457_505)),
            ("with_advisory_lock", "my_lock", Key::Pair(1_202_238_042, 0)),
            ("golang-migrate", "database_name", Key::Number(1_764_327_054)),
            ("sqlx", "my first Postgres advisory lock!", Key::Number(-5_560_419_505_042_474_287)),
            ("sqlx-migrate", "postgres", Key::Number(368_907_709_894_077_238)),
            ("symfony", "my_lock", Key::Number(1_202_238_042)),
            ("madelson", "MyLock", Key::Pair(-1_679_399_172, 2_061_500_415)),
            ("madelson", "", Key::Pair(2_147_483_647, -1)),
            ("madelson", "a", Key::Pair(-1_023_410_177, -1)),
            ("madelson", "0000000000000001", Key::Number(1)),
            ("madelson", "00000001,ffffffff", Key::Pair(1, -1)),
            ("madelson", "some very long name", Key::Number(1_765_484_347_666_752_899)),
            ("madelson", &long, Key::Number(-5_707_277_204_051_710_361)),
            // This library's own: SHA-256 of a text that begins with "holdline lock 1".
            ("native", "x", Key::Number(i64::from_be_bytes(first(&native("x"))))),
        ];
        for (scheme, name, key) in vectors {
            assert_eq!(key_of(scheme, name), Some(key), "{scheme} of {name:?}");
        }
    }

    #[test]
    fn what_is_no_number_has_no_key() {
        for (scheme, name) in [("number", "x"), ("number", "9223372036854775808"), ("pair", "1")] {
            assert_eq!(key_of(scheme, name), None, "{name:?}");
        }
        assert_eq!(crc32("123456789"), 0xcbf4_3926);
    }
}
