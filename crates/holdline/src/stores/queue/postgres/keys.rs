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

/// The mapping from names to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyScheme {
    /// This library's own.
    Native,
    /// The name is the number.
    Number,
    /// The name is two numbers separated by a comma.
    Pair,
    /// Rails migrations; the name is the database's.
    Rails,
    /// The Ruby gem `with_advisory_lock`.
    WithAdvisoryLock,
    /// golang-migrate; the name is `schema/table/database`.
    GolangMigrate,
    /// sqlx's `PgAdvisoryLock::new`.
    Sqlx,
    /// sqlx migrations; the name is the database's.
    SqlxMigrate,
    /// Symfony's Lock component.
    Symfony,
    /// madelson's DistributedLock for .NET, hashing allowed.
    Madelson,
}

impl KeyScheme {
    /// The scheme of this name in a URL.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "native" => KeyScheme::Native,
            "number" => KeyScheme::Number,
            "pair" => KeyScheme::Pair,
            "rails" => KeyScheme::Rails,
            "with_advisory_lock" => KeyScheme::WithAdvisoryLock,
            "golang-migrate" => KeyScheme::GolangMigrate,
            "sqlx" => KeyScheme::Sqlx,
            "sqlx-migrate" => KeyScheme::SqlxMigrate,
            "symfony" => KeyScheme::Symfony,
            "madelson" => KeyScheme::Madelson,
            _ => return None,
        })
    }

    /// The key of a name; `None` if the scheme has none for it.
    pub(super) fn key(self, name: &str) -> Option<Key> {
        let crc = || i64::from(crc32(name.as_bytes()));
        Some(match self {
            KeyScheme::Native => Key::Number(i64::from_be_bytes(first(&native(name)))),
            KeyScheme::Number => Key::Number(name.parse().ok()?),
            KeyScheme::Pair => {
                let (high, low) = name.split_once(',')?;
                Key::Pair(high.trim().parse().ok()?, low.trim().parse().ok()?)
            }
            KeyScheme::Rails => Key::Number(2_053_462_845 * crc()),
            KeyScheme::WithAdvisoryLock => {
                Key::Pair((crc32(name.as_bytes()) & 0x7fff_ffff).cast_signed(), 0)
            }
            KeyScheme::GolangMigrate => {
                let sum = crc32(name.replace('/', "\0").as_bytes());
                Key::Number(i64::from(sum.wrapping_mul(1_486_364_155)))
            }
            KeyScheme::Sqlx => Key::Number(sqlx(name)),
            KeyScheme::SqlxMigrate => Key::Number(0x3d32_ad9e * crc()),
            KeyScheme::Symfony => Key::Number(crc()),
            KeyScheme::Madelson => madelson(name),
        })
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

/// The checksum of zip and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let add = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)))
    };
    !bytes.iter().fold(!0, add)
}

#[cfg(test)]
mod tests {
    use super::KeyScheme::*;
    use super::*;

    /// Most were computed by the libraries themselves, or are in their documentation and tests.
    #[test]
    fn keys_are_those_of_the_other_libraries() {
        let long = "漢".repeat(18);
        let vectors: [(KeyScheme, &str, Key); 17] = [
            (Number, "-7", Key::Number(-7)),
            (Pair, "1, -2", Key::Pair(1, -2)),
            (Rails, "myapp_production", Key::Number(8_572_362_244_439_197_575)),
            (Rails, "postgres", Key::Number(737_815_420_147_457_505)),
            (WithAdvisoryLock, "my_lock", Key::Pair(1_202_238_042, 0)),
            (GolangMigrate, "database_name", Key::Number(1_764_327_054)),
            (Sqlx, "my first Postgres advisory lock!", Key::Number(-5_560_419_505_042_474_287)),
            (SqlxMigrate, "postgres", Key::Number(368_907_709_894_077_238)),
            (Symfony, "my_lock", Key::Number(1_202_238_042)),
            (Madelson, "MyLock", Key::Pair(-1_679_399_172, 2_061_500_415)),
            (Madelson, "", Key::Pair(2_147_483_647, -1)),
            (Madelson, "a", Key::Pair(-1_023_410_177, -1)),
            (Madelson, "0000000000000001", Key::Number(1)),
            (Madelson, "00000001,ffffffff", Key::Pair(1, -1)),
            (Madelson, "some very long name", Key::Number(1_765_484_347_666_752_899)),
            (Madelson, &long, Key::Number(-5_707_277_204_051_710_361)),
            // This library's own: SHA-256 of a text that begins with "holdline lock 1".
            (Native, "x", Key::Number(i64::from_be_bytes(first(&native("x"))))),
        ];
        for (scheme, name, key) in vectors {
            assert_eq!(scheme.key(name), Some(key), "{scheme:?} of {name:?}");
        }
    }

    #[test]
    fn what_is_no_number_has_no_key() {
        for (scheme, name) in [(Number, "x"), (Number, "9223372036854775808"), (Pair, "1")] {
            assert_eq!(scheme.key(name), None, "{name:?}");
        }
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
