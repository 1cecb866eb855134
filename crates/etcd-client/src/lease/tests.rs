//! Leases whose member answers as a test says.

use super::*;
use crate::grpc::{Messages, frame};
use crate::proto::Header;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use holdline_base::liveness;
use holdline_base::servers::Servers;
use http::{HeaderValue, Request, Response};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[test]
fn the_server_is_asked_for_a_little_more() {
    let table = [(1000, 2), (1500, 2), (1501, 3), (2000, 3), (10_000, 11), (60_000, 66)];
    for (lease, seconds) in table {
        let lease = Duration::from_millis(lease);
        assert_eq!(Lease::seconds_for(lease), seconds, "{lease:?}");
        // Enough for a clock of the server that is fast, and for the pause between two heartbeats.
        let length = Duration::from_secs(seconds);
        let pause = (length / 22).max(Duration::from_millis(200));
        assert!(liveness::certain(length) > lease + pause, "{lease:?}");
    }
}

/// A server may have a minimum, and may be garbled.
#[test]
fn no_more_is_relied_on_than_was_asked_for() {
    for (granted, expected) in [(11, 11), (60, 11), (i64::MAX, 11), (5, 5), (0, 0), (-1, 0)] {
        assert_eq!(counted(granted, 11), expected, "{granted} s");
    }
}

/// The term of the answers of the majority.
const TERM: u64 = 5;

/// A member, and how it answers.
#[derive(Clone)]
struct Member {
    /// The length of its leases, in seconds.
    seconds: u8,
    /// The times at which grants and heartbeats arrived.
    arrived: Arc<watch::Sender<Vec<Time>>>,
    /// How long their answers take.
    late: Duration,
    /// Whether heartbeats are answered by now.
    answers: watch::Receiver<bool>,
    /// The term of the answers to heartbeats.
    term: u64,
    /// Whether a majority answers, too.
    leads: bool,
    /// Whether its grants have a revision.
    counts: bool,
}

impl Member {
    fn new() -> Self {
        let (late, answers) = (Duration::ZERO, watch::channel(true).1);
        let arrived = Arc::default();
        Member { seconds: 10, arrived, late, answers, term: TERM, leads: true, counts: true }
    }

    /// A cluster of this member, and a lease in it.
    async fn lease(&self) -> (Arc<Cluster>, Arc<Lease>) {
        let (cluster, granted) = self.ask().await;
        (cluster, Arc::new(granted.expect("it answers")))
    }

    /// The same, if the lease is granted.
    async fn ask(&self) -> (Arc<Cluster>, Result<Lease>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let host = listener.local_addr().expect("it has one").to_string();
        let member = self.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(member.clone().serve(socket));
            }
        });
        let servers = Servers { hosts: vec![host], ..<_>::default() };
        let cluster = Arc::new(Cluster::new(servers, None, "etcd").expect("a good host"));
        let granted =
            Lease::grant(&cluster, self.seconds.into(), b"x/", Duration::from_secs(60)).await;
        (cluster, granted)
    }

    async fn serve(self, socket: TcpStream) {
        let Ok(mut server) = h2::server::handshake(socket).await else { return };
        while let Some(Ok((request, respond))) = server.accept().await {
            let member = self.clone();
            tokio::spawn(async move { member.answer(request, respond).await });
        }
    }

    /// Answers a request; `None` if nobody waits for that.
    async fn answer(
        mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Option<()> {
        let mut out = respond.send_response(Response::new(()), false).ok()?;
        let path = request.uri().path().to_owned();
        let mut asked = Messages::new(request.into_body());
        if path == proto::KEEP_ALIVE {
            while let Ok(Some(LeaseId { .. })) = asked.next().await {
                let answer = self.count(self.term).await;
                self.answers.wait_for(|answers| *answers).await.ok()?;
                out.send_data(answer, false).ok()?;
            }
            return None;
        }
        let answer = match path.as_str() {
            proto::GRANT if !self.counts => frame(&LeaseAnswer { header: None, ttl: 10 }),
            proto::GRANT => self.count(TERM).await,
            _ if self.leads => frame(&RangeAnswer { header: Some(header(TERM)), ..<_>::default() }),
            _ => frame(&RangeAnswer::default()),
        };
        out.send_data(answer, false).ok()?;
        let good = ("grpc-status".parse().expect("a name"), HeaderValue::from(0));
        out.send_trailers([good].into_iter().collect()).ok()
    }

    /// Notes that a grant or a heartbeat has arrived, and returns its answer.
    async fn count(&self, term: u64) -> Bytes {
        self.arrived.send_modify(|all| all.push(clock::now()));
        clock::pause(self.late).await;
        frame(&LeaseAnswer { header: Some(header(term)), ttl: self.seconds.into() })
    }

    /// Waits until so many grants and heartbeats have arrived.
    async fn has(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        let enough = pin!(arrived.wait_for(|all| all.len() >= count));
        let enough = clock::timeout(Duration::from_secs(60), enough).await;
        assert!(enough.is_some(), "not {count} requests within a minute");
    }

    /// When the last grant or heartbeat arrived.
    fn last(&self) -> Time {
        *self.arrived.borrow().last().expect("there was one")
    }
}

fn header(raft_term: u64) -> Header {
    Header { revision: 10, raft_term, ..<_>::default() }
}

/// A user that always has keys.
#[derive(Default)]
struct Busy {
    /// Whether it panics when it is asked next, as a subscriber may.
    panics: AtomicBool,
}

impl LeaseUser for Busy {
    fn is_busy(&self) -> bool {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "as it should");
        true
    }

    fn another_key(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn turned(&self) {}

    fn lost(&self) -> Option<Time> {
        None
    }

    fn over(&self) {}
}

/// The server counts from some moment before its answer.
#[tokio::test]
async fn a_lease_counts_from_before_its_request_was_sent() {
    let member = Member { late: Duration::from_millis(100), ..Member::new() };
    let (cluster, lease) = member.lease().await;
    let (length, good) = (Duration::from_secs(10), || lease.liveness.good_until());
    let granted = good().expect("it is new");
    assert!(granted <= member.last().after(length), "after the grant");
    let until = granted.after(Duration::from_millis(1));
    let run = tokio::spawn(Arc::clone(&lease).run(cluster, Busy::default()));
    assert!(lease.good_for(until).await);
    assert!(good().expect("it is alive") <= member.last().after(length), "after a heartbeat");
    run.abort();
}

/// kine grants leases without a revision, and ends no lease.
#[tokio::test]
async fn a_server_that_only_speaks_the_protocol_is_named() {
    let member = Member { counts: false, ..Member::new() };
    let Err(error) = member.ask().await.1 else { panic!("it has no leases") };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    let text = format!("{error:#}");
    assert!(text.contains("not answered by etcd") && text.contains("kine"), "{text}");
}

/// A leader that was replaced confirms what it cannot know.
#[tokio::test]
async fn a_heartbeat_counts_only_if_its_member_leads() {
    let past = Member { term: TERM - 1, ..Member::new() };
    let alone = Member { leads: false, ..Member::new() };
    for (member, confirms) in [(Member::new(), true), (past, false), (alone, false)] {
        let (cluster, lease) = member.lease().await;
        let before = lease.liveness.good_until();
        let run = tokio::spawn(Arc::clone(&lease).run(cluster, Busy::default()));
        // The first of them has been answered and judged by now.
        member.has(3).await;
        let after = lease.liveness.good_until();
        assert_eq!(after > before, confirms, "term {}, leads: {}", member.term, member.leads);
        run.abort();
    }
}

/// The servers may be about to end it, or may have done so.
#[tokio::test]
async fn an_answer_that_comes_when_the_lease_is_over_revives_nothing() {
    let (answer, answers) = watch::channel(false);
    let member = Member { seconds: 2, answers, ..Member::new() };
    let (cluster, lease) = member.lease().await;
    let run = tokio::spawn(Arc::clone(&lease).run(cluster, Busy::default()));
    while !lease.is_lost() {
        clock::pause(Duration::from_millis(1)).await;
    }
    answer.send_replace(true);
    let over = clock::timeout(Duration::from_secs(60), run).await;
    over.expect("it is given up").expect("no panic");
    assert!(lease.is_lost());
}

/// All locks on the lease would be lost.
#[tokio::test]
async fn heartbeats_go_on_after_a_panic() {
    let member = Member::new();
    let (cluster, lease) = member.lease().await;
    let run = tokio::spawn(Arc::clone(&lease).run(cluster, Busy { panics: AtomicBool::new(true) }));
    member.has(4).await; // the grant, one before the panic, and two after it
    assert!(!lease.is_lost());
    run.abort();
}
