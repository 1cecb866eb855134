//! One MariaDB server, and one MySQL server.
//!
//! Both have a superuser `holdline` without a password, and an empty database `holdline`.

use crate::{Deployment, Node, OtherRelease, Private, Probe, Program, Topology, free_port};

/// MariaDB's server.
pub const MARIADBD: Program = Program::new(
    "mariadbd",
    "mariadb-server-core",
    "brew install mariadb, or https://mariadb.org/download",
);

/// The program that makes an empty data folder.
const MARIADB_INSTALL_DB: Program = Program { binary: "mariadb-install-db", ..MARIADBD };

/// A program that `mariadb-install-db` calls, listed here so that it is found and installed.
const MY_PRINT_DEFAULTS: Program =
    Program { binary: "my_print_defaults", package: "mariadb-client-core", ..MARIADBD };

/// MySQL's server. Debian's stable versions have none.
pub const MYSQLD: Program = Program {
    apart: Some(&OtherRelease {
        suite: "unstable",
        package: "mysql-server-core",
        binary: "usr/sbin/mysqld",
        other: Some("mariadb"),
        args: &[
            "--no-defaults",
            "--basedir={files}/usr",
            "--lc-messages-dir={files}/usr/share/mysql",
        ],
        whole: true,
    }),
    ..Program::new("mysqld", "mysql-server-core", "https://dev.mysql.com/downloads/mysql")
};

/// The statements to run at each start.
const INIT: &str = "CREATE USER IF NOT EXISTS 'holdline'@'%';\n\
                    GRANT ALL ON *.* TO 'holdline'@'%' WITH GRANT OPTION;\n\
                    CREATE DATABASE IF NOT EXISTS holdline;\n";

/// A folder of its own for temporary tables: in a shared folder, a starting server removes those of
/// others.
const TMPDIR: &str = "--tmpdir={dir}";

/// A server with the arguments common to both kinds, after the first ones of its own.
fn node(name: &str, program: &'static Program, port: u16, first: &str) -> Node {
    Node::new(name, program, port, Probe::Mysql).file("init.sql", INIT).args([
        first,
        "--datadir={dir}/data",
        TMPDIR,
        &format!("--port={port}"),
        "--bind-address=127.0.0.1",
        "--socket={dir}/socket",
        "--pid-file={dir}/pid",
        "--init-file={dir}/init.sql",
        "--max-connections=500",
        "--innodb-buffer-pool-size=64M",
    ])
}

/// A MariaDB server.
pub fn mariadb(name: &str, port: u16) -> Node {
    node(name, &MARIADBD, port, "--no-defaults")
        .user("nobody")
        .before(&MY_PRINT_DEFAULTS, ["--version"])
        .before(
            &MARIADB_INSTALL_DB,
            [
                "--no-defaults",
                "--datadir={dir}/data",
                TMPDIR,
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
        )
        .args(["--innodb-log-file-size=32M"])
}

/// A MySQL server. It runs as root, which unlike `nobody` can read a checkout anywhere.
pub fn mysql(name: &str, port: u16) -> Node {
    node(name, &MYSQLD, port, "--user=root")
        .before(
            &MYSQLD,
            ["--initialize-insecure", "--user=root", "--datadir={dir}/data", TMPDIR, NO_FILES],
        )
        .args([NO_FILES, "--mysqlx=0", "--innodb-redo-log-capacity=32M"])
}

/// A member of a group of MySQL servers (group replication) that all take writes. The ports are its
/// own, its port for the group, and that of the first member, which founds the group. A member
/// answers before it has joined.
fn member(name: &str, [port, own, first]: [u16; 3]) -> Node {
    let member = [
        format!("--server-id={port}"),
        format!("--loose-group-replication-local-address=127.0.0.1:{own}"),
        format!("--loose-group-replication-group-seeds=127.0.0.1:{first}"),
        format!("--loose-group-replication-bootstrap-group={}", u8::from(own == first)),
    ];
    mysql(name, port).also_listens([own]).file("init.sql", member_init()).args(GROUP).args(member)
}

/// The arguments of all members, above all to join the group from their start.
const GROUP: [&str; 9] = [
    "--plugin-load-add=group_replication.so",
    "--log-bin=binlog",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--report-host=127.0.0.1",
    "--loose-group-replication-group-name=3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "--loose-group-replication-single-primary-mode=OFF",
    "--loose-group-replication-enforce-update-everywhere-checks=ON",
    "--loose-group-replication-message-cache-size=134217728",
];

/// The statements that each member runs for itself, without replication.
fn member_init() -> String {
    format!(
        "SET SESSION sql_log_bin = 0;\n{INIT}CHANGE REPLICATION SOURCE TO \
         SOURCE_USER = 'holdline' FOR CHANNEL 'group_replication_recovery';\n"
    )
}

/// Two members of a group that both take writes; the URL is that of the first.
pub fn group() -> Deployment {
    let [one, first, two, second] = [(); 4].map(|()| free_port());
    Deployment::new(url(one), vec![member("one", [one, first, first])])
        .then(vec![member("two", [two, second, first])])
}

/// Forbids statements to read or write files.
const NO_FILES: &str = "--secure-file-priv=NULL";

/// A private server of this kind; `None`, with a note, if it is not installed.
pub fn start(name: &str, kind: fn(&str, u16) -> Node) -> Option<Private> {
    Private::launch(name, || {
        let port = free_port();
        Deployment::new(url(port), vec![kind("server", port)])
    })
}

/// The URL of a server on this port.
pub fn url(port: u16) -> String {
    format!("mysql://holdline@127.0.0.1:{port}/holdline")
}

/// `mariadb`
pub const MARIADB: Topology = Topology {
    name: "mariadb",
    about: "one MariaDB server",
    env: "HOLDLINE_TEST_MARIADB",
    ports: 54..55,
    build: |ports| Deployment::new(url(ports[0]), vec![mariadb("mariadb", ports[0])]),
};

/// `mysql`
pub const MYSQL: Topology = Topology {
    name: "mysql",
    about: "one MySQL server",
    env: "HOLDLINE_TEST_MYSQL",
    ports: 55..56,
    build: |ports| Deployment::new(url(ports[0]), vec![mysql("mysql", ports[0])]),
};
