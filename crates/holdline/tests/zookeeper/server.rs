//! Servers of our own, and what can be asked of them behind the store's back.

#[path = "between.rs"]
mod between;
#[path = "../support/ports.rs"]
mod ports;

pub(crate) use crate::eventually::{soon, until};
use between::Between;
use holdline::{Client, Guard, Mutex, open};
use holdline_testkit::Link;
pub(crate) use ports::free_port;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zookeeper_client as zk;

/// One member.
struct Member {
    /// For clients, for the others' data, for elections.
    ports: [u16; 3],
    process: Child,
}

const FILE: &str = "zoo.cfg";

/// One server, or an ensemble of three. It is gone when this is dropped.
pub(crate) struct Servers {
    members: Vec<Member>,
    folder: tempfile::TempDir,
    /// From the first member to the others.
    pub(crate) links: Vec<Link>,
    between: Option<Between>,
}

/// What is between the members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// Nothing that could be broken.
    Direct,
    /// Links from the first to the others.
    Island,
    /// Links between all of them.
    Apart,
}

/// So many servers, or nothing (with a word about it) if there is no ZooKeeper here.
pub(crate) fn start(count: usize) -> Option<Servers> {
    start_with(count, "", "")
}

/// The same with some more Java properties, and lines of configuration.
pub(crate) fn start_with(count: usize, java: &str, more: &str) -> Option<Servers> {
    build(count, java, &|_| more.to_owned(), Ways::Direct)
}

/// The same with lines of configuration for each.
pub(crate) fn start_each(count: usize, more: &dyn Fn(usize) -> String) -> Option<Servers> {
    build(count, "", more, Ways::Direct)
}

/// Members that can be cut off from each other, and notice it after two ticks. One that takes
/// itself for the leader, and finds that nobody follows, asks again after six.
pub(crate) fn start_apart(count: usize) -> Option<Servers> {
    build(count, "", &|_| "syncLimit=2\ninitLimit=6".to_owned(), Ways::Apart)
}

/// Three members, of which the first, which never leads, follows the leader by links that can be
/// stalled. It notices that only after 20 ticks.
pub(crate) fn start_with_island() -> Option<Servers> {
    build(3, "", &|_| "syncLimit=20".to_owned(), Ways::Island)
}

fn build(count: usize, java: &str, more: &dyn Fn(usize) -> String, ways: Ways) -> Option<Servers> {
    if class_path().is_none() {
        holdline_testkit::missing("there is no ZooKeeper on this machine");
        return None;
    }
    // Memory, where there is some to be had: fsync is not what is tested.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let folder = folder.expect("there is room for a folder");
    let ports: Vec<_> = (0..count).map(|_| [free_port(), free_port(), free_port()]).collect();
    let link = |at: usize| Link::to(("127.0.0.1", ports[at][1])).expect("a port is free");
    let links: Vec<_> = (1..count).filter(|_| ways == Ways::Island).map(link).collect();
    let between = (ways == Ways::Apart).then(|| Between::to(&ports));
    for at in 0..count {
        let apart = between.as_ref().map(|between| between.seen_by(at, &ports));
        let mut seen = apart.unwrap_or_else(|| ports.clone());
        if at == 0 {
            // How the first sees the others.
            for (ports, link) in seen[1..].iter_mut().zip(&links) {
                ports[1] = link.address().port();
            }
        }
        configure(folder.path(), &seen, at, &more(at));
    }
    let run = |at: usize| Member { ports: ports[at], process: run(folder.path(), at, java) };
    let servers = Servers { members: (0..count).map(run).collect(), folder, links, between };
    for at in 0..count {
        servers.wait(at);
    }
    Some(servers)
}

/// Debian's, or that of an unpacked release.
fn class_path() -> Option<String> {
    let home = std::env::var_os("ZOOKEEPER_HOME").map(|home| PathBuf::from(home).join("lib"));
    if let Some(jars) = home.filter(|jars| jars.is_dir()) {
        return Some(format!("{}/*", jars.display()));
    }
    let jars = Path::new("/usr/share/java");
    let all = ["zookeeper.jar", "slf4j-simple.jar"].map(|jar| jars.join(jar));
    let there = all.iter().all(|jar| jar.is_file());
    // What its manifest lacks, and TLS needs.
    let netty = ["netty-codec.jar", "netty-resolver.jar", "netty-transport-native-unix-common.jar"];
    let all = all.into_iter().chain(netty.map(|jar| jars.join(jar)));
    there.then(|| all.map(|jar| jar.display().to_string()).collect::<Vec<_>>().join(":"))
}

fn configure(folder: &Path, ports: &[[u16; 3]], at: usize, more: &str) {
    let home = folder.join(format!("m{at}"));
    std::fs::create_dir(&home).expect("there is room");
    let mut text = format!(
        "tickTime=500\ninitLimit=20\ndataDir={}\nclientPort={}\n\
         clientPortAddress=127.0.0.1\nsyncLimit=4\n\
         minSessionTimeout=1000\nmaxSessionTimeout=60000\n\
         admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n{more}\n",
        home.display(),
        ports[at][0]
    );
    if ports.len() > 1 {
        for (member, [_, data, election]) in ports.iter().enumerate() {
            text.push_str(&["server.", &member.to_string(), "=127.0.0.1:"].concat());
            text.push_str(&[data.to_string(), election.to_string()].join(":"));
            text.push('\n');
        }
    }
    std::fs::write(home.join(FILE), text).expect("there is room");
    std::fs::write(home.join("myid"), at.to_string()).expect("there is room");
}

fn run(folder: &Path, at: usize, java: &str) -> Child {
    let home = folder.join(format!("m{at}"));
    let log = std::fs::File::create(home.join("log")).expect("a log");
    Command::new("java")
        .args(["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dzookeeper.fastleader.maxNotificationInterval=500")
        .args(java.split_whitespace())
        .arg("-cp")
        .arg(class_path().expect("it was there"))
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(home.join(FILE))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("java starts")
}

impl Servers {
    /// The store's URL, with all members.
    pub(crate) fn url(&self) -> String {
        format!("zookeeper://{}", self.hosts().join(","))
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.ports[0])).collect()
    }

    pub(crate) async fn client(&self) -> Client {
        open(&self.url()).await.expect("a good URL")
    }

    /// A session behind the store's back.
    pub(crate) async fn raw(&self) -> zk::Client {
        raw(&self.hosts().join(",")).await
    }

    /// Waits until a member serves.
    pub(crate) fn wait(&self, at: usize) {
        let limit = Instant::now() + Duration::from_secs(40);
        while !self.serves(at) {
            assert!(Instant::now() < limit, "member {at} does not serve");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a member says to one of the words of four letters.
    pub(crate) fn ask(&self, at: usize, word: &str) -> String {
        let port = self.members[at].ports[0];
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = stream.write_all(word.as_bytes());
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    /// How many requests the first member has got from clients, pings among them.
    pub(crate) fn requests(&self) -> u64 {
        // Connections by which we ask ourselves are gone by the next time.
        let all = self.ask(0, "cons");
        let counts = all.lines().filter(|line| line.contains("sid=0x"));
        let counts = counts.filter_map(|line| line.split("recved=").nth(1)?.split(',').next());
        counts.filter_map(|count| count.parse::<u64>().ok()).sum()
    }

    /// The sessions that there are.
    pub(crate) fn sessions(&self) -> usize {
        let text = self.ask(0, "dump");
        text.lines().filter(|line| line.starts_with("0x")).count()
    }

    /// What is between members that were started apart.
    pub(crate) fn between(&self) -> &Between {
        self.between.as_ref().expect("they were started apart")
    }

    /// Whether a member takes part, and so answers clients.
    pub(crate) fn serves(&self, at: usize) -> bool {
        self.ask(at, "srvr").contains("Mode: ")
    }

    /// Which member leads.
    pub(crate) fn leader(&self) -> usize {
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            let leads = |at: &usize| self.ask(*at, "srvr").contains("Mode: leader");
            if let Some(at) = (0..self.members.len()).find(leads) {
                return at;
            }
            assert!(Instant::now() < limit, "nobody leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, at: usize) {
        self.members[at].process.kill().expect("it runs");
        self.members[at].process.wait().expect("it ends");
    }

    /// Kills all members, does something with the folder that each keeps its data in, and starts
    /// them again.
    pub(crate) fn between_lives(&mut self, work: impl Fn(&Path)) {
        for at in 0..self.members.len() {
            self.kill(at);
        }
        for at in 0..self.members.len() {
            let home = self.folder.path().join(format!("m{at}"));
            work(&home.join("version-2"));
            self.members[at].process = run(self.folder.path(), at, "");
        }
        for at in 0..self.members.len() {
            self.wait(at);
        }
    }

    /// Starts a member that was killed, with its data.
    pub(crate) fn restart(&mut self, at: usize) {
        self.begin(at);
        self.wait(at);
    }

    /// The same, without waiting until it serves.
    pub(crate) fn begin(&mut self, at: usize) {
        self.members[at].process = run(self.folder.path(), at, "");
    }

    /// Lets a member that was killed serve by itself, without the others, until `work` is done with
    /// it. What is written meanwhile the others never hear of.
    pub(crate) async fn alone<T>(&mut self, at: usize, work: impl AsyncFnOnce(&str) -> T) -> T {
        let file = self.folder.path().join(format!("m{at}")).join(FILE);
        let whole = std::fs::read_to_string(&file).expect("it was written");
        let alone = whole.lines().filter(|line| !line.starts_with("server."));
        let alone = alone.collect::<Vec<_>>().join("\n");
        std::fs::write(&file, alone).expect("there is room");
        self.restart(at);
        let done = work(&self.hosts()[at]).await;
        self.kill(at);
        std::fs::write(&file, whole).expect("there is room");
        done
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) fn signal(&self, at: usize, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.members[at].process.id()).expect("a small number");
        let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

/// A session with these hosts.
pub(crate) async fn raw(hosts: &str) -> zk::Client {
    let connector = zk::Client::connector().with_session_timeout(Duration::from_secs(30));
    connector.connect(hosts).await.expect("it is there")
}

impl Drop for Servers {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            println!("what ZooKeeper said is kept in {}", self.folder.path().display());
        }
    }
}

/// Locks, however often that fails on a machine that is busy, or in an ensemble that has no leader.
pub(crate) async fn persist(lock: Mutex) -> Guard {
    loop {
        match lock.lock().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.retryable(), "{error}"),
        }
    }
}
