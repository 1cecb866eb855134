//! Comparisons with other libraries' locks on the same server, in turns. `testing/bench/peers` has
//! a program in each language; all speak the same line protocol, and one is for this library.

mod driver;
mod list;
mod measure;
mod page;
mod programs;

use crate::report::{Cell, Report, Table};
use crate::target::fresh;
use crate::{Common, Failure};
use clap::{Args, ValueEnum};
use driver::{Driver, Drivers};
use holdline_testkit::zookeeper::{Settings, deployment};
use holdline_testkit::{Deployment, Folder, Node, Private, install_missing};
use holdline_testkit::{etcd, free_port, postgres, redis};
use list::{PEERS, Peer};
use measure::{Held, Outcome, SCENARIOS, Scenario};
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The stores to measure on. Default: all of them.
    on: Vec<Store>,
    /// Only these peers, by name.
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// Only these measurements: alone, names, names1024, one, spread, crowd, held, first.
    #[arg(long, value_name = "WHAT")]
    only: Vec<String>,
    /// Writes the tables into this page, between its marks `<!-- tables -->` and `<!-- end -->`.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Servers keep their data on the disk of TMPDIR instead of in memory.
    #[arg(long)]
    disk: bool,
    /// Only builds the drivers whose tools are there, and asks each whether it is ready.
    #[arg(long)]
    build: bool,
}

impl Options {
    fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == what)
    }
}

/// The servers on which peers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Store {
    Redis,
    Etcd,
    Zookeeper,
    Postgres,
    /// Programs that hold a lock while they run another: flock(1), etcdctl.
    Programs,
}

impl Store {
    fn label(self) -> &'static str {
        match self {
            Store::Redis => "Redis",
            Store::Etcd => "etcd",
            Store::Zookeeper => "ZooKeeper",
            Store::Postgres => "PostgreSQL",
            Store::Programs => "programs",
        }
    }

    /// A private server, with its data in memory unless `disk` is set: if every write waits for a
    /// disk, little else counts.
    fn start(self, disk: bool) -> Result<Private, Failure> {
        let describe = move || match self {
            Store::Redis => redis::SINGLE.on_free_ports(),
            Store::Etcd | Store::Programs => etcd::SINGLE.on_free_ports(),
            Store::Zookeeper => {
                let java = ["-Xms512m", "-Xmx512m"].map(str::to_owned).to_vec();
                let settings = Settings { java, lines: "tickTime=2000\n".to_owned() };
                deployment(&[free_port(), free_port(), free_port()], &settings)
            }
            Store::Postgres => {
                let port = free_port();
                Deployment::new(postgres::url(port), vec![postgres::node("postgres", port)])
            }
        };
        install_missing(describe().nodes().flat_map(Node::programs));
        let folder = if disk { Folder::on_disk("peers")? } else { Folder::new("peers")? };
        Ok(Private::try_launch_in(folder, describe)?)
    }
}

pub(crate) fn run(common: &Common, options: &Options, report: &mut Report) -> Result<(), Failure> {
    let mut drivers = Drivers::default();
    let all = Store::value_variants();
    for store in if options.on.is_empty() { all } else { &options.on } {
        let server = match store.start(options.disk) {
            Ok(server) => server,
            Err(why) => {
                report.table(nothing(*store, &why));
                continue;
            }
        };
        if *store == Store::Programs {
            if !options.build {
                programs::run(common, &server, report)?;
            }
            continue;
        }
        let mut run = Run { common, options, store: *store, server, drivers: &mut drivers };
        run.all(report);
    }
    options.page.as_deref().map_or(Ok(()), |page| page::write(page, report))
}

/// The remark about a store without a server.
fn nothing(store: Store, why: &Failure) -> Table {
    let mut table = Table::new(format!("{}: not run", store.label()), &["missing"]);
    table.row([why.to_string().into()]);
    table
}

/// All measurements on one server.
struct Run<'a> {
    common: &'a Common,
    options: &'a Options,
    store: Store,
    server: Private,
    drivers: &'a mut Drivers,
}

/// The result of this library, and of the peer.
type Round<T> = (T, T);

impl Run<'_> {
    fn all(&mut self, report: &mut Report) {
        let wanted = |peer: &&Peer| {
            let named = self.options.peers.iter().any(|name| name == peer.name);
            peer.store == self.store && (self.options.peers.is_empty() || named)
        };
        let peers: Vec<&Peer> = PEERS.iter().filter(wanted).collect();
        if self.options.build {
            report.table(self.answers(&peers));
            return;
        }
        for scenario in SCENARIOS.iter().filter(|it| self.options.wants(it.key)) {
            let mut table = Table::new(
                format!("{}: {}", self.store.label(), scenario.about),
                &[
                    "peer",
                    "ours",
                    "theirs",
                    "ahead",
                    "our CPU",
                    "their CPU",
                    "server, ours",
                    "server, theirs",
                    "shares, ours",
                    "shares, theirs",
                ],
            );
            for peer in &peers {
                let rounds = self.rounds(peer, scenario);
                table.row(scenario_row(peer, scenario, rounds, 10));
            }
            report.table(table);
        }
        if self.options.wants("held") {
            report.table(self.held(&peers));
        }
        if self.options.wants("first") {
            report.table(self.first(&peers));
        }
    }

    fn start(&mut self, peer: &Peer) -> Result<Driver, Failure> {
        self.drivers.start(peer, &self.server.url())
    }

    /// Starts the driver of this library, as compared with this peer.
    fn start_ours(&mut self, peer: &Peer) -> Result<Driver, Failure> {
        let mut url = self.server.url();
        if self.store == Store::Postgres {
            let scheme = peer.scheme.unwrap_or("table");
            url = format!("{url}?install=yes&scheme={scheme}"); // with its tables
        }
        self.drivers.start(&list::OURS, &url)
    }

    /// Whether each driver answers.
    fn answers(&mut self, peers: &[&Peer]) -> Table {
        let mut table = Table::new(format!("{}: drivers", self.store.label()), &["peer", "answer"]);
        for peer in peers {
            let answer = self.start(peer).and_then(|mut it| it.ready()).map(|()| "ready".into());
            table.row([peer.label().into(), answer.unwrap_or_else(|why| why.to_string()).into()]);
        }
        table
    }

    /// Rounds of both in turns. The first is a warm-up, which is longer for programs compiled at
    /// run time.
    fn rounds(&mut self, peer: &Peer, scenario: &Scenario) -> Result<Vec<Round<Outcome>>, Failure> {
        let mut ours = start_all(scenario, || self.start_ours(peer))?;
        let mut theirs = start_all(scenario, || self.start(peer))?;
        let pid = self.server.servers[0].pid();
        let seconds = self.common.seconds(scenario.seconds);
        let mut rounds = Vec::new();
        for round in 0..=self.common.rounds() {
            let seconds = if round == 0 { peer.warm() } else { seconds };
            let one = |drivers: &mut Vec<Driver>| scenario.round(drivers, seconds, pid);
            rounds.push(if round % 2 == 0 {
                let first = one(&mut ours)?;
                (first, one(&mut theirs)?)
            } else {
                let first = one(&mut theirs)?;
                (one(&mut ours)?, first)
            });
        }
        rounds.remove(0);
        Ok(rounds)
    }

    /// 10,000 locks that one process holds and keeps.
    fn held(&mut self, peers: &[&Peer]) -> Table {
        let time = self.common.seconds(30.0);
        let mut table = Table::new(
            format!(
                "{}: {} held locks of one process, for {time:.0} s",
                self.store.label(),
                measure::HELD
            ),
            &[
                "",
                "each to take",
                "CPU, of one core",
                "memory each",
                "server's CPU",
                "server's memory each",
            ],
        );
        let started = peers.iter().filter(|peer| peer.scheme.is_none());
        for peer in std::iter::once(&&list::OURS).chain(started) {
            table.row(match self.held_by(peer, time) {
                Ok(held) => held.row(peer),
                Err(why) => without(peer, &why, 6),
            });
        }
        table
    }

    /// Each on a new server, which has no memory left over from others' locks.
    fn held_by(&mut self, peer: &Peer, time: f64) -> Result<Held, Failure> {
        peer.keeps?;
        self.server = self.store.start(self.options.disk)?;
        let mut driver =
            if peer.name == list::OURS.name { self.start_ours(peer)? } else { self.start(peer)? };
        Held::measure(&mut driver, time, self.server.servers[0].pid())
    }

    /// The time from the start of a process to its first lock.
    fn first(&mut self, peers: &[&Peer]) -> Table {
        let title = format!("{}: from a process's start to its first lock", self.store.label());
        let mut table = Table::new(title, &["peer", "ours", "theirs", "ahead"]);
        for peer in peers {
            let mut rounds = Vec::new();
            let mut failed = None;
            for _ in 0..=self.common.rounds().max(5) {
                match (first(|| self.start_ours(peer)), first(|| self.start(peer))) {
                    (Ok(ours), Ok(theirs)) => rounds.push((ours, theirs)),
                    (Err(why), _) | (_, Err(why)) => {
                        failed = Some(why);
                        break;
                    }
                }
            }
            table.row(match failed {
                Some(why) => without(peer, &why, 4),
                None => vec![
                    peer.label().into(),
                    Cell::times(rounds[1..].iter().map(|(ours, _)| *ours)).short(),
                    Cell::times(rounds[1..].iter().map(|(_, theirs)| *theirs)).short(),
                    Cell::ratios(rounds[1..].iter().map(|(ours, theirs)| theirs / ours)),
                ],
            });
        }
        table
    }
}

/// The drivers of a scenario, ready.
fn start_all(
    scenario: &Scenario,
    mut start: impl FnMut() -> Result<Driver, Failure>,
) -> Result<Vec<Driver>, Failure> {
    let drivers = (0..scenario.processes).map(|_| start()).collect::<Result<Vec<_>, Failure>>();
    let mut drivers = drivers?;
    drivers.iter_mut().try_for_each(Driver::ready)?;
    Ok(drivers)
}

/// The time from the start of a driver to its first lock.
fn first(start: impl FnOnce() -> Result<Driver, Failure>) -> Result<f64, Failure> {
    let began = std::time::Instant::now();
    let mut driver = start()?;
    driver.say(&format!("hold hold-{} 1", fresh("first")))?;
    driver.ready()?;
    driver.answer()?;
    Ok(began.elapsed().as_secs_f64())
}

/// A row with the reason why there are no figures.
fn without(peer: &Peer, why: &Failure, columns: usize) -> Vec<Cell> {
    let why: String =
        why.to_string().lines().next().unwrap_or_default().chars().take(110).collect();
    let mut row = vec![peer.label().into(), why.into()];
    row.resize_with(columns, Cell::none);
    row
}

fn scenario_row(
    peer: &Peer,
    scenario: &Scenario,
    rounds: Result<Vec<Round<Outcome>>, Failure>,
    columns: usize,
) -> Vec<Cell> {
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(why) => return without(peer, &why, columns),
    };
    let (ours, theirs): (Vec<_>, Vec<_>) = rounds.iter().map(|(a, b)| (a, b)).unzip();
    let ahead = ours.iter().zip(&theirs).map(|(ours, theirs)| scenario.ahead(ours, theirs));
    let cpu = |of: &[&Outcome]| Cell::times(of.iter().map(|it| it.cpu)).short();
    let server = |of: &[&Outcome]| Cell::times(of.iter().map(|it| it.server)).short();
    let shares = |of: &[&Outcome]| Cell::shares(of.iter().map(|it| it.shares)).short();
    vec![
        peer.label().into(),
        scenario.cell(&ours),
        scenario.cell(&theirs),
        Cell::ratios(ahead),
        cpu(&ours),
        cpu(&theirs),
        server(&ours),
        server(&theirs),
        shares(&ours),
        shares(&theirs),
    ]
}
