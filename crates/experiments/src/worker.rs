//! Worker processes: clients outside the measuring process, and holders that can be killed. A
//! worker reads its order, reports that it is ready, waits for the start, and writes its result:
//! one line of JSON each.

use crate::contend::{self, Job, Outcome};
use crate::error::{Error, Result};
use crate::machine;
use crate::mode::{Mode, Way};
use crate::run::Host;
use holdline::Mutex;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// The first message to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Compete with others.
    Contend(Job),
    /// Hold a lock until killed, or until the input ends.
    Hold { url: String, name: String, lease: Duration, mode: Mode },
}

/// The answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready,
    Done(Outcome),
    Failed(String),
}

/// How long a worker may take to be ready: a thousand clients connect one after another.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// A runtime for clients.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Acts as a worker: reads an order from `input`, carries it out, and answers on `output`.
///
/// # Errors
///
/// The other process is gone, or the order is malformed. Errors of the experiment are answers.
pub fn work(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    machine::many_files();
    let runtime = runtime()?;
    let order: Order = serde_json::from_str(&line(&mut input)?)?;
    let done = match order {
        Order::Contend(job) => match runtime.block_on(contend::prepare(job)) {
            Ok(ready) => {
                say(&mut output, &Answer::Ready)?;
                let start: u64 = serde_json::from_str(&line(&mut input)?)?;
                runtime.block_on(ready.compete(start)).map(Answer::Done)
            }
            Err(error) => Err(error),
        },
        Order::Hold { url, name, lease, mode } => runtime.block_on(async {
            let client = holdline::open(&url).await?;
            let lock = mode.mutex(Mutex::new(&client, &name).lease(lease));
            let mut guard = lock.lock().await?;
            if mode.way == Way::Handoff {
                // The lock is then held after a handoff.
                let (next, handed_on) = tokio::join!(lock.lock(), guard.unlock());
                handed_on?;
                guard = next?;
            }
            say(&mut output, &Answer::Ready)?;
            // The other process kills this one; if that process has ended, the input ends.
            let _ = line(&mut input);
            guard.unlock().await?;
            Ok(Answer::Ready)
        }),
    };
    let answer = done.unwrap_or_else(|error| Answer::Failed(error.to_string()));
    say(&mut output, &answer)?;
    runtime.shutdown_background();
    Ok(())
}

fn line(input: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Err(Error::failed("the process that started this worker has gone"));
    }
    Ok(line)
}

fn say(output: &mut impl Write, answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    output.write_all(&line)?;
    Ok(output.flush()?)
}

/// A worker, as seen by the measuring process. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a worker, and returns when it is ready or holds its lock.
    pub(crate) async fn start(host: &Host, order: &Order) -> Result<Self> {
        let command = (host.wrap)(&host.worker);
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or_else(|| Error::failed("a worker has no input"))?;
        let output = child.stdout.take().ok_or_else(|| Error::failed("a worker has no output"))?;
        let mut worker = Worker { child, input, output: BufReader::new(output).lines() };
        worker.tell(&serde_json::to_string(order)?).await?;
        Ok(worker)
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let answer = tokio::time::timeout(READY_WITHIN, self.answer()).await;
        match answer.map_err(|_| Error::failed("a worker is not ready in time"))?? {
            Answer::Ready => Ok(()),
            Answer::Done(_) => Err(Error::failed("a worker was done before it began")),
            Answer::Failed(message) => Err(Error::failed(message)),
        }
    }

    /// Tells it when to begin.
    pub(crate) async fn begin(&mut self, start: u64) -> Result<()> {
        self.tell(&start.to_string()).await
    }

    /// The result of a worker.
    pub(crate) async fn outcome(&mut self) -> Result<Outcome> {
        match self.answer().await? {
            Answer::Done(outcome) => Ok(outcome),
            Answer::Ready => Err(Error::failed("a worker did not compete")),
            Answer::Failed(message) => Err(Error::failed(message)),
        }
    }

    /// Kills it, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    async fn tell(&mut self, line: &str) -> Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }

    async fn answer(&mut self) -> Result<Answer> {
        let line = self.output.next_line().await?;
        let line = line.ok_or_else(|| Error::failed("a worker has ended before its time"))?;
        Ok(serde_json::from_str(&line)?)
    }
}
