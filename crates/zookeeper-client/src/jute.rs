//! Jute, the encoding of all messages between ZooKeeper's clients and servers: numbers in
//! big-endian order; texts, bytes and lists preceded by their length.
//!
//! Received data is never trusted: a length is accepted only as far as there are bytes.

use crate::error::Error;

/// A message being encoded.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn long(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn bool(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let mut writer = self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        writer.0.extend_from_slice(bytes);
        writer
    }

    pub(crate) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn texts(self, texts: &[&str]) -> Self {
        let writer = self.int(i32::try_from(texts.len()).unwrap_or(i32::MAX));
        texts.iter().fold(writer, |writer, text| writer.text(text))
    }

    /// Writes an access list with all permissions for one identity.
    pub(crate) fn acl(self, acl: Acl) -> Self {
        let (scheme, id) = match acl {
            Acl::Anyone => ("world", "anyone"),
            Acl::Creator => ("auth", ""),
        };
        self.int(1).int(ALL).text(scheme).text(id)
    }
}

/// Read, write, create, delete, administer.
const ALL: i32 = 31;

/// The users with all permissions on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acl {
    /// Anyone who reaches the servers.
    Anyone,
    /// The user that the session has logged in as.
    Creator,
}

/// A received message, decoded from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Error::Garbled)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn int(&mut self) -> Result<i32, Error> {
        self.take().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Result<i64, Error> {
        self.take().map(i64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Error> {
        self.take().map(|[byte]| byte != 0)
    }

    /// Reads bytes; null is treated as empty.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let len = usize::try_from(self.int()?.max(0)).map_err(|_| Error::Garbled)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Error::Garbled)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Error::Garbled)
    }

    pub(crate) fn texts(&mut self) -> Result<Vec<String>, Error> {
        // Collected as they come: memory is allocated only for received bytes.
        (0..self.int()?).map(|_| self.text().map(str::to_owned)).collect()
    }

    pub(crate) fn stat(&mut self) -> Result<Stat, Error> {
        let (czxid, _mzxid) = (self.long()?, self.long()?);
        let (_ctime, _mtime) = (self.long()?, self.long()?);
        let (version, _cversion, _aversion) = (self.int()?, self.int()?, self.int()?);
        let ephemeral_owner = self.long()?;
        let (_data_length, _children) = (self.int()?, self.int()?);
        Ok(Stat { czxid, pzxid: self.long()?, version, ephemeral_owner })
    }
}

/// The part of a node's stat that is used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created the node.
    pub czxid: i64,
    /// The last transaction that created or deleted one of its children.
    pub pzxid: i64,
    /// How often its data was changed.
    pub version: i32,
    /// The session that it belongs to, or 0.
    pub ephemeral_owner: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let written = Writer::default()
            .int(-7)
            .long(i64::MIN)
            .bool(true)
            .bytes(b"\0\xff")
            .text("größe")
            .texts(&["", "a"]);
        let mut reader = Reader(&written.0);
        assert_eq!(reader.int(), Ok(-7));
        assert_eq!(reader.long(), Ok(i64::MIN));
        assert_eq!(reader.bool(), Ok(true));
        assert_eq!(reader.bytes(), Ok(&b"\0\xff"[..]));
        assert_eq!(reader.text(), Ok("größe"));
        assert_eq!(reader.texts(), Ok(vec![String::new(), "a".to_owned()]));
        assert!(reader.0.is_empty());
    }

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        let acl = Writer::default().acl(Acl::Anyone).0;
        let expected = b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone";
        assert_eq!(acl, expected);
        let creator = Writer::default().acl(Acl::Creator).0;
        assert_eq!(creator, b"\0\0\0\x01\0\0\0\x1f\0\0\0\x04auth\0\0\0\0");
    }

    #[test]
    fn a_stat_is_read_as_it_is_sent() {
        let written = Writer::default().long(1).long(2).long(3).long(4).int(5).int(6).int(7);
        let written = written.long(8).int(9).int(10).long(11);
        let stat = Stat { czxid: 1, pzxid: 11, version: 5, ephemeral_owner: 8 };
        assert_eq!(Reader(&written.0).stat(), Ok(stat));
        for len in 0..written.0.len() {
            assert_eq!(Reader(&written.0[..len]).stat(), Err(Error::Garbled), "{len} bytes");
        }
    }

    #[test]
    fn hostile_lengths_are_errors() {
        for bytes in [&b""[..], b"\0\0\0", b"\0\0\0\x02a", b"\x7f\xff\xff\xffabc"] {
            assert_eq!(Reader(bytes).bytes(), Err(Error::Garbled), "{bytes:?}");
            assert_eq!(Reader(bytes).texts(), Err(Error::Garbled), "{bytes:?}");
        }
        assert_eq!(Reader(b"\0\0\0\x01\xff").text(), Err(Error::Garbled), "no UTF-8");
        assert_eq!(Reader(b"\xff\xff\xff\xff").bytes(), Ok(&b""[..]), "that is none");
        assert_eq!(Reader(b"\x80\0\0\0").texts(), Ok(Vec::new()));
    }
}
