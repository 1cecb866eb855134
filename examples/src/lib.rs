//! The Rust of README and guides, compiled as tests of the documentation.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The guides, page by page.
#[cfg(doctest)]
pub mod guides {
    #[doc = include_str!("../../docs/guides/bench.md")]
    pub struct Bench;
    #[doc = include_str!("../../docs/guides/choosing.md")]
    pub struct Choosing;
    #[doc = include_str!("../../docs/guides/doctor.md")]
    pub struct Doctor;
    #[doc = include_str!("../../docs/guides/etcd.md")]
    pub struct Etcd;
    #[doc = include_str!("../../docs/guides/file.md")]
    pub struct File;
    #[doc = include_str!("../../docs/guides/mysql.md")]
    pub struct Mysql;
    #[doc = include_str!("../../docs/guides/postgres.md")]
    pub struct Postgres;
    #[doc = include_str!("../../docs/guides/program.md")]
    pub struct Program;
    #[doc = include_str!("../../docs/guides/quorum.md")]
    pub struct Quorum;
    #[doc = include_str!("../../docs/guides/redis.md")]
    pub struct Redis;
    #[doc = include_str!("../../docs/guides/sharing.md")]
    pub struct Sharing;
    #[doc = include_str!("../../docs/guides/zookeeper.md")]
    pub struct ZooKeeper;
}
