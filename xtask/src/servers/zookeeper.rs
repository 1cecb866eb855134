//! One ZooKeeper, and an ensemble of three.

use super::topology::{JarFolder, Node, Probe, Program, Topology};

/// Run by hand rather than by its script, so that the process we start is the server itself.
const ZOOKEEPER: Program = Program {
    binary: "java",
    package: "zookeeper",
    elsewhere: "install Java 11 or later and unpack https://zookeeper.apache.org/releases.html, \
                then set ZOOKEEPER_HOME to its folder (the one that holds lib)",
    folders: &[],
    jars: &[
        JarFolder {
            below: Some("ZOOKEEPER_HOME"),
            folder: "lib",
            must_start_with: "zookeeper-",
            class_path: &["*"],
        },
        // Debian's jar finds all the others by its manifest, except the log's.
        JarFolder {
            below: None,
            folder: "/usr/share/java",
            must_start_with: "zookeeper.jar",
            class_path: &["zookeeper.jar", "slf4j-simple.jar"],
        },
    ],
    wheel: None,
    apart: None,
};

/// A member: its name, its configuration, its number, and its ports.
macro_rules! zookeeper_node {
    ($name:literal, $id:literal, $members:expr, $client:literal $(, $other:literal)*) => {
        Node {
            name: $name,
            program: &ZOOKEEPER,
            // A quarter of the machine's memory would be the default.
            prepare: &[],
            args: &[
                "-Xms64m", "-Xmx128m", "-XX:+UseSerialGC",
                // Else a member that missed the first votes may ask again only after many seconds.
                "-Dzookeeper.fastleader.maxNotificationInterval=500",
                "org.apache.zookeeper.server.quorum.QuorumPeerMain", "{dir}/zoo.cfg",
            ],
            files: &[
                ("myid", $id),
                (
                    "zoo.cfg",
                    concat!(
                        "tickTime=500\ninitLimit=20\nsyncLimit=10\ndataDir={dir}\n",
                        "clientPort={+", $client, "}\nclientPortAddress=127.0.0.1\n",
                        // Without this, sessions are held to two ticks at least, twenty at most.
                        "minSessionTimeout=1000\nmaxSessionTimeout=60000\n",
                        "admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n",
                        $members
                    ),
                ),
            ],
            ports: &[$client $(, $other)*],
            up: Probe::Listens,
            not_as_root: false,
        }
    };
}

/// What every member of the three is told about all of them: peers' port, then election port.
macro_rules! members {
    () => {
        "server.1=127.0.0.1:{+220}:{+230}\nserver.2=127.0.0.1:{+221}:{+231}\n\
         server.3=127.0.0.1:{+222}:{+232}\n"
    };
}

/// `zookeeper-single`
pub(super) const SINGLE: Topology = Topology {
    name: "zookeeper-single",
    about: "one ZooKeeper server",
    env: "HOLDLINE_TEST_ZOOKEEPER",
    url: "zk://127.0.0.1:{+200}",
    stages: &[&[zookeeper_node!("single", "1", "", 200)]],
    setup: None,
    ready: &[(200, Probe::ZooKeeper)],
};

/// `zookeeper-three`
pub(super) const THREE: Topology = Topology {
    name: "zookeeper-three",
    about: "a ZooKeeper ensemble of three servers",
    env: "HOLDLINE_TEST_ZOOKEEPER_THREE",
    url: "zk://127.0.0.1:{+210},127.0.0.1:{+211},127.0.0.1:{+212}",
    stages: &[&[
        zookeeper_node!("server-1", "1", members!(), 210, 220, 230),
        zookeeper_node!("server-2", "2", members!(), 211, 221, 231),
        zookeeper_node!("server-3", "3", members!(), 212, 222, 232),
    ]],
    setup: None,
    ready: &[(210, Probe::ZooKeeper), (211, Probe::ZooKeeper), (212, Probe::ZooKeeper)],
};
