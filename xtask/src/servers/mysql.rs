//! One MariaDB server, and one MySQL server.
//!
//! Both take the user `holdline`, which may do anything, without a password, and have an empty
//! database `holdline`.

use super::apart::Apart;
use super::topology::{Node, Prepare, Probe, Program, Topology};

/// MariaDB's server.
const MARIADBD: Program = Program {
    binary: "mariadbd",
    package: "mariadb-server-core",
    elsewhere: "brew install mariadb, or https://mariadb.org/download",
    folders: &[],
    jars: &[],
    wheel: None,
    apart: None,
};

/// Makes an empty data folder.
const MARIADB_INSTALL_DB: Program = Program { binary: "mariadb-install-db", ..MARIADBD };

/// What that one calls; here so that it is looked for and installed.
const MY_PRINT_DEFAULTS: Program =
    Program { binary: "my_print_defaults", package: "mariadb-client-core", ..MARIADBD };

/// MySQL's server. Debian's stable versions have none.
const MYSQLD: Program = Program {
    binary: "mysqld",
    package: "mysql-server-core",
    elsewhere: "https://dev.mysql.com/downloads/mysql",
    folders: &[],
    jars: &[],
    wheel: None,
    apart: Some(&Apart {
        suite: "unstable",
        package: "mysql-server-core",
        binary: "usr/sbin/mysqld",
        args: &[
            "--no-defaults",
            "--basedir={files}/usr",
            "--lc-messages-dir={files}/usr/share/mysql",
        ],
    }),
};

/// Run at each start.
const INIT: &str = "CREATE USER IF NOT EXISTS 'holdline'@'%';\n\
                    GRANT ALL ON *.* TO 'holdline'@'%' WITH GRANT OPTION;\n\
                    CREATE DATABASE IF NOT EXISTS holdline;\n";

/// `mariadb`
pub(super) const MARIADB: Topology = Topology {
    name: "mariadb",
    about: "one MariaDB server",
    env: "HOLDLINE_TEST_MARIADB",
    url: "mysql://holdline@127.0.0.1:{+54}/holdline",
    stages: &[&[Node {
        name: "mariadb",
        program: &MARIADBD,
        prepare: &[
            Prepare { program: &MY_PRINT_DEFAULTS, args: &["--version"] },
            Prepare {
                program: &MARIADB_INSTALL_DB,
                args: &[
                    "--no-defaults",
                    "--datadir={dir}/data",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                ],
            },
        ],
        args: &[
            "--no-defaults",
            "--datadir={dir}/data",
            "--port={+54}",
            "--bind-address=127.0.0.1",
            "--socket={dir}/socket",
            "--pid-file={dir}/pid",
            "--init-file={dir}/init.sql",
            "--max-connections=500",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
        ],
        files: &[("init.sql", INIT)],
        ports: &[54],
        up: Probe::Mysql,
        not_as_root: true,
    }]],
    setup: None,
    ready: &[(54, Probe::Mysql)],
};

/// `mysql`
pub(super) const MYSQL: Topology = Topology {
    name: "mysql",
    about: "one MySQL server",
    env: "HOLDLINE_TEST_MYSQL",
    url: "mysql://holdline@127.0.0.1:{+55}/holdline",
    stages: &[&[Node {
        name: "mysql",
        program: &MYSQLD,
        prepare: &[Prepare {
            program: &MYSQLD,
            args: &[
                "--initialize-insecure",
                "--user=root",
                "--datadir={dir}/data",
                "--secure-file-priv=NULL",
            ],
        }],
        args: &[
            // Unlike `nobody`, root can read a checkout wherever it is.
            "--user=root",
            "--datadir={dir}/data",
            "--port={+55}",
            "--bind-address=127.0.0.1",
            "--socket={dir}/socket",
            "--pid-file={dir}/pid",
            "--init-file={dir}/init.sql",
            "--secure-file-priv=NULL",
            "--mysqlx=0",
            "--max-connections=500",
            "--innodb-buffer-pool-size=64M",
            "--innodb-redo-log-capacity=32M",
        ],
        files: &[("init.sql", INIT)],
        ports: &[55],
        up: Probe::Mysql,
        not_as_root: false,
    }]],
    setup: None,
    ready: &[(55, Probe::Mysql)],
};
