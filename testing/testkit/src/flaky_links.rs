//! Breakable links to the members of a cluster, for a single client.

use crate::link::{Link, Way};
use holdline::{Client, open};

/// One link to each member.
#[derive(Debug)]
pub struct FlakyLinks {
    /// The links, in the members' order.
    pub links: Vec<Link>,
    scheme: &'static str,
    /// The part of the URL after the members.
    options: &'static str,
}

/// The ways to disconnect a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// Nothing gets through, without any error.
    Silence,
    /// Requests arrive, and replies do not.
    Replies,
    /// Requests do not arrive, and replies under way do.
    Requests,
    /// Connections are closed, and new ones refused.
    Closed,
}

impl Cut {
    /// All of them.
    pub const ALL: [Cut; 4] = [Cut::Silence, Cut::Replies, Cut::Requests, Cut::Closed];
}

impl FlakyLinks {
    /// Creates links to these members; `options` follow them in the URL.
    ///
    /// # Panics
    ///
    /// If no port is available.
    pub fn to(scheme: &'static str, hosts: &[String], options: &'static str) -> Self {
        let links = hosts.iter().map(|host| Link::to(host).expect("a port is free")).collect();
        FlakyLinks { links, scheme, options }
    }

    /// The store's URL over the links.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.links.iter().map(|link| link.address().to_string()).collect();
        format!("{}://{}{}", self.scheme, hosts.join(","), self.options)
    }

    /// A client over the links.
    ///
    /// # Panics
    ///
    /// If the library was built without the store.
    pub async fn client(&self) -> Client {
        open(&self.url()).await.expect("a good URL")
    }

    /// Cuts all links.
    pub fn cut(&self, how: Cut) {
        for link in &self.links {
            match how {
                Cut::Silence => link.stall(Way::Both),
                Cut::Replies => link.stall(Way::Replies),
                Cut::Requests => link.stall(Way::Requests),
                Cut::Closed => link.cut(),
            }
        }
    }

    /// Mends all links.
    pub fn mend(&self) {
        self.links.iter().for_each(Link::mend);
    }
}
