//! The handshake: connects, and opens a new session or resumes the existing one.

use crate::client::Past;
use crate::config::{Config, Login};
use crate::error::Error;
use crate::identify::identify;
use crate::jute::{Reader, Writer};
use crate::sasl::Digest;
use crate::transport::{Header, Transport, op, xid};
use holdline_base::{clock, net};
use std::fmt;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

/// A session, as its servers know it.
#[derive(Clone)]
pub(crate) struct SessionId {
    /// 0 for a new session.
    pub(crate) id: i64,
    password: Vec<u8>,
    /// How long the servers keep it without hearing from us.
    pub(crate) length: Duration,
}

impl SessionId {
    pub(crate) fn new(length: Duration) -> Self {
        SessionId { id: 0, password: vec![0; 16], length }
    }
}

/// Why a server cannot be used now.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection was refused.
    Absent,
    /// The host's name is unknown.
    NoAddress,
    /// The server hung up without an answer: it does not serve, or not us.
    HungUp,
    /// Its certificate is not trusted.
    Untrusted(String),
    /// The server is silent, or does not serve.
    Unusable(String),
    /// No other server would do better.
    Over(Error),
}

impl Failure {
    #[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
    fn unusable(error: impl fmt::Display) -> Self {
        Failure::Unusable(format!("{error:#}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Absent => f.write_str("nobody listens there"),
            Failure::NoAddress => f.write_str("its name is not known"),
            Failure::HungUp => f.write_str("it hangs up"),
            Failure::Untrusted(why) | Failure::Unusable(why) => f.write_str(why),
            Failure::Over(why) => why.fmt(f),
        }
    }
}

/// Whether no other server would do better.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::SessionExpired | Error::SessionGivenUp | Error::AuthFailed => {
                Failure::Over(error)
            }
            error => Failure::unusable(error),
        }
    }
}

/// Connects to a host for the session; opens a new one if its id is 0. `seen` is the last
/// transaction seen on it; a server that has not seen that one refuses us. The host has `silence`
/// for each step.
pub(crate) async fn attach<T>(
    config: &Config,
    host: &str,
    silence: Duration,
    ident: &SessionId,
    seen: i64,
) -> Result<(Transport<T>, SessionId), Failure> {
    let late = || Failure::unusable("it takes too long");
    let socket = clock::timeout(silence, pin!(net::dial(host, silence))).await.ok_or_else(late)?;
    let socket = socket.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Failure::Absent,
        ErrorKind::NotFound => Failure::NoAddress,
        _ => Failure::unusable(error),
    })?;
    let wrapping = pin!(net::wrap(config.tls.as_ref(), host, socket));
    let socket = clock::timeout(silence, wrapping).await.ok_or_else(late)?;
    let socket = socket.map_err(|error| {
        let untrusted = net::mistrusts(&error).then(|| Failure::Untrusted(format!("{error:#}")));
        untrusted.unwrap_or_else(|| Failure::unusable(error))
    })?;
    let transport = Transport::<()>::new(socket);
    let mut hand = Handshake { transport, silence };
    let length = i32::try_from(ident.length.as_millis()).unwrap_or(i32::MAX);
    let request = Writer::default().int(0).long(seen).int(length).long(ident.id);
    hand.transport.put(&[&request.bytes(&ident.password).bool(false).0]);
    let login = match (&config.servers.user, &config.servers.password) {
        (Some(user), Some(password)) => Some((config.login, user, &password.0)),
        _ => None,
    };
    if let Some((Login::Digest, user, password)) = login {
        let login = format!("{user}:{password}");
        let body = Writer::default().int(0).text("digest").text(&login);
        hand.transport.say(xid::AUTH, op::AUTH, &body.0);
    }
    let first = match hand.next().await {
        Err(Error::ConnectionLoss) => return Err(Failure::HungUp),
        first => first?,
    };
    let ident = answered(&first, ident)?;
    match login {
        Some((Login::Digest, ..)) => drop(hand.reply(xid::AUTH).await?),
        Some((Login::Sasl, user, password)) => hand.sasl(user, password).await?,
        None => {}
    }
    Ok((hand.transport.turn(), ident))
}

/// The time limit of a host for each handshake step, after this many attempts for which it was too
/// slow. It grows, because giving up on a busy server each time only adds to its load.
pub(crate) fn patience(silence: Duration, session: Duration, tries: u32) -> Duration {
    silence.saturating_mul(1 << tries.min(4)).min(session / 3).clamp(silence, PATIENCE)
}

/// The longest such limit: another host may be faster.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a new session with a host, or reports what else answers there.
pub(crate) async fn introduce<T>(
    config: &Config,
    host: &str,
    silence: Duration,
    new: &SessionId,
    past: Past,
) -> Result<(Transport<T>, SessionId), Failure> {
    let silence = patience(silence, config.session, past.tries);
    if past.reached {
        return attach(config, host, silence, new, 0).await;
    }
    let found = |server| Failure::Over(Error::UnexpectedServer(server, host.to_owned()));
    let mut attempt = std::pin::pin!(attach(config, host, silence, new, 0));
    let look = async {
        clock::pause(SUSPICIOUS).await;
        identify(config, host).await
    };
    let failed = tokio::select! {
        done = &mut attempt => match done {
            Err(failed @ (Failure::HungUp | Failure::Unusable(_))) => failed,
            done => return done,
        },
        server = look => match server {
            Some(server) => return Err(found(server)),
            None => return attempt.await,
        },
    };
    Err(identify(config, host).await.map_or(failed, found))
}

/// How long a host may be silent before it is asked what kind of server it is.
const SUSPICIOUS: Duration = Duration::from_millis(300);

/// Whether the servers have lost confirmed transactions: then they refuse a session that has seen
/// them. A new session shows whether they are only behind (because one is a follower, or has no
/// leader): opening one is a transaction that a quorum agrees to, so its number is higher than any
/// before, unless those were lost.
pub(crate) async fn went_back(config: &Config, host: &str, silence: Duration, seen: i64) -> bool {
    let new = SessionId::new(Duration::from_secs(2));
    let Ok((transport, _)) = attach::<()>(config, host, silence, &new, 0).await else {
        return false;
    };
    let mut hand = Handshake { transport, silence };
    hand.transport.ask(op::EXISTS, &Writer::default().text("/").bool(false).0, ());
    let asked = hand.next().await;
    hand.transport.ask(op::CLOSE, &[], ());
    let _closed = hand.next().await;
    let header = asked.and_then(|frame| Header::read(&frame).map(|(header, _)| header));
    header.is_ok_and(|header| header.xid == 1 && header.zxid > 0 && header.zxid < seen)
}

/// Parses the server's answer to the session request.
fn answered(frame: &[u8], old: &SessionId) -> Result<SessionId, Failure> {
    let mut reader = Reader(frame);
    let (_version, millis, id) = (reader.int()?, reader.int()?, reader.long()?);
    let password = reader.bytes()?.to_vec();
    let length = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    if id == 0 || length.is_zero() {
        return Err(Failure::Over(Error::SessionExpired));
    }
    if old.id != 0 && old.id != id {
        return Err(Failure::from(Error::Garbled));
    }
    // Old servers do not send it, and have no such mode.
    if reader.bool().unwrap_or(false) {
        return Err(Failure::unusable("it is read-only"));
    }
    if old.id != 0 && length < old.length {
        tracing::warn!(?length, was = ?old.length, "a server keeps the session for a shorter time");
        return Err(Failure::Over(Error::SessionGivenUp));
    }
    // If the servers keep it longer than requested, we count only the requested time.
    let length = length.min(old.length);
    Ok(SessionId { id, password, length })
}

/// A connection during the handshake: one step after the other.
struct Handshake {
    transport: Transport<()>,
    silence: Duration,
}

impl Handshake {
    /// Writes pending bytes, and waits for the next frame.
    async fn next(&mut self) -> Result<Vec<u8>, Error> {
        let transport = &mut self.transport;
        let next = poll_fn(|cx| {
            transport.write(cx)?;
            transport.poll_frame(cx)
        });
        clock::timeout(self.silence, next).await.unwrap_or(Err(Error::Timeout))
    }

    /// The answer to the request with this number, without its header.
    async fn reply(&mut self, wanted: i32) -> Result<Vec<u8>, Error> {
        let frame = self.next().await?;
        let (header, body) = Header::read(&frame)?;
        match Error::of(header.code) {
            Some(error) => Err(error),
            None if header.xid == wanted => Ok(body.0.to_vec()),
            None => Err(Error::Garbled),
        }
    }

    async fn sasl(&mut self, user: &str, password: &str) -> Result<(), Error> {
        let challenge = self.token(1, &[]).await?;
        let (digest, answer) = Digest::answer(user, password, &challenge)?;
        digest.check(&self.token(2, &answer).await?)
    }

    /// Sends a login token, and awaits the answer.
    async fn token(&mut self, xid: i32, token: &[u8]) -> Result<Vec<u8>, Error> {
        self.transport.ask(op::SASL, &Writer::default().bytes(token).0, ());
        let answer = self.reply(xid).await?;
        self.transport.answered(xid)?;
        Ok(Reader(&answer).bytes()?.to_vec())
    }
}
