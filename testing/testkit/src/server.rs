//! A server: a started node. It can be stopped, killed, and restarted on its data.

use crate::node::{Node, Wrap, expand};
use crate::ports::is_free;
use crate::probe::Probe;
use crate::process::{GONE_WITHIN, Process};
use crate::program::{Found, Program};
use crate::reaper::end_with_us;
use crate::{Outcome, cannot};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// All servers of this project are ready within 3 s on a laptop; CI machines can be slow.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The lifetime of a server. In a process group of its own it outlives the program that started it,
/// and Ctrl-C does not reach it; otherwise it is in the starter's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// It is stopped when the [`Server`] is dropped, or else when this program has ended.
    OfItsOwner,
    /// It keeps running, and is stopped by a later run of a program.
    OfItsOwn,
}

/// A running server. Unless it was started to outlive this program, dropping it stops it.
#[derive(Debug)]
pub struct Server {
    node: Node,
    dir: PathBuf,
    child: Child,
    life: Lifetime,
}

impl Server {
    /// Starts a node, with its data in a new folder in `parent`, and waits until it is up.
    ///
    /// # Errors
    ///
    /// The program is missing, a port is taken, or the server ended or never answered; the message
    /// has the end of its log.
    pub fn start(node: Node, parent: &Path) -> Outcome<Self> {
        check_ports(&node)?;
        let mut server = Self::spawn(node, parent, Lifetime::OfItsOwner)?;
        server.wait()?;
        Ok(server)
    }

    /// Starts a node without waiting.
    pub(crate) fn spawn(node: Node, parent: &Path, life: Lifetime) -> Outcome<Self> {
        let dir = parent.join(&node.name);
        fs::DirBuilder::new().mode(0o700).create(&dir).map_err(|e| cannot("create", &dir, &e))?;
        write_files(&node, &dir)?;
        for (program, args) in &node.before {
            let output = command(program, args, &node, &dir, None)?.output();
            let output = output.map_err(|e| cannot("run", Path::new(program.binary), &e))?;
            if !output.status.success() {
                let said = [output.stdout, output.stderr].concat();
                let said = String::from_utf8_lossy(&said).into_owned();
                let (status, said) = (output.status, last_lines(&said));
                return Err(format!("{} failed ({status}):\n  {said}", program.binary));
            }
        }
        let child = run(&node, &dir, life)?;
        Ok(Self { node, dir, child, life })
    }

    /// Waits until the server answers as it should.
    ///
    /// # Errors
    ///
    /// It ended, or never answered; with the end of its log.
    pub fn wait(&mut self) -> Outcome<()> {
        let (port, up) = self.node.up;
        wait_for(up, port, std::slice::from_mut(self))
    }

    /// Whether the process still runs.
    ///
    /// # Errors
    ///
    /// It ended; with the end of its log.
    pub fn check_that_it_runs(&mut self) -> Outcome<()> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let binary = self.node.program.binary;
                Err(format!("{binary} ended at once ({status}). {}", self.log()))
            }
            _ => Ok(()),
        }
    }

    /// Restarts a killed server on its data, without waiting.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn begin(&mut self) -> Outcome<()> {
        write_files(&self.node, &self.dir)?;
        self.child = run(&self.node, &self.dir, self.life)?;
        Ok(())
    }

    /// Restarts a killed server on its data, and waits until it is up.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn restart(&mut self) -> Outcome<()> {
        self.begin()?;
        self.wait()
    }

    /// Kills the process and its children at once, as a crash does, and waits until all are gone.
    pub fn kill(&mut self) {
        let mut children = Vec::new();
        if self.node.has_children && matches!(self.child.try_wait(), Ok(None)) {
            // Once stopped, it starts no more children, and does not react to their end.
            self.signal(Signal::STOP);
            children = self.children();
        }
        for child in &children {
            let _ = kill_process(child.id(), Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let limit = Instant::now() + GONE_WITHIN;
        while children.iter().any(Process::runs) && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the process and all of its children by its node's signal, or finally by KILL.
    pub fn stop(&mut self) {
        if self.node.stop != Signal::KILL && matches!(self.child.try_wait(), Ok(None)) {
            // A stopped process reacts to no other signal.
            self.signal(self.node.stop);
            self.resume();
            let limit = Instant::now() + GONE_WITHIN;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if self.life == Lifetime::OfItsOwn {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        self.kill();
    }

    /// Sends a signal: STOP and CONT, for example.
    pub fn signal(&self, signal: Signal) {
        // One that has ended by itself needs no signal: the test will see that.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Stops the process with STOP, then its children, and waits until they have stopped.
    ///
    /// # Panics
    ///
    /// If one does not, for 10 s.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        self.stands_still(self.pid());
        for child in self.children() {
            let _ = kill_process(child.id(), Signal::STOP);
            self.stands_still(child.pid.cast_unsigned());
        }
    }

    /// Waits until a process that was sent STOP has stopped, or ended.
    fn stands_still(&self, pid: u32) {
        let stat = format!("/proc/{pid}/stat");
        let runs = |text: String| ![") T ", ") Z ", ") X "].iter().any(|at| text.contains(at));
        let limit = Instant::now() + GONE_WITHIN;
        while fs::read_to_string(&stat).is_ok_and(runs) {
            assert!(Instant::now() < limit, "{} does not stop", self.node.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Continues a stopped process and its children.
    pub fn resume(&self) {
        for child in self.children() {
            let _ = kill_process(child.id(), Signal::CONT);
        }
        self.signal(Signal::CONT);
    }

    /// The processes that it has started, if it is such a server.
    fn children(&self) -> Vec<Process> {
        if !self.node.has_children {
            return Vec::new();
        }
        let own = self.pid();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let children = children.unwrap_or_default();
        children.split_whitespace().filter_map(|pid| Process::find(pid.parse().ok()?)).collect()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process, for identification by another program; `None` if it has ended.
    pub fn process(&self) -> Option<Process> {
        Process::find(self.child.id().cast_signed())
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.node.port()
    }

    /// The folder with all that it writes.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its current description.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The description for its next start.
    pub fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    /// The end of its log, for a message.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.join("log")).unwrap_or_default();
        let end = last_lines(&String::from_utf8_lossy(&log));
        format!("The end of the log of {}:\n  {end}\n", self.node.name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.life == Lifetime::OfItsOwner {
            self.stop();
        }
    }
}

/// Waits for an answer on this port, as long as all of these servers run.
pub(crate) fn wait_for(probe: Probe, port: u16, servers: &mut [Server]) -> Outcome<()> {
    let asked = Instant::now();
    loop {
        let answer = probe.ask(port);
        // Checked after the probe: another program may have answered it.
        servers.iter_mut().try_for_each(Server::check_that_it_runs)?;
        match answer {
            Ok(()) => return Ok(()),
            Err(why) if asked.elapsed() > READY_WITHIN => {
                let logs: String = servers.iter().map(Server::log).collect();
                let seconds = READY_WITHIN.as_secs();
                return Err(format!("it was not ready after {seconds} s. {why} {logs}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Starts a node's process.
fn run(node: &Node, dir: &Path, life: Lifetime) -> Outcome<Child> {
    let log_file = dir.join("log");
    let log = File::options().create(true).append(true).open(&log_file);
    let log = log.map_err(|e| cannot("create", &log_file, &e))?;
    let errors = log.try_clone().map_err(|e| cannot("open", &log_file, &e))?;
    let mut command = command(node.program, &node.args, node, dir, node.wrap)?;
    if life == Lifetime::OfItsOwn {
        command.process_group(0);
    }
    let child = command.stdout(log).stderr(errors).spawn();
    let child = child.map_err(|e| format!("{} could not be started: {e}.", node.program.binary))?;
    if life == Lifetime::OfItsOwner {
        end_with_us(&child)?;
    }
    Ok(child)
}

/// A program that is run in a node's folder, as its user.
fn command(
    program: &Program,
    args: &[String],
    node: &Node,
    dir: &Path,
    wrap: Option<Wrap>,
) -> Outcome<Command> {
    let Found { binary, first_args } = program.find()?;
    let user = user_of(node)?;
    let args = first_args.into_iter().chain(args.iter().map(|arg| expand(arg, dir)));
    let mut command = if let Some(wrap) = wrap.filter(|_| user.is_none()) {
        let words: Vec<OsString> =
            std::iter::once(binary.into()).chain(args.map(OsString::from)).collect();
        wrap(&words)
    } else {
        let mut command = Command::new(binary);
        command.args(args);
        command
    };
    command.envs(node.variables.iter().map(|(name, value)| (name, expand(value, dir))));
    command.current_dir(dir).stdin(Stdio::null());
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// Writes a node's files, and makes its folder writable for its user.
fn write_files(node: &Node, dir: &Path) -> Outcome<()> {
    let mut paths = vec![dir.to_owned()];
    for (name, text) in &node.files {
        let file = dir.join(name);
        fs::write(&file, expand(text, dir)).map_err(|e| cannot("write", &file, &e))?;
        paths.push(file);
    }
    let Some((user, group)) = user_of(node)? else { return Ok(()) };
    for path in paths {
        std::os::unix::fs::chown(&path, Some(user), Some(group))
            .map_err(|e| cannot("change the owner of", &path, &e))?;
    }
    Ok(())
}

/// The ids of the user and its group that a node runs as, if it is not our own.
fn user_of(node: &Node) -> Outcome<Option<(u32, u32)>> {
    let Some(name) = node.user.filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(None);
    };
    let file = Path::new("/etc/passwd");
    let text = fs::read_to_string(file).map_err(|e| cannot("read", file, &e))?;
    let ids = |name: &str| {
        let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2).map(str::parse);
        Some((fields.next()?.ok()?, fields.next()?.ok()?))
    };
    let ids = ids(name).or_else(|| ids("nobody"));
    ids.map(Some).ok_or_else(|| format!("There is no user {name}, and no nobody."))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n  ")
}

/// Checks that no other program uses a port: that would only show as a confusing line in a server's
/// log, or worse: that program would answer our probe.
pub(crate) fn check_ports(node: &Node) -> Outcome<()> {
    for port in &node.ports {
        if !is_free(*port) {
            return Err(format!(
                "port {port} (for {}) is taken by another program, perhaps by the servers of \
                 another checkout. Stop that program (`ss -ltnp 'sport = :{port}'` shows it), or \
                 set HOLDLINE_PORT_BASE to other ports.",
                node.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Folder, free_port};

    const SLEEP: Program = Program::new("sleep", "coreutils", "");
    const SHELL: Program = Program::new("sh", "dash", "");

    fn shell(script: &str) -> Node {
        let no_question = Probe::Custom(|_| Ok(()));
        Node::new("shell", &SHELL, free_port(), no_question).args(["-c", script])
    }

    #[test]
    fn a_server_is_killed_started_again_and_ends_with_its_owner() {
        let folder = Folder::new("server").unwrap();
        let node = Node::new("sleep", &SLEEP, free_port(), Probe::Custom(|_| Ok(()))).args(["60"]);
        let mut server = Server::start(node, folder.path()).unwrap();
        let first = server.process().unwrap();
        server.pause();
        server.kill();
        assert!(!first.runs() && server.check_that_it_runs().is_err());
        server.restart().unwrap();
        let second = server.process().unwrap();
        assert!(second != first && second.runs());
        drop(server);
        assert!(!second.runs());
    }

    #[test]
    fn a_server_that_ends_at_once_tells_what_it_said() {
        let folder = Folder::new("server").unwrap();
        let node = shell("echo what is wrong; exit 3").up(1, Probe::Listens);
        let error = Server::start(node, folder.path()).unwrap_err();
        assert!(error.contains("exit status: 3") && error.contains("what is wrong"), "{error}");
    }

    #[test]
    fn files_variables_and_what_comes_before_are_there_when_it_starts() {
        let folder = Folder::new("server").unwrap();
        let node = shell("cat {dir}/file before; echo $WORD; exec sleep 60")
            .file("file", "in {dir}\n")
            .variable("WORD", "{dir}/word")
            .before(&SHELL, ["-c", "echo once >> before"]);
        let mut server = Server::start(node, folder.path()).unwrap();
        let dir = server.dir().display().to_string();
        let wanted = format!("in {dir}\nonce\n{dir}/word\n");
        let log = || fs::read_to_string(folder.path().join("shell/log")).unwrap();
        while log() != wanted {
            server.check_that_it_runs().unwrap();
        }
        server.kill();
        server.restart().unwrap();
        while log() != format!("{wanted}{wanted}") {
            server.check_that_it_runs().unwrap();
        }
        let failing = shell("true").before(&SHELL, ["-c", "echo no >&2; exit 1"]);
        let elsewhere = Folder::new("server").unwrap();
        let error = Server::start(failing, elsewhere.path()).unwrap_err();
        assert!(error.contains("sh failed (exit status: 1)") && error.contains("no"), "{error}");
    }

    #[test]
    fn a_taken_port_is_told() {
        let folder = Folder::new("server").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().port();
        let node = shell("exec sleep 60").also_listens([taken]);
        let error = Server::start(node, folder.path()).unwrap_err();
        assert!(error.contains(&format!("port {taken} (for shell) is taken")), "{error}");
        drop(listener);
    }

    /// A server with its own stop signal still ends if it does not react to it at once.
    #[test]
    fn the_signal_to_stop_reaches_a_paused_server() {
        let folder = Folder::new("server").unwrap();
        // Not QUIT: a shell cannot trap what is ignored, as that is in the background of a script.
        let script = "trap 'echo ends; exit' USR1; echo set; while :; do sleep 0.01; done";
        let node = shell(script).stops_by(Signal::USR1);
        let mut server = Server::start(node, folder.path()).unwrap();
        while !server.log().contains("set") {
            server.check_that_it_runs().unwrap();
        }
        server.pause();
        server.stop();
        assert!(server.log().contains("ends"), "{}", server.log());
    }
}
