//! One PostgreSQL server, and one behind a PgBouncer that pools by transaction.
//!
//! Both take any user without a password, but for `with_password` (a role that a test creates),
//! which is asked for one.

use super::topology::{Node, Prepare, Probe, Program, Topology};

/// Debian keeps the programs of each version in a folder of their own.
const FOLDERS: &[&str] = &[
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/lib/postgresql/13/bin",
];

/// The server.
const POSTGRES: Program = Program {
    binary: "postgres",
    package: "postgresql",
    elsewhere: "brew install postgresql, or https://www.postgresql.org/download",
    folders: FOLDERS,
    jars: &[],
    wheel: None,
    apart: None,
};

/// Makes an empty database cluster.
const INITDB: Program = Program { binary: "initdb", ..POSTGRES };

/// The pooler.
const PGBOUNCER: Program = Program {
    binary: "pgbouncer",
    package: "pgbouncer",
    elsewhere: "brew install pgbouncer, or https://www.pgbouncer.org/install.html",
    folders: &[],
    ..POSTGRES
};

/// Makes an empty database cluster, whose superuser is `postgres`.
const EMPTY: &[Prepare] = &[Prepare {
    program: &INITDB,
    args: &["-D", "{dir}/data", "-U", "postgres", "--encoding=UTF8", "--locale=C", "--no-sync"],
}];

/// Asks nobody for a password, but for one role.
const HBA: &str = "host all with_password 127.0.0.1/32 scram-sha-256\n\
                   host all all 127.0.0.1/32 trust\n\
                   host replication all 127.0.0.1/32 trust\n";

/// A server of its own, without a Unix socket, whose shared memory goes with its folder.
macro_rules! postgres_node {
    ($name:literal, $port:literal) => {
        Node {
            name: $name,
            program: &POSTGRES,
            prepare: EMPTY,
            args: &[
                "-D",
                "{dir}/data",
                "-p",
                concat!("{+", $port, "}"),
                "-c",
                "hba_file={dir}/pg_hba.conf",
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
                "-c",
                "max_connections=300",
                "-c",
                "max_prepared_transactions=10",
                "-c",
                "dynamic_shared_memory_type=mmap",
                "-c",
                "max_wal_size=256MB",
                "-c",
                "wal_level=logical",
            ],
            files: &[("pg_hba.conf", HBA)],
            ports: &[$port],
            up: Probe::Postgres,
            not_as_root: true,
        }
    };
}

/// `postgres-single`
pub(super) const SINGLE: Topology = Topology {
    name: "postgres-single",
    about: "one PostgreSQL server",
    env: "HOLDLINE_TEST_POSTGRES",
    url: "postgres://postgres@127.0.0.1:{+50}/postgres",
    stages: &[&[postgres_node!("postgres", 50)]],
    setup: None,
    ready: &[(50, Probe::Postgres)],
};

/// `postgres-pooled`
pub(super) const POOLED: Topology = Topology {
    name: "postgres-pooled",
    about: "PgBouncer (pool_mode=transaction); its server listens one port above",
    env: "HOLDLINE_TEST_POSTGRES_POOLED",
    url: "postgres://postgres@127.0.0.1:{+52}/postgres",
    stages: &[
        &[postgres_node!("postgres", 53)],
        &[Node {
            name: "pgbouncer",
            program: &PGBOUNCER,
            prepare: &[],
            args: &["{dir}/pgbouncer.ini"],
            files: &[("pgbouncer.ini", BOUNCER_INI)],
            ports: &[52],
            up: Probe::Listens,
            not_as_root: true,
        }],
    ],
    setup: None,
    ready: &[(52, Probe::Postgres)],
};

/// Logs every client in as `postgres`, and gives it a server's connection for a transaction.
const BOUNCER_INI: &str = "[databases]\n\
                           * = host=127.0.0.1 port={+53} user=postgres\n\
                           [pgbouncer]\n\
                           listen_addr = 127.0.0.1\n\
                           listen_port = {+52}\n\
                           unix_socket_dir =\n\
                           auth_type = any\n\
                           pool_mode = transaction\n\
                           max_client_conn = 1000\n\
                           default_pool_size = 20\n\
                           ignore_startup_parameters = extra_float_digits\n";
