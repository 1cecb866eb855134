//! Plans: what to measure, and how often. Presets are named plans.

use crate::cell::{Cell, Scenario};
use crate::mode::Mode;
use std::time::Duration;

/// A plan of measurements.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The title of the report.
    pub title: String,
    /// The combinations.
    pub cells: Vec<Cell>,
    /// The number of rounds of each cell; the rounds of all cells take turns.
    pub rounds: usize,
    /// How long a round takes.
    pub time: Duration,
}

/// A plan with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The question that it answers, in one line.
    pub about: &'static str,
    /// The approximate duration in minutes.
    pub minutes: u32,
    grids: &'static [Grid],
    rounds: usize,
    seconds: f64,
}

/// The product of all its parameters.
#[derive(Clone, Copy, Debug)]
struct Grid {
    scenarios: &'static [&'static str],
    stores: &'static [&'static str],
    modes: &'static [&'static str],
    clients: &'static [usize],
    processes: &'static [usize],
    hold_ms: &'static [u64],
    delay_ms: &'static [u64],
    /// Whether there are as many names as clients, or one.
    own_names: bool,
    lease_s: u64,
}

const GRID: Grid = Grid {
    scenarios: &["mutex"],
    stores: &["redis"],
    modes: &["listen"],
    clients: &[10],
    processes: &[1],
    hold_ms: &[0],
    delay_ms: &[0],
    own_names: false,
    lease_s: 10,
};

/// The plans that have a name.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "polling",
        about: "polling on Redis beside listening on Redis and etcd",
        minutes: 8,
        grids: &[
            Grid {
                modes: &["poll-string", "listen"],
                clients: &[10, 100],
                hold_ms: &[0, 10],
                delay_ms: &[0, 5],
                ..GRID
            },
            Grid {
                stores: &["etcd"],
                clients: &[10, 100],
                hold_ms: &[0, 10],
                delay_ms: &[0, 5],
                ..GRID
            },
        ],
        rounds: 3,
        seconds: 5.0,
    },
    Preset {
        name: "starvation",
        about: "every way to wait on Redis, 16 clients: who gets nothing",
        minutes: 3,
        grids: &[Grid {
            modes: &[
                "listen",
                "listen-unfair",
                "poll",
                "poll-unfair",
                "poll-string:fixed",
                "poll-string:shrinking",
                "poll-string:jittered",
            ],
            clients: &[16],
            hold_ms: &[0, 5],
            ..GRID
        }],
        rounds: 3,
        seconds: 3.0,
    },
    Preset {
        name: "contenders",
        about: "10, 100 and 1,000 clients on one name; databases 10 and 100",
        minutes: 6,
        grids: &[
            Grid { modes: &["poll-string", "listen"], clients: &[10, 100, 1000], ..GRID },
            Grid { stores: &["etcd"], clients: &[10, 100, 1000], ..GRID },
            Grid { stores: &["zookeeper"], clients: &[10, 100, 1000], ..GRID },
            Grid { stores: &["postgres", "mariadb"], clients: &[10, 100], ..GRID },
        ],
        rounds: 3,
        seconds: 5.0,
    },
    Preset {
        name: "names",
        about: "many names, one client each: what a store can do in a second",
        minutes: 2,
        grids: &[Grid {
            stores: &["redis", "etcd", "zookeeper", "postgres", "mariadb", "file"],
            clients: &[1, 64],
            own_names: true,
            ..GRID
        }],
        rounds: 3,
        seconds: 3.0,
    },
    Preset {
        name: "soak",
        about: "4 clients lock all the time for a minute: does a store get slower",
        minutes: 7,
        grids: &[
            Grid { modes: &["poll-string", "listen"], clients: &[4], ..GRID },
            Grid { stores: &["etcd", "zookeeper"], clients: &[4], ..GRID },
        ],
        rounds: 1,
        seconds: 60.0,
    },
    Preset {
        name: "local",
        about: "2 processes of 10 tasks: a client each, one connection, handed on",
        minutes: 1,
        grids: &[Grid {
            modes: &["listen", "listen-shared", "handoff"],
            clients: &[20],
            processes: &[2],
            hold_ms: &[0, 1],
            ..GRID
        }],
        rounds: 3,
        seconds: 3.0,
    },
    Preset {
        name: "crash",
        about: "the holder's process is killed, lease 3 s: when does the next one hold",
        minutes: 4,
        grids: &[
            Grid {
                scenarios: &["crash"],
                stores: &["redis", "etcd", "zookeeper", "postgres", "mariadb", "file"],
                lease_s: 3,
                ..GRID
            },
            Grid { scenarios: &["crash"], modes: &["poll-string", "handoff"], lease_s: 3, ..GRID },
        ],
        rounds: 5,
        seconds: 1.0,
    },
    Preset {
        name: "leader",
        about: "the leader of a cluster of three is killed: when is a lock granted",
        minutes: 3,
        grids: &[Grid {
            scenarios: &["leader"],
            stores: &["etcd-three", "zookeeper-three"],
            ..GRID
        }],
        rounds: 5,
        seconds: 1.0,
    },
    Preset {
        name: "kinds",
        about: "mutex, read-write lock, semaphore and burst, on every store",
        minutes: 4,
        grids: &[Grid {
            scenarios: &["mutex", "rwlock=10%", "semaphore=4", "burst"],
            stores: &["redis", "etcd", "zookeeper", "postgres", "mariadb", "file", "memory"],
            clients: &[32],
            hold_ms: &[1],
            ..GRID
        }],
        rounds: 3,
        seconds: 2.0,
    },
];

impl Preset {
    /// The preset of this name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Its plan.
    pub fn plan(&self) -> Plan {
        // Cells to be compared are measured one after another, so that other work on the machine
        // affects them alike.
        let mut loads: Vec<String> = Vec::new();
        let mut cells: Vec<(usize, Cell)> = Vec::new();
        for cell in self.grids.iter().flat_map(Grid::cells) {
            let load = cell.load();
            let at = loads.iter().position(|known| *known == load).unwrap_or(loads.len());
            if at == loads.len() {
                loads.push(load);
            }
            cells.push((at, cell));
        }
        cells.sort_by_key(|(at, _)| *at);
        Plan {
            title: format!("{}: {}", self.name, self.about),
            cells: cells.into_iter().map(|(_, cell)| cell).collect(),
            rounds: self.rounds,
            time: Duration::from_secs_f64(self.seconds),
        }
    }
}

impl Grid {
    fn cells(&self) -> Vec<Cell> {
        let modes: Vec<Mode> =
            self.modes.iter().map(|mode| mode.parse().expect("presets are right")).collect();
        let scenarios: Vec<Scenario> =
            self.scenarios.iter().map(|kind| kind.parse().expect("presets are right")).collect();
        let mut cells = Vec::new();
        for &scenario in &scenarios {
            for &hold in self.hold_ms {
                for &delay in self.delay_ms {
                    for (&clients, &processes) in pairs(self.clients, self.processes) {
                        for (&mode, store) in pairs(&modes, self.stores) {
                            cells.push(Cell {
                                scenario,
                                store: (*store).to_owned(),
                                mode,
                                clients,
                                processes,
                                names: if self.own_names { clients } else { 1 },
                                hold: Duration::from_millis(hold),
                                delay: Duration::from_millis(delay),
                                rate: None,
                                lease: Duration::from_secs(self.lease_s),
                            });
                        }
                    }
                }
            }
        }
        cells
    }
}

fn pairs<'a, A, B>(ones: &'a [A], others: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    ones.iter().flat_map(move |one| others.iter().map(move |other| (one, other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_makes_sense() {
        for preset in PRESETS {
            let plan = preset.plan();
            assert!(!plan.cells.is_empty());
            for cell in plan.cells {
                cell.check().unwrap();
            }
        }
    }

    #[test]
    fn the_polling_experiment_ends_within_ten_minutes() {
        let plan = Preset::named("polling").unwrap().plan();
        let rounds = plan.cells.len() * plan.rounds;
        assert_eq!(plan.cells.len(), 24);
        assert!(plan.time * u32::try_from(rounds).unwrap() < Duration::from_secs(500));
    }
}
