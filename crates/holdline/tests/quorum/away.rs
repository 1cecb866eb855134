//! A quorum of five Redis servers of which some are away, in each of the ways in which a server can
//! be: point by point what its users do then, and how long it takes.

use crate::is_renewed;
use holdline::{Client, Error, ErrorKind, Mutex, open};
use holdline_testkit::redis::{Server, private};
use holdline_testkit::{Link, Way, soon, until};
use std::time::{Duration, Instant};

/// The bound of whatever does not wait for a lock, with the opening.
const BOUND: Duration = Duration::from_secs(2);
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(40);

/// How a node is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// The server is dead: connections are refused.
    Killed,
    /// The server is stopped: connections are made, and nothing is answered.
    Stopped,
    /// Nothing gets through, and nobody is told.
    Stalled,
    /// Connections are closed as soon as they are made.
    Cut,
}

const ABSENCES: [Absence; 4] = [Absence::Killed, Absence::Stopped, Absence::Stalled, Absence::Cut];

/// Five servers, each behind a link.
struct Five {
    servers: Vec<Server>,
    links: Vec<Link>,
}

impl Five {
    fn start(test: &str) -> Option<Five> {
        let servers: Option<Vec<_>> =
            (0..5).map(|_| private(test, &["--appendonly", "yes"])).collect();
        let servers = servers?;
        let link = |server: &Server| Link::to(("127.0.0.1", server.port())).expect("a port");
        let links = servers.iter().map(link).collect();
        Some(Five { servers, links })
    }

    fn nodes(&self) -> Vec<String> {
        self.links.iter().map(|link| format!("redis://{}", link.address())).collect()
    }

    fn url(&self) -> String {
        format!("quorum:{}", self.nodes().join(","))
    }

    fn take_away(&mut self, at: usize, how: Absence) {
        match how {
            // A link would accept for it.
            Absence::Killed => {
                self.servers[at].kill();
                self.links[at].cut();
            }
            Absence::Stopped => self.servers[at].pause(),
            Absence::Stalled => self.links[at].stall(Way::Both),
            Absence::Cut => self.links[at].cut(),
        }
    }

    fn bring_back(&mut self, at: usize, how: Absence) {
        match how {
            Absence::Killed => self.servers[at].restart(),
            Absence::Stopped => self.servers[at].resume(),
            Absence::Stalled | Absence::Cut => {}
        }
        self.links[at].mend();
    }

    /// That the error names these nodes, and no others.
    fn named(&self, error: &Error, away: &[usize]) -> Fair<()> {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
        let words = format!("{error:#}");
        for (at, node) in self.nodes().iter().enumerate() {
            let (is_named, is_away) = (words.contains(node), away.contains(&at));
            assert!(is_named || !is_away, "node {at} ({node}) in: {words}");
            if is_named && !is_away {
                return Err(Late(words));
            }
        }
        Ok(())
    }
}

/// What may be the fault of a busy machine: an answer that was late.
struct Late(String);

type Fair<T> = Result<T, Late>;

/// What was asked for, unless too few nodes answered in time.
fn had<T>(result: holdline::Result<T>) -> Fair<T> {
    result.map_err(|error| {
        assert!(error.retryable(), "a majority is there: {error:#}");
        Late(format!("{error:#}"))
    })
}

/// What comes of this, within the bound.
async fn bounded<T>(what: &str, work: impl Future<Output = T>) -> Fair<T> {
    let start = Instant::now();
    let done = tokio::time::timeout(LIMIT, work).await;
    let done = done.unwrap_or_else(|_| panic!("{what} did not end"));
    let took = start.elapsed();
    if took < BOUND { Ok(done) } else { Err(Late(format!("{what} took {took:?}"))) }
}

/// A setup for each way to be away, on servers of its own; and again on others if an answer was
/// late, as a busy machine's may be, but not each time.
async fn in_each_way(setup: impl AsyncFn(Five, Absence) -> Fair<()>) {
    for how in ABSENCES {
        let mut late = Vec::new();
        loop {
            let Some(five) = Five::start("quorum_away") else { return };
            let Err(Late(what)) = setup(five, how).await else { break };
            late.push(what);
            assert!(late.len() < 3, "{how:?}: {late:#?}");
        }
    }
}

/// Each thing that can be done with a lock, by two clients.
async fn everything(client: &Client, other: &Client) -> Fair<()> {
    let lock = Mutex::new(client, "x");
    let guard = had(bounded("lock", lock.lock()).await?)?;
    let rival = Mutex::new(other, "x");
    assert!(had(bounded("try_lock", rival.try_lock()).await?)?.is_none());
    let short = Duration::from_millis(300);
    assert!(had(bounded("lock_within", rival.lock_within(short)).await?)?.is_none());
    let info = had(bounded("inspect", other.inspect("x")).await?)?;
    let holders: Vec<_> = info.holders.iter().map(|party| party.id).collect();
    assert_eq!(holders, [guard.ticket()]);
    let names = had(bounded("list", other.list("")).await?)?;
    assert!(names.iter().any(|name| name.as_str() == "x"), "{names:?}");
    let broken = bounded("force_unlock", other.force_unlock("x", guard.ticket(), "a test")).await?;
    let number = had(broken)?.expect("it was there");
    assert!(number > guard.token());
    tokio::time::timeout(LIMIT, guard.lost()).await.expect("it is told");
    drop(guard);
    let Some(guard) = had(bounded("lock", rival.lock_within(BOUND)).await?)? else {
        let seen = (client.inspect("x").await, other.inspect("x").await);
        return Err(Late(format!("it is free: {seen:?}")));
    };
    assert!(guard.token() > number);
    had(bounded("unlock", guard.unlock()).await?)?;
    // The one that was lost is given up in the background.
    bounded("settle", client.settle()).await?;
    let guard = had(bounded("try_lock", lock.try_lock()).await?)?.expect("it is free");
    had(guard.unlock().await)
}

#[tokio::test]
async fn a_minority_that_was_never_there_matters_to_nothing() {
    in_each_way(async |mut five, how| {
        five.take_away(1, how);
        five.take_away(3, how);
        let client = had(bounded("open", open(&five.url())).await?)?;
        let other = had(bounded("open", open(&five.url())).await?)?;
        everything(&client, &other).await?;
        // Once they are back they count: two others may go.
        five.bring_back(1, how);
        five.bring_back(3, how);
        five.take_away(0, Absence::Killed);
        five.take_away(2, Absence::Stalled);
        let lock = Mutex::new(&client, "y");
        let guard = tokio::time::timeout(LIMIT, lock.lock()).await.expect("three are there");
        had(had(guard)?.unlock().await)
    })
    .await;
}

#[tokio::test]
async fn a_minority_that_goes_matters_to_nothing() {
    in_each_way(async |mut five, how| {
        let (client, other) = (had(open(&five.url()).await)?, had(open(&five.url()).await)?);
        let held = Mutex::new(&client, "held").lease(Duration::from_secs(2));
        had(had(held.lock().await)?.unlock().await)?; // both talk to all of them
        five.take_away(0, how);
        five.take_away(4, how);
        everything(&client, &other).await
    })
    .await;
}

/// Of a majority that is away each node is named, soon; and it is waited for.
#[tokio::test]
async fn a_majority_that_is_away_is_named_and_waited_for() {
    in_each_way(async |mut five, how| {
        let client = had(open(&five.url()).await)?;
        let away = [0, 2, 3];
        had(had(Mutex::new(&client, "y").lock().await)?.unlock().await)?;
        for at in away {
            five.take_away(at, how);
        }
        let error = bounded("open", open(&five.url())).await?.expect_err("two of five");
        five.named(&error, &away)?;
        for turn in 0..3 {
            let error = bounded("try_lock", Mutex::new(&client, "x").try_lock()).await?;
            let Err(error) = error else { panic!("{how:?}, {turn}: two of five") };
            five.named(&error, &away)?;
            let error = bounded("inspect", client.inspect("x")).await?.expect_err("two of five");
            five.named(&error, &away)?;
        }
        let error = bounded("list", client.list("")).await?.expect_err("two of five");
        five.named(&error, &away)?;
        let lock = Mutex::new(&client, "x");
        let waiter = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!waiter.is_finished(), "it waits");
        five.bring_back(0, how);
        let guard = tokio::time::timeout(LIMIT, waiter).await.expect("three are there");
        had(had(guard.expect("no panic"))?.unlock().await)
    })
    .await;
}

/// What is wrong with a node's URL is told by opening, whichever other nodes are away.
#[tokio::test]
async fn what_no_waiting_mends_is_told_by_opening() {
    let Some(mut five) = Five::start("quorum_away") else { return };
    five.take_away(1, Absence::Stopped);
    let nodes = five.nodes();
    let with = |at: usize, node: String| {
        let mut nodes = nodes.clone();
        nodes[at] = node;
        format!("quorum:{}", nodes.join(","))
    };
    let secret = "redis://:canary@nobody.invalid?nonsense=1".to_owned();
    let mixed = format!("{}?scheme=string", nodes[2]);
    let password = nodes[2].replace("redis://", "redis://me:canary@");
    for (at, node, kind) in [
        (1, secret, ErrorKind::Invalid),
        (2, mixed, ErrorKind::Unsupported),
        (2, password, ErrorKind::Denied),
        (1, "mongodb://x".to_owned(), ErrorKind::Invalid),
    ] {
        let url = with(at, node.clone());
        let refused = async {
            loop {
                // A node that does not answer in time is let be: the others are enough.
                if let Err(error) = open(&url).await {
                    return error;
                }
            }
        };
        let error = soon("a refusal", refused).await;
        assert_eq!(error.kind(), kind, "{node}: {error:#}");
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    }
}

/// A node that is there only after the lock was taken gets a place, and then counts as one of the
/// majority; and the place goes with the lock.
#[tokio::test]
async fn a_node_that_comes_later_keeps_the_lock_too() {
    for scheme in ["line", "string"] {
        let servers: Option<Vec<_>> =
            (0..3).map(|_| private("quorum_later", &["--appendonly", "yes"])).collect();
        let Some(mut servers) = servers else { return };
        servers[2].kill();
        let urls: Vec<_> =
            servers.iter().map(|server| format!("{}?scheme={scheme}", server.url())).collect();
        let client = open(&format!("quorum:{}", urls.join(","))).await.expect("opens");
        let lock = Mutex::new(&client, "x").lease(Duration::from_secs(4));
        let guard = soon("two of three", lock.lock()).await.expect("works");
        servers[2].restart();
        let late = open(&urls[2]).await.expect("opens");
        let holders = async || late.inspect("x").await.map_or(0, |info| info.holders.len());
        until("it has a place", async || holders().await == 1).await;
        servers[0].kill();
        is_renewed(&guard, 2).await;
        assert!(guard.is_valid());
        guard.unlock().await.expect("held");
        until("its place is gone", async || holders().await == 0).await;
    }
}
