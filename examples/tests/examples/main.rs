//! Every example, run end to end as the program that it is, on a store in a file of its own (and on
//! a server, if its URL is in the environment). Tests wait for what must happen, never for time to
//! pass. The suite for `own_store` is in its own file.

mod cron_job;
mod fenced_databases;
mod fenced_sql;
mod leader;
mod one_owner;
mod optimistic;
mod support;
mod web_service;
mod worker;
