//! Runs every example end to end as a program, on a file store of its own (and on a server, if its
//! URL is in the environment). Tests wait for events, never for time to pass. The suite for
//! `own_store` is in its own file.

mod cron_job;
mod fenced_databases;
mod fenced_sql;
mod leader;
mod one_owner;
mod optimistic;
mod roll_back;
mod support;
mod web_service;
mod worker;
