//! A node: the description of one server process, from which it can be started repeatedly.

use crate::Probe;
use crate::program::Program;
use rustix::process::Signal;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Makes the command for a command line, whose first word is the program: for example, so that it
/// ends with this process.
pub type Wrap = fn(&[OsString]) -> Command;

/// The description of one server process. In arguments, variables and files, `{dir}` stands for the
/// node's own folder.
///
/// ```
/// use holdline_testkit::{Node, Probe, Program, free_port};
///
/// const NC: Program = Program::new("nc", "netcat-openbsd", "brew install netcat");
/// let port = free_port();
/// let args = ["-l", "-k", &port.to_string()];
/// let node = Node::new("listener", &NC, port, Probe::Listens).args(args);
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) name: String,
    pub(crate) program: &'static Program,
    pub(crate) args: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) files: Vec<(String, String)>,
    pub(crate) before: Vec<(&'static Program, Vec<String>)>,
    pub(crate) ports: Vec<u16>,
    pub(crate) up: (u16, Probe),
    pub(crate) user: Option<&'static str>,
    pub(crate) stop: Signal,
    pub(crate) wrap: Option<Wrap>,
    pub(crate) has_children: bool,
}

impl Node {
    /// Describes a process of this program. It listens on `port`, where `up` checks whether it is
    /// up. Its folder has the node's name.
    pub fn new(name: impl Into<String>, program: &'static Program, port: u16, up: Probe) -> Self {
        Self {
            name: name.into(),
            program,
            args: Vec::new(),
            variables: Vec::new(),
            files: Vec::new(),
            before: Vec::new(),
            ports: vec![port],
            up: (port, up),
            user: None,
            stop: Signal::KILL,
            wrap: None,
            has_children: false,
        }
    }

    /// Uses another program: another version of the server.
    pub fn with_program(mut self, program: &'static Program) -> Self {
        self.program = program;
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable.
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a file, which is written into the node's folder before each start.
    pub fn file(mut self, name: &str, text: impl Into<String>) -> Self {
        self.files.push((name.to_owned(), text.into()));
        self
    }

    /// Adds a program that is run to completion in the node's folder, as the node's user, before
    /// its first start: `initdb`, for example.
    pub fn before(
        mut self,
        program: &'static Program,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.before.push((program, args.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds ports that the process also listens on: they must be free.
    pub fn also_listens(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.ports.extend(ports);
        self
    }

    /// Uses another probe, or another port, to check whether the process is up.
    pub fn up(mut self, port: u16, probe: Probe) -> Self {
        self.up = (port, probe);
        self
    }

    /// If we are root, runs the process as this user, or as `nobody` if that user does not exist:
    /// for servers that refuse to run as root. The node's folder belongs to that user.
    pub fn user(mut self, name: &'static str) -> Self {
        self.user = Some(name);
        self
    }

    /// Sets the signal that ends the process and all its children, without waiting for clients.
    /// Default: KILL. A server with child processes needs another, such as PostgreSQL's QUIT.
    pub fn stops_by(mut self, signal: Signal) -> Self {
        self.stop = signal;
        self
    }

    /// Runs the process by a wrapped command, unless it runs as another user, who may not be
    /// allowed to.
    pub fn run_by(mut self, wrap: Wrap) -> Self {
        self.wrap = Some(wrap);
        self
    }

    /// Declares that the process starts children, for example one for each connection: they are
    /// killed, paused and resumed with it.
    pub fn with_children(mut self) -> Self {
        self.has_children = true;
        self
    }

    /// The text of a file that it has.
    pub(crate) fn text(&self, name: &str) -> &str {
        let file = self.files.iter().find(|(file, _)| file == name);
        file.map_or("", |(_, text)| text)
    }

    /// Changes the text of a file that it has, for the next start.
    pub(crate) fn set_text(&mut self, name: &str, text: String) {
        self.files.retain(|(file, _)| file != name);
        self.files.push((name.to_owned(), text));
    }

    /// Its name, which is also that of its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it runs.
    pub fn program(&self) -> &'static Program {
        self.program
    }

    /// All programs that it needs.
    pub fn programs(&self) -> impl Iterator<Item = &'static Program> {
        std::iter::once(self.program).chain(self.before.iter().map(|(program, _)| *program))
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// All ports that it listens on.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }
}

/// `text` with the folder in place of `{dir}`.
pub(crate) fn expand(text: &str, dir: &Path) -> String {
    text.replace("{dir}", &dir.to_string_lossy())
}
