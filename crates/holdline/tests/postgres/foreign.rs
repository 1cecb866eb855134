//! Servers that speak PostgreSQL's protocol and are not PostgreSQL: what they would do is put
//! before the server's own functions in a role's search path.

use crate::server::{Server, private};
use holdline::{Error, ErrorKind, Mutex, open};

/// A role for which these functions come before the server's own.
async fn role(server: &Server, name: &str, functions: &str) {
    let sql = server.sql().await;
    let made = format!(
        "CREATE SCHEMA {name}; CREATE ROLE {name} LOGIN SUPERUSER; \
         ALTER ROLE {name} SET search_path = {name}, pg_catalog, public; \
         SET search_path = {name}, pg_catalog; {functions}"
    );
    sql.batch_execute(&made).await.expect("an administrator");
}

fn url(server: &Server, role: &str, scheme: &str) -> String {
    server.url().replace("postgres@", &format!("{role}@")) + "&scheme=" + scheme
}

async fn refused(server: &Server, role: &str, scheme: &str) -> Error {
    let error = open(&url(server, role, scheme)).await.expect_err("it cannot keep locks");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error
}

/// `CockroachDB` accepts them so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advisory_locks_that_exclude_nobody_are_refused() {
    let Some(server) = private("foreign_noop", &["fsync=off"]) else { return };
    let functions = "\
        CREATE FUNCTION pg_try_advisory_lock(bigint) RETURNS boolean RETURN true; \
        CREATE FUNCTION pg_try_advisory_xact_lock(bigint) RETURNS boolean RETURN true; \
        CREATE FUNCTION pg_advisory_unlock(bigint) RETURNS boolean RETURN true;";
    role(&server, "noop", functions).await;
    let error = refused(&server, "noop", "advisory").await;
    assert!(error.to_string().contains("exclude nobody"), "{error}");
    // The other functions are the server's own: a lock that nobody gets, and one that all get while
    // it is asked for by this function.
    for (name, taken) in [("never", "false"), ("half", "true")] {
        let functions =
            format!("CREATE FUNCTION pg_try_advisory_lock(bigint) RETURNS boolean RETURN {taken};");
        role(&server, name, &functions).await;
        refused(&server, name, "advisory").await;
    }
    let client = open(&url(&server, "noop", "table")).await.expect("opens");
    Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_is_refused_by_its_name() {
    let Some(server) = private("foreign_name", &["fsync=off"]) else { return };
    for (role_name, version, name) in [
        ("roach", "CockroachDB CCL v25.2.0 (x86_64-pc-linux-gnu)", Some("CockroachDB")),
        ("yuga", "PostgreSQL 15.12-YB-2025.1.0.1-b3 on x86_64-pc-linux-gnu", Some("YugabyteDB")),
        ("edb", "PostgreSQL 15.4 (EnterpriseDB Advanced Server 15.4.0) on x86_64", None),
    ] {
        let says = format!("CREATE FUNCTION version() RETURNS text RETURN '{version}';");
        role(&server, role_name, &says).await;
        for scheme in ["table", "row", "advisory", "shedlock"] {
            if let Some(name) = name {
                let error = refused(&server, role_name, scheme).await;
                assert!(error.to_string().contains(&format!("is {name},")), "{error}");
            } else {
                open(&url(&server, role_name, scheme)).await.expect("it is PostgreSQL");
            }
        }
    }
}
