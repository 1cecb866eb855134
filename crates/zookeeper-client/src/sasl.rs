//! DIGEST-MD5 (RFC 2831), the login for users that ZooKeeper's servers know themselves, and not by
//! a digest in nodes' access lists. MD5 is the servers' choice; secrecy needs TLS.

use crate::error::Error;
use std::fmt::Write;

/// The servers' service name, the same on every host.
const SERVER: &str = "zookeeper/zk-sasl-md5";

/// A login in progress.
pub(crate) struct Digest {
    /// The answer by which the server shows that it knows the password as well.
    expected: String,
}

impl Digest {
    /// The answer to a server's challenge.
    pub(crate) fn answer(
        user: &str,
        password: &str,
        challenge: &[u8],
    ) -> Result<(Self, Vec<u8>), Error> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| Error::AuthFailed)?;
        Self::answer_with(user, password, challenge, &hex(&random))
    }

    fn answer_with(
        user: &str,
        password: &str,
        challenge: &[u8],
        own: &str,
    ) -> Result<(Self, Vec<u8>), Error> {
        let challenge = directives(challenge)?;
        let said = |key: &str| {
            let found = challenge.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
            found.map(|(_, value)| value.as_str())
        };
        let nonce = said("nonce").ok_or(Error::AuthFailed)?;
        let auth = said("qop").is_none_or(|qop| qop.split(',').any(|one| one.trim() == "auth"));
        if said("algorithm") != Some("md5-sess") || !auth {
            return Err(Error::AuthFailed);
        }
        let realm = said("realm").unwrap_or_default();
        let who = [&latin(user)[..], b":", &latin(realm), b":", &latin(password)].concat();
        let first = [&md5::compute(who).0[..], format!(":{nonce}:{own}").as_bytes()].concat();
        let first = hex(&md5::compute(first).0);
        let response = |what: &str| {
            let second = hex(&md5::compute(format!("{what}:{SERVER}")).0);
            hex(&md5::compute(format!("{first}:{nonce}:00000001:{own}:auth:{second}")).0)
        };
        let answer = format!(
            "charset=utf-8,username={},realm={},nonce={},nc=00000001,cnonce=\"{own}\",\
             digest-uri=\"{SERVER}\",response={},qop=auth",
            quoted(user),
            quoted(realm),
            quoted(nonce),
            response("AUTHENTICATE")
        );
        Ok((Digest { expected: response("") }, answer.into_bytes()))
    }

    /// Whether the server has shown that it knows the password.
    pub(crate) fn check(&self, answer: &[u8]) -> Result<(), Error> {
        let answer = directives(answer)?;
        let shown = answer.iter().any(|(key, value)| key == "rspauth" && *value == self.expected);
        if shown { Ok(()) } else { Err(Error::AuthFailed) }
    }
}

/// Encodes a text as the servers hash it: in Latin-1 if that has all of its characters.
fn latin(text: &str) -> Vec<u8> {
    let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
    bytes.collect::<Result<_, _>>().unwrap_or_else(|_| text.as_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Parses `key=value,key="value"`.
fn directives(bytes: &[u8]) -> Result<Vec<(String, String)>, Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::AuthFailed)?;
    let (mut all, mut rest) = (Vec::new(), text.chars().peekable());
    while rest.peek().is_some() {
        let key: String = rest.by_ref().take_while(|c| *c != '=').collect();
        let mut value = String::new();
        if rest.next_if_eq(&'"').is_some() {
            loop {
                match rest.next().ok_or(Error::AuthFailed)? {
                    '"' => break,
                    '\\' => value.push(rest.next().ok_or(Error::AuthFailed)?),
                    c => value.push(c),
                }
            }
            if rest.next().is_some_and(|c| c != ',') {
                return Err(Error::AuthFailed);
            }
        } else {
            value.extend(rest.by_ref().take_while(|c| *c != ','));
        }
        all.push((key.trim().to_owned(), value));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_read() {
        let read = directives(br#"realm="a,\"b",nonce=x, qop="auth,auth-int""#).expect("good");
        let read: Vec<_> = read.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(read, [("realm", "a,\"b"), ("nonce", "x"), ("qop", "auth,auth-int")]);
        for bad in [&br#"realm="a"#[..], br#"realm="a\"#, br#"realm="a"b"#, b"\xff"] {
            assert_eq!(directives(bad), Err(Error::AuthFailed), "{bad:?}");
        }
    }

    #[test]
    fn a_challenge_that_we_cannot_meet_is_refused() {
        for bad in [
            &b""[..],
            b"nonce=\"x\"",
            b"algorithm=md5-sess",
            b"nonce=\"x\",algorithm=md5",
            b"nonce=\"x\",algorithm=md5-sess,qop=\"auth-conf\"",
        ] {
            assert!(Digest::answer("me", "pw", bad).is_err(), "{bad:?}");
        }
    }

    /// Computed by another program, from the formulas of RFC 2831, section 2.1.2.1.
    #[test]
    fn the_answer_is_that_of_the_rfc() {
        let challenge = b"realm=\"zk-sasl-md5\",nonce=\"OA6MG9tEQGm2hh\",charset=utf-8,\
            algorithm=md5-sess,qop=\"auth\"";
        let (digest, answer) =
            Digest::answer_with("m\"e", "geheim\u{e4}", challenge, "OA6MHXh6VqTrRk").expect("good");
        let answer = String::from_utf8(answer).expect("text");
        assert!(answer.contains("username=\"m\\\"e\""), "{answer}");
        assert!(answer.contains(",response=a1d1505c8765642b79515e38101fc2b5,"), "{answer}");
        assert_eq!(digest.check(b"rspauth=d4496fb19a5b38da368693002458f87c"), Ok(()));
        assert_eq!(digest.check(b"rspauth=0"), Err(Error::AuthFailed));
    }
}
