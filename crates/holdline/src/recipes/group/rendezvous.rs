//! Rendezvous hashing: which member owns a key.
//!
//! Every member has a score for every key, and the member with the highest score owns it. So a
//! joining member takes from each of the others only the keys that it now owns, a leaving member
//! gives its keys to all of the others, and no other key moves.
//!
//! The hash is stable, and short enough to implement in any language (all numbers are unsigned
//! 64-bit integers, and wrap around):
//!
//! ```text
//! fnv(bytes): h = 0xcbf29ce484222325; for each byte: h = (h xor byte) * 0x100000001b3
//! mix(h):     h = (h xor (h >> 30)) * 0xbf58476d1ce4e5b9
//!             h = (h xor (h >> 27)) * 0x94d049bb133111eb
//!             h xor (h >> 31)
//! score(member, key) = mix(fnv(member) xor mix(fnv(key)))
//! ```
//!
//! `fnv` is FNV-1a, `mix` the last step of SplitMix64. Of two members with the same score, the one
//! with the lower address, compared byte by byte, owns the key.

use crate::hash::{fnv, mix};

/// The member's part of a score.
pub(super) fn of_member(address: &str) -> u64 {
    fnv(0, address.bytes())
}

/// The key's part of a score.
pub(super) fn of_key(key: &[u8]) -> u64 {
    mix(fnv(0, key.iter().copied()))
}

/// The score of a member for a key.
pub(super) fn score(member: u64, key: u64) -> u64 {
    mix(member ^ key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::group::Members;

    fn group(addresses: &[String]) -> Members {
        Members::of(addresses.iter().map(String::as_str))
    }

    fn addresses(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("10.0.0.{n}:8080")).collect()
    }

    fn keys() -> impl Iterator<Item = String> {
        (0..20_000).map(|n| format!("order-{n}"))
    }

    /// The scores that every implementation must produce.
    #[test]
    fn scores_are_what_they_have_always_been() {
        let score = |member, key: &str| score(of_member(member), of_key(key.as_bytes()));
        assert_eq!(score("a:1", "order-17"), SCORES[0]);
        assert_eq!(score("b:1", "order-17"), SCORES[1]);
        assert_eq!(score("c:1", "order-17"), SCORES[2]);
    }

    const SCORES: [u64; 3] = [0x29d5_b1a7_7b14_0a6e, 0xa08f_e771_8e87_a080, 0xe7a5_35c8_8c10_f34e];

    #[test]
    fn keys_are_spread_evenly() {
        for count in [2, 3, 10, 50] {
            let (names, mut shares) = (addresses(count), std::collections::HashMap::new());
            let members = group(&names);
            for key in keys() {
                let owner = members.owner(&key).expect("there are members").to_owned();
                *shares.entry(owner).or_insert(0_u32) += 1;
            }
            // A binomial spread: five standard deviations are never reached by a good hash.
            let even = 20_000.0 / count as f64;
            let most = 5.0 * (even * (1.0 - 1.0 / count as f64)).sqrt();
            for name in &names {
                let share = f64::from(shares.get(name).copied().unwrap_or_default());
                assert!((share - even).abs() < most, "{name} has {share} of {even} ± {most}");
            }
        }
    }

    #[test]
    fn only_what_must_move_moves() {
        for count in [1, 2, 5, 20] {
            let names = addresses(count + 1);
            let (less, more) = (group(&names[..count]), group(&names));
            let newcomer = names[count].as_str();
            for key in keys() {
                let (before, after) = (less.owner(&key), more.owner(&key));
                assert!(after == before || after == Some(newcomer), "{key}: {before:?} {after:?}");
            }
        }
    }

    #[test]
    fn what_a_member_leaves_goes_to_all_of_the_others() {
        let names = addresses(10);
        let (more, less) = (group(&names), group(&names[1..]));
        let mut heirs = std::collections::BTreeMap::new();
        for key in keys().filter(|key| more.owner(key) == Some(names[0].as_str())) {
            let heir = less.owner(&key).expect("there are members").to_owned();
            *heirs.entry(heir).or_insert(0_u32) += 1;
        }
        assert_eq!(heirs.len(), 9, "{heirs:?}");
        assert!(heirs.values().all(|share| (130..330).contains(share)), "{heirs:?}");
    }

    #[test]
    fn the_order_in_which_members_are_seen_does_not_matter() {
        let mut names = addresses(7);
        let members = group(&names);
        names.reverse();
        let others = group(&names);
        assert!(keys().all(|key| members.owner(&key) == others.owner(&key)));
    }
}
