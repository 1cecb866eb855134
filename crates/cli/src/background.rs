//! A lock that is held by a process in the background, for `acquire` and `release`.
//!
//! `acquire` starts this program again, as the *holder*. The holder acquires the lock, writes one
//! line to `acquire`, and holds until its owner ends, a `release` comes, or the lock is lost.
//! `release` reaches the holder by a socket that is named after the ticket's id, in a folder that
//! only this user can enter. Holders of a lock that is held around them have its id, too; their
//! sockets are named after their owner as well, so that a `release` ends that of its own script.

use crate::caller;
use crate::child::own_program;
use crate::commands::acquire::OnLoss;
use crate::context::Session;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::held::HeldLock;
use crate::job::{Job, Obtained, Released};
use crate::output_queue::Output;
use crate::owner::Owner;
use crate::participant;
use crate::printer::{Level, Printer};
use crate::signals::{self, Signals};
use holdline::Client;
use rustix::process::{Pid, Signal, getuid, kill_process};
use serde_json::{Value, json};
use std::future::pending;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The holder's `argv[0]`, which no program has by accident.
const NAME: &str = "holdline: holding a lock";
/// The time limit for one side of the socket to send its line.
const SPEAKING: Duration = Duration::from_secs(5);
/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest line on the socket.
const LINE: u64 = 4096;
/// The suffix of a socket's name once it has begun to listen.
const LISTENING: &str = "sock";

/// Whether this process was started to hold a lock.
pub(crate) fn is_holder() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Starts a holder with our own arguments, and waits until it holds.
pub(crate) async fn start(session: &Session, owner: &Owner) -> Result<Exit, Failure> {
    let mut signals = Signals::new()?;
    // If our caller ignores this signal, as we then do, the exit code of a child cannot be known.
    let _handled = unix::signal(SignalKind::child())
        .map_err(|error| internal("the holder, whose end cannot be watched", &error))?;
    let program = own_program().map_or_else(std::env::current_exe, |own| Ok(own.into()));
    let program = program.map_err(|error| internal("this program's file", &error))?;
    let mut command = std::process::Command::new(program);
    command.arg0(NAME).args(std::env::args_os().skip(1)).process_group(0).stdout(Stdio::piped());
    command.stdin(owner.to_stdin()?);
    let mut holder =
        Command::from(command).spawn().map_err(|error| internal("the holder", &error))?;
    let out = holder.stdout.take().expect("it is piped");
    let mut line = String::new();
    let mut out = BufReader::new(out).take(LINE);
    let mut ended_by = None;
    let read = loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                send(&holder, signal);
                ended_by = Some(signal);
            }
            read = out.read_line(&mut line) => break read,
        }
    };
    if let Some(signal) = ended_by
        && line.ends_with('\n')
    {
        // The signal came when the holder held already, and it ends that.
        let _ = timeout(SPEAKING, holder.wait()).await;
        let message = format!("{} ended the wait; nothing is held", signals::name(signal));
        return Err(Failure::new(Exit::signal(signal.as_raw()), "interrupted", message).expected());
    }
    if read.is_ok() && line.ends_with('\n') {
        let json: Value = serde_json::from_str(&line).unwrap_or_default();
        let shown = if session.printer.json {
            line.trim_end()
        } else {
            json["id"].as_str().unwrap_or_default()
        };
        let printed = Printer::answer(shown);
        if matches!(printed, Ok(true)) {
            return Ok(Exit::DONE);
        }
        // The handle is unknown to everyone.
        send(&holder, Signal::TERM);
        let _ = timeout(SPEAKING, holder.wait()).await;
        return printed.map(|_| Exit::OUTPUT);
    }
    let ended = holder.wait().await.map_err(|error| internal("the holder", &error))?;
    let Some(code) = ended.code() else {
        let signal = ended.signal().unwrap_or(0);
        let message = format!(
            "the process that was to hold the lock was killed by signal {signal}; nothing is held"
        );
        return Err(Failure::new(Exit::signal(signal), "interrupted", message));
    };
    // The holder has reported the reason.
    Ok(Exit(u8::try_from(code).unwrap_or(Exit::INTERNAL.0)))
}

fn send(holder: &Child, signal: Signal) {
    let pid = holder.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}

/// The life of a holder.
pub(crate) async fn hold(
    session: &Session,
    job: Job,
    owner: Owner,
    on_loss: OnLoss,
    most: Option<Duration>,
) -> Result<Exit, Failure> {
    let mut owner_end = owner.watch()?;
    let ended = async {
        owner_end.comes().await;
        let message = format!("{} was not acquired: its owner has ended", job.title());
        Failure::new(Exit::signal(1), "interrupted", message).expected()
    };
    let obtained = job.obtain(session, ended).await?;
    let Obtained { client, hold, mut signals, .. } = obtained;
    let end = most.map(|time| Instant::now() + time);
    let stderr_is_awaited = caller::stderr_is_awaited(owner.id());
    let is_detached = owner.is_none();
    let socket = match hand_over(&job.name, &hold, &owner).await {
        Ok(socket) => socket,
        Err(failure) => {
            job.release(session, &client, hold, &mut signals).await;
            return Err(failure);
        }
    };
    // A reader of our stderr, as in a pipe, must not wait for our end; nor `$(... 2>&1)`, nor a
    // program that captures all that `acquire` prints.
    if is_detached || stderr_is_awaited {
        close_stderr();
    }
    let over = async {
        match end {
            Some(end) => sleep_until(end).await,
            None => pending().await,
        }
    };
    let why = tokio::select! {
        biased;
        () = hold.lost() => Ended::Lost,
        stream = socket.released() => Ended::Released(stream),
        signal = signals.next() => Ended::Otherwise(signals::name(signal)),
        () = owner_end.comes() => Ended::Otherwise("its owner has ended".to_owned()),
        () = over => Ended::Over,
    };
    if matches!(why, Ended::Lost) {
        return Err(lost(&job, &client, &hold, &owner, on_loss).await);
    }
    if let Ended::Released(stream) = why {
        let released = job.release_silently(&client, hold, &mut signals).await;
        let answer = answer(&released, &job.name, &client.address());
        let _ = timeout(SPEAKING, write(stream, &answer)).await;
        return Ok(Exit::DONE);
    }
    job.release(session, &client, hold, &mut signals).await;
    let reason = match why {
        Ended::Over => "the time given with --detach is over".to_owned(),
        Ended::Otherwise(reason) => reason,
        Ended::Lost | Ended::Released(_) => unreachable!("handled above"),
    };
    let message = format!("{} was released: {reason}", job.title());
    session.printer.say(Level::Verbosely, "released", &message, json!({ "name": job.name }));
    Ok(Exit::DONE)
}

/// The answer to `release`, which prints what is to be said.
fn answer(released: &Released, name: &str, store: &str) -> String {
    let answer = match released {
        Released::Confirmed => json!({ "released": true }),
        Released::Unconfirmed(message) => {
            json!({ "released": true, "unconfirmed": message, "name": name, "store": store })
        }
        Released::Lost(error) => json!({ "released": false, "error": error.to_string() }),
    };
    answer.to_string()
}

/// Opens the socket for `release`, and tells `acquire` the handle, unless the lock is lost.
async fn hand_over(name: &str, hold: &HeldLock, owner: &Owner) -> Result<Socket, Failure> {
    let (id, token) = hold.entry(name);
    let mut stem = id.to_string();
    if hold.is_inherited() {
        let owner = owner.id().map_or(0, |owner| owner.as_raw_nonzero().get());
        stem = format!("{stem}-{owner}-{}", std::process::id());
    }
    let socket = Socket::bind(&stem, owner.is_none()).await?;
    if !hold.is_valid() {
        return Ok(socket); // we were stopped for longer than the lease, say
    }
    let token = participant::known(token);
    let line = json!({ "id": id.to_string(), "name": name, "token": token });
    let written = Output::Stdout.write_all(format!("{line}\n").as_bytes());
    written.map_err(|error| internal("the caller", &error))?;
    Ok(socket)
}

/// Tells the owner of a loss, and then finds its cause.
async fn lost(
    job: &Job,
    client: &Client,
    hold: &HeldLock,
    owner: &Owner,
    on_loss: OnLoss,
) -> Failure {
    if on_loss == OnLoss::Term {
        owner.terminate();
    }
    let (cause, fields) = hold.loss().await;
    let message = format!(
        "{} in {} was lost before its release: {cause}; check what was done under it, for others \
         may have held it meanwhile",
        job.title(),
        client.address()
    );
    Failure::new(Exit::LOST, "lost", message).with(fields)
}

/// Why a holder ends.
enum Ended {
    Lost,
    /// By `release`, which waits for the answer.
    Released(UnixStream),
    /// By the time limit of a lock without an owner.
    Over,
    Otherwise(String),
}

/// Releases the lock of a handle, and reports the result.
pub(crate) async fn release(session: &Session, handle: &str) -> Result<Exit, Failure> {
    if handle.len() != 32 || !handle.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(Failure::usage(
            "a handle is what `holdline acquire` prints: 32 hexadecimal digits",
        ));
    }
    let handle = &handle.to_ascii_lowercase();
    let limit = session.connect_timeout.unwrap_or(Duration::from_secs(15));
    let gone = || {
        let message = format!(
            "nothing is held by the handle {handle}: the lock was lost, or was released before, or \
             its owner has ended (or it was acquired by another user, or with another \
             XDG_RUNTIME_DIR or TMPDIR); check what was done under it"
        );
        Failure::new(Exit::LOST, "lost", message)
    };
    let paths = find_sockets(handle)?;
    // A stopped holder's queue may be full.
    let waits = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    match timeout(limit, end_one(&paths)).await {
        Ok(Ok(line)) => {
            let answer: Value = serde_json::from_str(&line).map_err(|_| gone())?;
            if let Some(error) = answer["error"].as_str() {
                return Err(Failure::new(Exit::LOST, "lost", error));
            }
            if let Some(message) = answer["unconfirmed"].as_str() {
                let fields = json!({ "name": answer["name"], "store": answer["store"] });
                session.printer.say(Level::Usually, "unreleased", message, fields);
            }
            Ok(Exit::DONE)
        }
        Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
            Err(internal("the holder", &error))
        }
        Ok(Err(error)) if !waits(&error) => Err(gone()),
        _ => {
            let message = format!(
                "the process that holds the lock did not answer within {}; if it is stopped, the \
                 lock ends with its lease",
                duration::show(limit)
            );
            Err(Failure::new(Exit::STORE, "store", message))
        }
    }
}

/// The socket of a holder; removed when dropped.
struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    async fn bind(stem: &str, is_detached: bool) -> Result<Socket, Failure> {
        let mut folders = folders();
        let folder = if is_detached { folders.last() } else { folders.next() };
        let folder = folder.expect("there is one");
        make(&folder)?;
        remove_stale(&folder).await;
        let path = folder.join(format!("{stem}.{LISTENING}"));
        // It gets its final name once it listens: before, others would take it for a dead holder's.
        let unready = folder.join(format!("{stem}.new"));
        let listener = UnixListener::bind(&unready)
            .and_then(|listener| std::fs::rename(&unready, &path).map(|()| listener));
        let listener = listener.map_err(|error| {
            let advice = match error.kind() {
                ErrorKind::InvalidInput => "; set XDG_RUNTIME_DIR and TMPDIR to shorter paths",
                _ => "",
            };
            let message = format!("cannot listen at {}: {error}{advice}", path.display());
            Failure::new(Exit::SYSTEM, "system", message)
        })?;
        Ok(Socket { listener, path })
    }

    /// Waits for a `release`.
    async fn released(&self) -> UnixStream {
        loop {
            let Ok((mut stream, _)) = self.listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let mut word = [0; 8];
            let read = timeout(SPEAKING, stream.read_exact(&mut word)).await;
            if matches!(read, Ok(Ok(_))) && word == *b"release\n" {
                return stream;
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes sockets whose holders were killed. That of a stopped holder may have a full queue, for
/// which a connection would wait if it could block.
async fn remove_stale(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    for path in paths.filter(|path| path.extension() == Some(LISTENING.as_ref())).take(100) {
        let connected = UnixStream::connect(&path).await;
        if connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The folders of the sockets: that of the user's session, if there is one, and one that outlasts
/// all sessions, for locks without an owner.
fn folders() -> impl Iterator<Item = PathBuf> {
    let uid = getuid().as_raw();
    // After `su` it may be another user's.
    let own = |path: &PathBuf| path.metadata().is_ok_and(|about| about.uid() == uid);
    // A relative path would be another folder for a `release` elsewhere.
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|path| path.is_absolute()).filter(own);
    let temporary = Some(std::env::temp_dir()).filter(|path| path.is_absolute());
    let temporary = temporary.unwrap_or_else(|| "/tmp".into());
    let session = session.map(|path| path.join("holdline"));
    session.into_iter().chain([temporary.join(format!("holdline-{uid}"))])
}

/// The sockets of a handle: those whose owners are above this process, the nearest first, then that
/// of the lock's own holder, then those of others.
fn find_sockets(handle: &str) -> Result<Vec<PathBuf>, Failure> {
    let above: Vec<i32> = caller::above().map(|pid| pid.as_raw_nonzero().get()).collect();
    let mut found = Vec::new();
    for folder in folders() {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        for path in paths.filter(|path| path.extension() == Some(LISTENING.as_ref())) {
            let stem = path.file_stem().and_then(|stem| stem.to_str()?.strip_prefix(handle));
            let Some(rest) = stem.map(str::to_owned) else { continue };
            check(&folder)?;
            let owner = rest.split('-').nth(1).and_then(|owner| owner.parse().ok());
            let distance = owner.and_then(|owner: i32| above.iter().position(|pid| *pid == owner));
            found.push((distance.unwrap_or(usize::MAX), rest, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(.., path)| path).collect())
}

/// Tells one of these holders to release, and returns its answer; empty if none of them lives.
async fn end_one(paths: &[PathBuf]) -> std::io::Result<String> {
    for path in paths {
        match end(path).await {
            Ok(answer) if answer.is_empty() => {}
            Err(error) if is_end(&error) => {}
            result => return result,
        }
    }
    Ok(String::new())
}

/// Whether the error is that of a holder that has ended.
fn is_end(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound)
}

/// Tells a holder to release, and returns its answer.
async fn end(path: &Path) -> std::io::Result<String> {
    let mut stream = BufReader::new(UnixStream::connect(path).await?);
    stream.write_all(b"release\n").await?;
    let mut line = String::new();
    stream.take(LINE).read_line(&mut line).await?;
    Ok(line)
}

/// Makes a folder that only this user can enter, unless it is there.
fn make(folder: &Path) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(refuse(folder, &error.to_string()))
        }
        _ => check(folder),
    }
}

/// Refuses a folder that others can enter.
fn check(folder: &Path) -> Result<(), Failure> {
    let found = folder.symlink_metadata().map_err(|error| refuse(folder, &error.to_string()))?;
    if !found.is_dir() || found.uid() != getuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(refuse(folder, "it must be a folder that belongs to this user alone"));
    }
    Ok(())
}

fn refuse(folder: &Path, why: &str) -> Failure {
    let message = format!("{} cannot be used: {why}", folder.display());
    Failure::new(Exit::SYSTEM, "system", message)
}

/// Redirects stderr to /dev/null.
fn close_stderr() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(null);
    }
}

async fn write(mut stream: UnixStream, line: &str) -> std::io::Result<()> {
    stream.write_all(line.as_bytes()).await?;
    stream.write_all(b"\n").await
}

pub(crate) fn internal(what: &str, error: &std::io::Error) -> Failure {
    Failure::resource_shortage(&format!("cannot reach {what}"), error).unwrap_or_else(|| {
        Failure::new(Exit::SYSTEM, "system", format!("cannot reach {what}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::remove_stale;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixListener;
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn only_what_listens_no_more_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["dead.sock", "alive.sock", "full.sock", "unready.new"];
        let [dead, alive, full, unready] = names.map(|name| folder.path().join(name));
        let _alive = UnixListener::bind(&alive).unwrap();
        // A socket that is bound but not listening yet refuses connections, like a dead process's.
        for path in [&dead, &unready] {
            drop(UnixListener::bind(path).unwrap());
        }
        let _full = UnixListener::bind(&full).unwrap();
        let error = loop {
            if let Err(error) = UnixStream::connect(&full).await {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        remove_stale(folder.path()).await;
        let left = [dead, alive, full, unready].map(|path| path.exists());
        assert_eq!(left, [false, true, true, true]);
    }
}
