//! Ways to the members of a cluster that a test can break, for one client alone.
#![allow(dead_code, reason = "each test uses a part of it")]

use holdline::{Client, open};
use holdline_testkit::{Link, Way};

/// One link to each member.
pub(crate) struct FlakyLinks {
    pub(crate) links: Vec<Link>,
    scheme: &'static str,
    /// What follows the members in the URL.
    options: &'static str,
}

/// How a client is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// Nothing gets through, and nobody is told.
    Silence,
    /// The servers hear, and are not heard.
    Replies,
    /// The servers are not reached, but what they still say arrives.
    Requests,
    /// Connections are closed, and no new ones made.
    Closed,
}

impl Cut {
    pub(crate) const ALL: [Cut; 4] = [Cut::Silence, Cut::Replies, Cut::Requests, Cut::Closed];
}

impl FlakyLinks {
    pub(crate) fn to(scheme: &'static str, hosts: &[String], options: &'static str) -> Self {
        let links = hosts.iter().map(|host| Link::to(host).expect("a port is free")).collect();
        FlakyLinks { links, scheme, options }
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.links.iter().map(|link| link.address().to_string()).collect();
        format!("{}://{}{}", self.scheme, hosts.join(","), self.options)
    }

    pub(crate) async fn client(&self) -> Client {
        open(&self.url()).await.expect("a good URL")
    }

    pub(crate) fn cut(&self, how: Cut) {
        for link in &self.links {
            match how {
                Cut::Silence => link.stall(Way::Both),
                Cut::Replies => link.stall(Way::Replies),
                Cut::Requests => link.stall(Way::Requests),
                Cut::Closed => link.cut(),
            }
        }
    }

    pub(crate) fn mend(&self) {
        self.links.iter().for_each(Link::mend);
    }
}
