//! etcd: members, alarms, and what a URL names.

use super::{at_worst, examine, found, worst};
use holdline::doctor::Level;
use holdline_testkit::{etcd, until};
use std::io::{Read, Write};

/// Has etcd's gateway for HTTP do something, as a client of gRPC would.
fn post(port: u16, path: &str, body: &str) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it runs");
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_wrong_with_three_members_until_one_is_away() {
    let Some(mut cluster) = etcd::start(3) else { return };
    let report = examine(&cluster.url()).await;
    at_worst(&report, Level::Advice); // Debian's version is old
    found(&report, "members", Level::Ok, "3 members");
    found(&report, "lock", Level::Ok, "holdline-doctor");
    let roles = report.findings.iter().filter(|finding| finding.check == "role");
    assert_eq!(roles.filter(|role| role.found == "leader").count(), 1, "{report:#?}");
    assert!(cluster.keys().is_empty(), "{:?}", cluster.keys());
    let one = format!("etcd://127.0.0.1:{}", cluster.servers[0].port());
    found(&examine(&one).await, "members", Level::Advice, "the URL names 1");
    cluster.kill(0);
    let mut report = examine(&cluster.url()).await;
    until("the others have a leader", async || {
        report = examine(&cluster.url()).await;
        worst(&report, "lock").level == Level::Ok
            && worst(&report, "members").found.contains("2 answered")
    })
    .await;
    found(&report, "reachable", Level::Warning, "could not be reached");
    found(&report, "members", Level::Warning, "2 answered");
    found(&report, "lock", Level::Ok, "holdline-doctor");
    cluster.kill(1);
    let report = examine(&cluster.url()).await;
    assert_eq!(report.worst(), Level::Problem, "{report:#?}");
    assert!(!report.answers, "{report:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_alone_that_is_full_is_told() {
    let Some(cluster) = etcd::start(1) else { return };
    let report = examine(&cluster.url()).await;
    found(&report, "members", Level::Warning, "1 member,");
    found(&report, "size", Level::Ok, "quota");
    let port = cluster.servers[0].port();
    let body = r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#;
    let answer = post(port, "/v3/maintenance/alarm", body);
    assert!(answer.contains("NOSPACE"), "{answer}");
    let report = examine(&cluster.url()).await;
    found(&report, "alarm", Level::Problem, "NOSPACE");
    found(&report, "lock", Level::Problem, "full");
}
