//! One PostgreSQL server, and one behind a PgBouncer that pools by transaction.
//!
//! Both accept any user without a password, except `with_password` (a role that a test creates),
//! which needs one.

use crate::{Deployment, Node, Private, Probe, Program, Topology, free_port};
use rustix::process::Signal;

/// The server. Debian has a folder of programs for each version.
pub const POSTGRES: Program = Program {
    folders: &["/usr/lib/postgresql/*/bin"],
    ..Program::new(
        "postgres",
        "postgresql",
        "brew install postgresql, or https://www.postgresql.org/download",
    )
};

/// The program that makes an empty database cluster.
const INITDB: Program = Program { binary: "initdb", ..POSTGRES };

/// The pooler.
pub const PGBOUNCER: Program = Program::new(
    "pgbouncer",
    "pgbouncer",
    "brew install pgbouncer, or https://www.pgbouncer.org/install.html",
);

/// The program that copies a running server's data.
const PG_BASEBACKUP: Program = Program { binary: "pg_basebackup", ..POSTGRES };

/// Rules that ask for a password for one role only.
const HBA: &str = "host all with_password 127.0.0.1/32 scram-sha-256\n\
                   host all all 127.0.0.1/32 trust\n\
                   host replication all 127.0.0.1/32 trust\n";

/// A server without a Unix socket, whose shared memory is in its folder. Its superuser is
/// `postgres`.
pub fn node(name: &str, port: u16) -> Node {
    let empty = ["-D", "{dir}/data", "-U", "postgres", "--encoding=UTF8", "--locale=C"];
    server(name, port).before(&INITDB, [&empty[..], &["--no-sync"]].concat())
}

/// A standby of the server on the port `primary`, where it has the slot `standby`. It reports to
/// the primary which row versions its queries still need.
pub fn standby(port: u16, primary: u16) -> Node {
    let (primary, copy) = (primary.to_string(), ["-D", "{dir}/data", "-h", "127.0.0.1", "-p"]);
    let slot = ["-U", "postgres", "-R", "-C", "-S", "standby", "-c", "fast", "--no-sync"];
    server("standby", port).before(&PG_BASEBACKUP, [&copy[..], &[&primary], &slot].concat()).args([
        "-c",
        "hot_standby_feedback=on",
        "-c",
        "wal_receiver_status_interval=1s",
    ])
}

fn server(name: &str, port: u16) -> Node {
    Node::new(name, &POSTGRES, port, Probe::Postgres)
        .user("nobody")
        // The postmaster ends its own processes at once.
        .stops_by(Signal::QUIT)
        .with_children()
        .args(["-D", "{dir}/data", "-p", &port.to_string()])
        .args([
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
        ])
        .file("pg_hba.conf", HBA)
}

/// A pooler in front of the server on the port `server`. It logs in every client as `postgres`, and
/// pools connections by transaction. `settings` are more lines of its configuration.
fn pooler(port: u16, server: u16, settings: &str) -> Node {
    Node::new("pgbouncer", &PGBOUNCER, port, Probe::Postgres)
        .user("nobody")
        .args(["{dir}/pgbouncer.ini"])
        .file(
            "pgbouncer.ini",
            format!(
                "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = transaction\nmax_client_conn = 1000\n\
                 ignore_startup_parameters = extra_float_digits\n\
                 {settings}\n"
            ),
        )
}

/// A server behind a pooler with these settings, whose port comes first.
pub fn pooled([front, server]: [u16; 2], settings: &str) -> Deployment {
    Deployment::new(url(front), vec![node("postgres", server)])
        .then(vec![pooler(front, server, settings)])
}

/// A private server; `None`, with a note, if it is not installed.
pub fn start(name: &str) -> Option<Private> {
    Private::launch(name, || {
        let port = free_port();
        Deployment::new(url(port), vec![node("postgres", port)])
    })
}

/// The URL of a server, or a pooler, on this port.
pub fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

/// `postgres-single`
pub const SINGLE: Topology = Topology {
    name: "postgres-single",
    about: "one PostgreSQL server",
    env: "HOLDLINE_TEST_POSTGRES",
    ports: 50..51,
    build: |ports| Deployment::new(url(ports[0]), vec![node("postgres", ports[0])]),
};

/// `postgres-pooled`
pub const POOLED: Topology = Topology {
    name: "postgres-pooled",
    about: "PgBouncer (pool_mode=transaction); its server listens one port above",
    env: "HOLDLINE_TEST_POSTGRES_POOLED",
    ports: 52..54,
    build: |ports| pooled([ports[0], ports[1]], "default_pool_size = 20"),
};
