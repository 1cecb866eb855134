//! A program of another language that holds and waits for locks, spoken to in lines.

use crate::skipped;
use crate::toolchain::{Language, program};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// The longest that any answer may take: far more than all of them need.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A running program. It is killed when this is dropped.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts one; or nothing, with a word about it, if its language is not there.
    pub(crate) async fn start(language: Language, servers: &str, lease: Duration) -> Option<Peer> {
        let mut command = match program(language, servers, lease).await {
            Ok(command) => command,
            Err(missing) => {
                skipped(&missing);
                return None;
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("it was built");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut peer = Peer { child, input, output };
        let mut said = peer.answer().await;
        // The harness of a test speaks first.
        while language == Language::Rust && said != "ready" {
            said = peer.answer().await;
        }
        assert_eq!(said, "ready");
        Some(peer)
    }

    pub(crate) async fn ask(&mut self, line: &str) -> String {
        self.say(line).await;
        self.answer().await
    }

    pub(crate) async fn say(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("it lives");
    }

    pub(crate) async fn answer(&mut self) -> String {
        self.answer_within(LONG).await.expect("the peer answers")
    }

    /// Its next answer, if that comes in time.
    pub(crate) async fn answer_within(&mut self, time: Duration) -> Option<String> {
        let line = tokio::time::timeout(time, self.output.next_line()).await.ok()?;
        Some(line.expect("text").expect("the peer lives"))
    }

    /// Takes a lock, and tells its token, if it has one.
    pub(crate) async fn lock(&mut self, kind: &str, name: &str) -> Option<u64> {
        token(&self.ask(&format!("lock {kind} {name}")).await)
    }

    /// Does it get the lock at once?
    pub(crate) async fn try_lock(&mut self, kind: &str, name: &str) -> bool {
        match self.ask(&format!("try {kind} {name}")).await.as_str() {
            "refused" => false,
            answer => {
                token(answer);
                true
            }
        }
    }

    pub(crate) async fn unlock(&mut self) {
        assert_eq!(self.ask("unlock").await, "released");
    }

    /// Ends it as a crash does.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("it lived");
    }
}

/// The token in `held TOKEN`.
pub(crate) fn token(answer: &str) -> Option<u64> {
    let token = answer.strip_prefix("held ");
    token.unwrap_or_else(|| panic!("the peer said {answer:?}")).parse().ok()
}
