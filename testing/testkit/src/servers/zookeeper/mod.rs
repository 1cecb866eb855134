//! ZooKeeper: one server, an ensemble of three, and private ensembles for tests.

#[cfg(feature = "links")]
mod network;
mod private;

#[cfg(feature = "zookeeper")]
pub use private::raw;
pub use private::{Servers, start, start_each, start_with};
#[cfg(feature = "links")]
pub use private::{start_apart, start_with_island};

use super::hosts;
use crate::probe::talk;
use crate::{Deployment, JarFolder, Node, OtherRelease, Probe, Program, Topology};

/// The server, run without its script, so that the started process is the server itself.
pub const ZOOKEEPER: Program =
    Program { jars: &[UNPACKED, installed(None)], ..Program::new("java", "zookeeper", ELSEWHERE) };

/// The same of a newer version, for ensembles: those of 3.8.0 lose data in elections, or servers
/// get data of their own (ZOOKEEPER-4394, 4785).
pub const NEWER: Program = Program {
    jars: &[
        UNPACKED,
        installed(Some(&OtherRelease {
            suite: "unstable",
            package: "libzookeeper-java",
            binary: "usr/share/java/zookeeper.jar",
            other: None,
            // The second's manifest names an installed version of the first.
            args: &[
                "{files}/usr/share/java/zookeeper-jute.jar",
                "{files}/usr/share/java/zookeeper.jar",
            ],
            whole: false,
        })),
    ],
    ..ZOOKEEPER
};

const ELSEWHERE: &str = "install Java 11 or later and unpack \
                         https://zookeeper.apache.org/releases.html, then set ZOOKEEPER_HOME to \
                         its folder (the one that holds lib)";

const UNPACKED: JarFolder = JarFolder {
    below: Some("ZOOKEEPER_HOME"),
    folder: "lib",
    must_start_with: "zookeeper-",
    class_path: &["*"],
    newer: None,
};

/// Debian's jars. The manifest of the first names all others, except for logging and three for TLS.
const fn installed(newer: Option<&'static OtherRelease>) -> JarFolder {
    JarFolder {
        below: None,
        folder: "/usr/share/java",
        must_start_with: "zookeeper.jar",
        class_path: &[
            "zookeeper.jar",
            "slf4j-simple.jar",
            "netty-codec.jar",
            "netty-resolver.jar",
            "netty-transport-native-unix-common.jar",
        ],
        newer,
    }
}

/// `zookeeper-single`
pub const SINGLE: Topology = Topology {
    name: "zookeeper-single",
    about: "one ZooKeeper server",
    env: "HOLDLINE_TEST_ZOOKEEPER",
    ports: 200..203,
    build: |ports| deployment(ports, &Settings::default()),
};

/// `zookeeper-three`
pub const THREE: Topology = Topology {
    name: "zookeeper-three",
    about: "a ZooKeeper ensemble of three servers of a newer version",
    env: "HOLDLINE_TEST_ZOOKEEPER_THREE",
    ports: 210..219,
    build: |ports| deployment(ports, &Settings::default()),
};

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Arguments of Java, before the class. By default, Java would use a quarter of the memory.
    pub java: Vec<String>,
    /// Lines of configuration. Of two with the same name, the later one counts.
    pub lines: String,
}

impl Default for Settings {
    fn default() -> Self {
        let java = [
            "-Xms32m",
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            // Otherwise a member that missed the first votes may ask again only after many seconds.
            "-Dzookeeper.fastleader.maxNotificationInterval=500",
        ];
        Settings {
            java: java.map(str::to_owned).to_vec(),
            // Without the first line, session timeouts are limited to 2 to 20 ticks.
            lines: "minSessionTimeout=1000\nmaxSessionTimeout=60000\n\
                    tickTime=500\ninitLimit=20\nsyncLimit=10\n"
                .to_owned(),
        }
    }
}

/// One server for each triple of ports: for clients, for data of other members, and for elections.
pub fn deployment(ports: &[u16], settings: &Settings) -> Deployment {
    let (ports, _) = ports.as_chunks::<3>();
    let nodes = (0..ports.len()).map(|at| member(at, ports[at], ports, settings)).collect();
    of(ports, nodes)
}

fn of(ports: &[[u16; 3]], nodes: Vec<Node>) -> Deployment {
    let leads = |port| talk(port, "srvr").is_ok_and(|text| text.contains("Mode: leader"));
    Deployment::new(url(ports), nodes).leads(leads)
}

/// The store's URL.
fn url(ports: &[[u16; 3]]) -> String {
    let clients: Vec<u16> = ports.iter().map(|[client, _, _]| *client).collect();
    format!("zookeeper://{}", hosts(&clients).join(","))
}

/// The configuration file of a server.
const CONFIGURATION: &str = "zoo.cfg";

/// A server with its own ports. `seen` are the ports at which it reaches all servers, itself
/// included: their own ports, or those of proxies.
fn member(at: usize, ports: [u16; 3], seen: &[[u16; 3]], settings: &Settings) -> Node {
    let client = ports[0];
    let alone = seen.len() == 1;
    let others = seen.iter().enumerate().filter(|_| !alone).map(|(at, [_, data, election])| {
        format!("server.{}=127.0.0.1:{data}:{election}\n", at + 1)
    });
    let others: String = others.collect();
    let lines = &settings.lines;
    let program = if alone { &ZOOKEEPER } else { &NEWER };
    Node::new(format!("server-{}", at + 1), program, client, Probe::ZooKeeper)
        .also_listens(ports[1..].iter().copied().filter(|_| !alone))
        .args(&settings.java)
        .args([
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            &format!("{{dir}}/{CONFIGURATION}"),
        ])
        .file("myid", (at + 1).to_string())
        .file(
            CONFIGURATION,
            format!(
                "dataDir={{dir}}\nclientPort={client}\nclientPortAddress=127.0.0.1\n\
                 admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n\
                 {lines}\n{others}"
            ),
        )
}
