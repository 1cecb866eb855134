//! How each store is used and set up, and what to choose: the pages of `docs/guides`.
//!
//! They are the files of the repository, which the folder `guides` of this crate leads to; the Rust
//! in them is compiled as tests. They are only in the documentation.
//!
//! - Which store, which lease, or no lock at all: [`choosing`]; measured on yours: [`mod@bench`].
//! - The stores: [`mod@file`], [`redis`], [`etcd`], [`zookeeper`], [`postgres`], [`mysql`],
//!   [`quorum`].
//! - Servers that speak a store's protocol: [`compatible`].
//! - How a store should be set up: [`doctor`]. Locks that are shared with other libraries:
//!   [`sharing`].
//! - The program `holdline`: [`program`].

/// One module for each page. What a page calls `[file]: file.md` at its end is a file beside it for
/// readers of the repository. Here `links.md` comes first, and of two definitions the first counts.
macro_rules! pages {
    ($($page:ident)*) => {$(
        #[doc = include_str!("guides/links.md")]
        #[doc = include_str!(concat!("../guides/", stringify!($page), ".md"))]
        pub mod $page {}
    )*};
}

pages! {
    bench choosing compatible doctor etcd file mysql postgres program quorum redis sharing zookeeper
}
