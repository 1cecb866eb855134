//! Making a connection, and with it a session, or attaching it to the session that there is.

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
    /// 0 for one that is still to be made.
    pub(crate) id: i64,
    password: Vec<u8>,
    /// How long the servers keep it without hearing of us.
    pub(crate) length: Duration,
}

impl SessionId {
    pub(crate) fn new(length: Duration) -> Self {
        SessionId { id: 0, password: vec![0; 16], length }
    }
}

/// Why a server is of no use now.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection was refused.
    Absent,
    /// The host's name is not known.
    NoAddress,
    /// It hangs up without a word: it does not serve, or not us.
    HungUp,
    /// It is silent, does not serve, or cannot be trusted.
    Unusable(String),
    /// No other would do better.
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
            Failure::Unusable(why) => f.write_str(why),
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

/// Connects to a host, for the session: a new one if its id is 0. `seen` is the last transaction
/// that was seen on it; a server that has not seen that one refuses us. The host has `silence` for
/// each step.
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
    let transport = Transport::<()>::new(socket.map_err(Failure::unusable)?);
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

/// The time that a host has for each step of a handshake after so many tries for which it was too
/// slow: it grows, because a busy server that is given up each time is only asked more.
pub(crate) fn patience(silence: Duration, session: Duration, tries: u32) -> Duration {
    silence.saturating_mul(1 << tries.min(4)).min(session / 3).clamp(silence, PATIENCE)
}

/// The longest such time: another host may be better.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes a new session with a host, or says what else answers there.
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
    let found = |stranger| Failure::Over(Error::Stranger(stranger, host.to_owned()));
    let mut attempt = std::pin::pin!(attach(config, host, silence, new, 0));
    let look = async {
        clock::pause(SUSPICIOUS).await;
        identify(config, host).await
    };
    let failed = tokio::select! {
        done = &mut attempt => match done {
            Ok(_) | Err(Failure::Absent | Failure::NoAddress | Failure::Over(_)) => return done,
            Err(failed) => failed,
        },
        stranger = look => match stranger {
            Some(stranger) => return Err(found(stranger)),
            None => return attempt.await,
        },
    };
    Err(identify(config, host).await.map_or(failed, found))
}

/// After this time without an answer it is asked what it is that listens there.
const SUSPICIOUS: Duration = Duration::from_millis(300);

/// Whether the servers have lost transactions that they had confirmed: then they refuse a session
/// that has seen those. That they are only behind (one is that follows, or has no leader) is
/// told apart by a new session. To make one is a transaction to which a quorum agrees, so its
/// number is higher than that of any before it, unless those are lost.
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

/// What the server says to the session.
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
    // Old servers do not say it, and have no such mode.
    if reader.bool().unwrap_or(false) {
        return Err(Failure::unusable("it is read-only"));
    }
    if old.id != 0 && length < old.length {
        tracing::warn!(?length, was = ?old.length, "a server keeps the session for a shorter time");
        return Err(Failure::Over(Error::SessionGivenUp));
    }
    // One that is kept for longer than we asked for is as good for us as that.
    let length = length.min(old.length);
    Ok(SessionId { id, password, length })
}

/// A connection while hands are shaken: one thing after the other.
struct Handshake {
    transport: Transport<()>,
    silence: Duration,
}

impl Handshake {
    /// Writes what there is, and waits for what is said next.
    async fn next(&mut self) -> Result<Vec<u8>, Error> {
        let transport = &mut self.transport;
        let next = poll_fn(|cx| {
            transport.write(cx)?;
            transport.poll_frame(cx)
        });
        clock::timeout(self.silence, next).await.unwrap_or(Err(Error::Timeout))
    }

    /// The answer to the request of this number, without its header.
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

    /// Says something of a login, and hears the answer.
    async fn token(&mut self, xid: i32, token: &[u8]) -> Result<Vec<u8>, Error> {
        self.transport.ask(op::SASL, &Writer::default().bytes(token).0, ());
        let answer = self.reply(xid).await?;
        self.transport.answered(xid)?;
        Ok(Reader(&answer).bytes()?.to_vec())
    }
}
