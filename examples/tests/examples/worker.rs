//! The workers: three processes under one limit, and a permit that is lost.

use crate::support::{Example, Store};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::process::Command;

fn command(store: &Store, time: &str, arguments: &[&str]) -> Command {
    let mut command = store.command(env!("CARGO_BIN_EXE_worker"));
    command.env("JOB_MS", time).args(arguments);
    command
}

/// Three processes record when their jobs begin and end, all in one file.
#[test]
fn all_processes_together_run_no_more_jobs_than_there_are_permits() {
    for store in Store::file_and("HOLDLINE_TEST_REDIS", "?prefix=examples-limit-") {
        let path = store.folder.path().join("jobs.log");
        let log = OpenOptions::new().create(true).append(true).open(&path).expect("it can be made");
        let workers = ["a", "b", "c"].map(|who| {
            let jobs = [1, 2, 3, 4].map(|number| format!("{who}{number}"));
            let jobs = jobs.each_ref().map(String::as_str);
            let mut command = command(&store, "50", &[&["2"], &jobs[..]].concat());
            command.stdout(log.try_clone().expect("there are descriptors")).spawn().expect("built")
        });
        for mut worker in workers {
            assert!(worker.wait().expect("it is our child").success());
        }
        let text = std::fs::read_to_string(&path).expect("it was written");
        let (mut running, mut ended) = (BTreeSet::new(), BTreeSet::new());
        for line in text.lines() {
            match line.split_once(' ').expect("two words") {
                ("start", job) => assert!(running.insert(job), "{job} runs twice:\n{text}"),
                ("end", job) => assert!(running.remove(job) && ended.insert(job), "{job}:\n{text}"),
                _ => panic!("{line}"),
            }
            assert!(running.len() <= 2, "three at once:\n{text}");
        }
        assert_eq!(ended.len(), 12, "{text}");
        assert!(store.is_free("mail-server"));
    }
}

#[test]
fn a_job_whose_permit_is_lost_is_stopped_and_done_again() {
    for store in Store::file_and("HOLDLINE_TEST_REDIS", "?prefix=examples-loss-") {
        // So long that only the loss ends the job.
        let worker = Example::start(command(&store, "600000", &["1", "only"]));
        worker.says("start only");
        store.break_lock("mail-server", store.holder("mail-server"));
        worker.says("stopped only");
        worker.says("start only");
    }
}
