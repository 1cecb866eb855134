//! The messages about a cluster's members and their status: see [`proto`](crate::proto).

#![allow(missing_docs, reason = "etcd's `rpc.proto` says what they mean")]

use crate::proto::{Headed, Header, headed};
use prost::Message;

pub const STATUS: &str = "/etcdserverpb.Maintenance/Status";
pub const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
pub const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";

/// A request without arguments.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub size: i64,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub in_use: i64,
    #[prost(bool, tag = "10")]
    pub learner: bool,
    /// Since 3.6.
    #[prost(int64, tag = "12")]
    pub quota: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Alarms {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<Alarm>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Alarm {
    #[prost(uint64, tag = "1")]
    pub member: u64,
    #[prost(int32, tag = "2")]
    pub kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Members {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Member {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(bool, tag = "5")]
    pub learner: bool,
}

headed!(Status, Alarms, Members);
