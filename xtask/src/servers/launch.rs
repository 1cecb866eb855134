//! Starts a topology: folders and files, processes, waiting until all of it serves.

use super::install;
use super::state::{Running, cannot};
use super::topology::{CLUSTER_BUS, Node, Ports, Probe, Program, Topology};
use crate::Outcome;
use rustix::process::geteuid;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// All servers of this project are ready within 3 s on a laptop; CI machines can be slow.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The user and the group `nobody`, as all Linux distributions number them.
const NOBODY: u32 = 65_534;

/// etcd sets 64 MB aside for its log, three times, and then some.
const ROOM: u64 = 1 << 30;

/// Starts all nodes, and returns when they serve. If anything fails, nothing is left behind.
pub(super) fn start(topology: &'static Topology, ports: Ports) -> Outcome<Running> {
    for program in topology.programs() {
        install::find(program).map_err(|e| format!("{}: {e}", topology.name))?;
    }
    for node in topology.nodes() {
        check_ports(topology, node, ports)?;
    }
    let running = Running {
        name: topology.name.to_owned(),
        root: crate::workspace::root(),
        base: ports.at(0),
        dir: new_folder(topology.name)?,
        url: topology.address(ports),
        processes: Vec::new(),
        ready: false,
    };
    let mut start = Start { topology, ports, running, children: Vec::new() };
    let result = start.run();
    let Start { running, .. } = start;
    match result {
        Ok(()) => Ok(running),
        Err(message) => {
            running.stop()?;
            Err(format!("{}: {message}", topology.name))
        }
    }
}

/// A start under way.
struct Start {
    topology: &'static Topology,
    ports: Ports,
    running: Running,
    children: Vec<(&'static Node, Child)>,
}

impl Start {
    fn run(&mut self) -> Outcome<()> {
        self.running.save()?;
        for stage in self.topology.stages {
            for node in *stage {
                self.spawn(node)?;
            }
            for node in *stage {
                self.wait_for(node.up, node.ports[0])?;
            }
        }
        if let Some(setup) = self.topology.setup {
            setup(self.ports)?;
        }
        for (port, probe) in self.topology.ready {
            self.wait_for(*probe, *port)?;
        }
        self.running.ready = true;
        self.running.save()
    }

    fn spawn(&mut self, node: &'static Node) -> Outcome<()> {
        let dir = self.running.dir.join(node.name);
        fs::create_dir(&dir).map_err(|e| cannot("create", &dir, &e))?;
        for (name, text) in node.files {
            let file = dir.join(name);
            fs::write(&file, self.ports.expand(text, &dir))
                .map_err(|e| cannot("write", &file, &e))?;
        }
        if node.not_as_root && geteuid().is_root() {
            hand_over(&self.running.dir, &dir)?;
        }
        for step in node.prepare {
            let mut child = self.run_program(node, step.program, step.args)?;
            let status = child.wait().map_err(|e| format!("{}: {e}.", step.program.binary))?;
            if !status.success() {
                let log = self.log_of(node);
                return Err(format!("{} failed ({status}). {log}", step.program.binary));
            }
        }
        let child = self.run_program(node, node.program, node.args)?;
        let pid = child.id().cast_signed();
        self.children.push((node, child));
        // If it has ended already, waiting for it will say so.
        self.running.processes.extend(super::process::Process::find(pid));
        self.running.save()
    }

    /// Starts a program in the node's folder; what it prints is added to the node's log.
    fn run_program(&self, node: &Node, program: &Program, args: &[&str]) -> Outcome<Child> {
        let dir = self.running.dir.join(node.name);
        let log_file = dir.join("log");
        let log = File::options().create(true).append(true).open(&log_file);
        let log = log.map_err(|e| cannot("create", &log_file, &e))?;
        let errors = log.try_clone().map_err(|e| cannot("open", &log_file, &e))?;
        let found = install::find(program)?;
        let mut command = Command::new(&found.binary);
        command
            .args(found.first_args)
            .args(args.iter().map(|arg| self.ports.expand(arg, &dir)))
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // Its own group, so that Ctrl-C on our terminal is not meant for it.
            .process_group(0);
        if node.not_as_root && geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let shown = found.binary.display();
        command.spawn().map_err(|e| format!("{shown} could not be started: {e}."))
    }

    fn wait_for(&mut self, probe: Probe, offset: u16) -> Outcome<()> {
        let asked = Instant::now();
        loop {
            self.check_that_all_run()?;
            match probe.ask(self.ports.at(offset)) {
                Ok(()) => return Ok(()),
                Err(why) if asked.elapsed() > READY_WITHIN => {
                    let logs: String = self.children.iter().map(|(n, _)| self.log_of(n)).collect();
                    return Err(format!(
                        "it was not ready after {} s. {why} {logs}",
                        READY_WITHIN.as_secs()
                    ));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn check_that_all_run(&mut self) -> Outcome<()> {
        for (node, child) in &mut self.children {
            if let Ok(Some(status)) = child.try_wait() {
                let (node, binary) = (*node, node.program.binary);
                return Err(format!("{binary} ended at once ({status}). {}", self.log_of(node)));
            }
        }
        Ok(())
    }

    /// The end of a node's log, for a message.
    fn log_of(&self, node: &Node) -> String {
        let log = fs::read(self.running.dir.join(node.name).join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n  ");
        format!("The end of the log of {}:\n  {end}\n", node.name)
    }
}

/// A new folder that only we may read, in memory if there is room: servers then need not wait for
/// a disk, and etcd 3.4 has no option to tell it not to.
fn new_folder(name: &str) -> Outcome<PathBuf> {
    let parent = match std::env::var_os("TMPDIR") {
        Some(dir) => PathBuf::from(dir),
        None if has_room(Path::new("/dev/shm")) => PathBuf::from("/dev/shm"),
        None => std::env::temp_dir(),
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unique = now.unwrap_or_default().as_micros();
    let dir = parent.join(format!("holdline-{name}-{}-{unique}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&dir).map_err(|e| cannot("create", &dir, &e))?;
    Ok(dir)
}

/// Gives `node`, with the files in it, to `nobody`, who may pass through `whole` to get there.
fn hand_over(whole: &Path, node: &Path) -> Outcome<()> {
    let pass = fs::Permissions::from_mode(0o711);
    fs::set_permissions(whole, pass).map_err(|e| cannot("change", whole, &e))?;
    fs::set_permissions(node, fs::Permissions::from_mode(0o700))
        .map_err(|e| cannot("change", node, &e))?;
    let give = |path: &Path| {
        chown(path, Some(NOBODY), Some(NOBODY)).map_err(|e| cannot("give away", path, &e))
    };
    for entry in fs::read_dir(node).map_err(|e| cannot("read", node, &e))?.flatten() {
        give(&entry.path())?;
    }
    give(node)
}

fn has_room(dir: &Path) -> bool {
    let writable = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
    writable && rustix::fs::statvfs(dir).is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= ROOM)
}

/// A port that somebody else uses would otherwise show as a confusing line in a server's log, or
/// worse: the somebody else would answer our probe.
fn check_ports(topology: &Topology, node: &Node, ports: Ports) -> Outcome<()> {
    for offset in node.ports {
        let port = ports.at(*offset);
        let connects = Probe::Listens.ask(port).is_ok();
        if connects || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err() {
            let what = if *offset >= CLUSTER_BUS { "its cluster bus" } else { node.name };
            return Err(format!(
                "{}: port {port} ({what}) is taken by another program, perhaps by the servers of \
                 another checkout. Stop that program (`ss -ltnp 'sport = :{port}'` shows it), or \
                 set HOLDLINE_PORT_BASE to other ports.",
                topology.name
            ));
        }
    }
    Ok(())
}
