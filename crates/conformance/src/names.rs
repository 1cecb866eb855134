//! Names: all valid ones work, and no two collide (G16).

use super::kit::{How, Recipe, Terms, line};
use super::{Ctx, group};
use holdline::Client;
use holdline::ErrorKind;
use holdline::Name;

group! { "names":
    odd_names_are_names,
    look_alikes_are_different,
    the_longest_names_are_different,
    bad_names_are_refused,
    lists_are_by_prefix,
    odd_prefixes_are_just_prefixes,
}

const ODD: &[&str] = &[
    "plain",
    "with space",
    " ",
    "quote'",
    "double\"",
    "back`tick",
    "semi;colon--",
    "percent%",
    "under_score",
    "star*",
    "question?",
    "{braces}",
    "{}",
    "}{",
    "[a-z]",
    "slash/and/slash",
    "/",
    "//",
    "..",
    ".",
    "back\\slash",
    "dollar$1",
    ":colon:",
    "a:b",
    "hash#",
    "a&b=c",
    "é",
    "é",
    "日本語",
    "🔒",
    "ß",
    "SS",
    "\u{feff}",
    "\u{202e}rtl",
    "null",
    "NULL",
    "0",
    "-1",
    "~",
    "%00",
    "%2F",
    "\\0",
    "$(id)",
    "|",
    "<tag>",
    "@{u}",
    "+",
    "ﬁ",
    "\u{a0}",
];

/// Whether the store refuses the name, as it must if it cannot represent it.
async fn refused(ctx: &Ctx, client: &Client, name: &str) -> bool {
    if ctx.subject.takes(name) {
        return false;
    }
    for recipe in [Recipe::Mutex, Recipe::MultiOfOne, Recipe::Election, Recipe::Reentrant] {
        let result = recipe.take(client, name, How::Try, Terms::LONG).await;
        assert_eq!(result.err().expect("no such name").kind(), ErrorKind::Invalid, "{name:?}");
    }
    assert!(client.list(name).await.expect("the store is there").is_empty(), "{name:?}");
    true
}

async fn odd_names_are_names(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    for odd in ODD {
        let name = ctx.name(odd);
        if refused(&ctx, &one, &name).await {
            continue;
        }
        let held = Recipe::Mutex.lock(&one, &name).await;
        assert!(Recipe::Mutex.try_lock(&two, &name).await.is_none(), "{odd:?}");
        let listed = two.list(&name).await.expect("the store is there");
        assert!(listed.iter().any(|found| found.as_str() == name), "{odd:?} is not in {listed:?}");
        let info = line(&two, &name, 1, 0).await;
        assert_eq!((info.name.as_str(), info.holders[0].id), (&*name, held.guard().ticket()));
        held.unlock().await.expect("it was held");
    }
    // Also without prefix and suffix; locked only if no other run holds it.
    for odd in ODD {
        if refused(&ctx, &one, odd).await {
            continue;
        }
        if let Some(held) = Recipe::Mutex.try_lock(&one, odd).await {
            held.unlock().await.expect("it was held");
        }
    }
}

/// All are held at once: similar names are different locks.
async fn look_alikes_are_different(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let alike = [
        "name",
        "Name",
        "NAME",
        "name ",
        " name",
        "name\u{200b}",
        "n\u{e4}me",
        "na\u{308}me",
        "name/",
        "name//",
        "/name",
        "name%",
        "name_",
        "nam_",
        "na%",
        "name*",
        "{name}",
        "name{}",
        "name.",
        "name:",
        "name::",
        "name%2F",
        "name\\",
        "'name'",
        "name\u{0301}",
        "ｎａｍｅ",
        "straße",
        "strasse",
        "STRASSE",
        "İ",
        "i",
        "I",
        "ı",
    ];
    let mut held = Vec::new();
    for name in alike {
        let name = ctx.name(name);
        if refused(&ctx, &one, &name).await {
            continue;
        }
        let lock = Recipe::Mutex.try_lock(&one, &name).await;
        held.push((lock.unwrap_or_else(|| panic!("{name:?} met another name")), name));
    }
    for (lock, name) in held {
        assert_eq!(line(&two, &name, 1, 0).await.holders[0].id, lock.guard().ticket());
        lock.unlock().await.expect("it was held");
    }
}

async fn the_longest_names_are_different(ctx: Ctx) {
    let client = ctx.client().await;
    let longest = |last: &str| {
        let start = ctx.name("");
        format!("{start}{}{last}", "x".repeat(Name::MAX - start.len() - last.len()))
    };
    let (a, b, c) = (longest("a"), longest("b"), longest("🔒"));
    let mut held = Vec::new();
    for name in [&a, &b, &c] {
        assert_eq!(name.len(), Name::MAX);
        held.push(Recipe::Mutex.try_lock(&client, name).await.expect("another name"));
    }
    assert!(Recipe::Mutex.try_lock(&ctx.client().await, &b).await.is_none());
    let listed = client.list(&a[..Name::MAX - 20]).await.expect("the store is there");
    assert_eq!(listed.len(), 3, "{listed:?}");
    for lock in held {
        lock.unlock().await.expect("it was held");
    }
}

async fn bad_names_are_refused(ctx: Ctx) {
    let client = ctx.client().await;
    let long = "x".repeat(Name::MAX + 1);
    for bad in ["", "a\nb", "a\0b", "\t", "\u{7f}", "\u{85}", long.as_str()] {
        for recipe in [Recipe::Mutex, Recipe::MultiOfOne, Recipe::Election, Recipe::Reentrant] {
            let result = recipe.take(&client, bad, How::Try, Terms::LONG);
            let error = result.await.err().expect("a bad name");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}: {error}");
        }
        assert_eq!(client.inspect(bad).await.expect_err("bad").kind(), ErrorKind::Invalid);
        let id = holdline::store::TicketId(1);
        let error = client.force_unlock(bad, id, "a test").await.expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}: {error}");
    }
}

async fn lists_are_by_prefix(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let names = ["b/2", "a", "b/1", "b", "c", "ab"].map(|name| ctx.name(name));
    let mut held = Vec::new();
    for name in &names {
        held.push(Recipe::Mutex.lock(&one, name).await);
    }
    let list = async |prefix: &str| {
        let found = two.list(&ctx.name(prefix)).await.expect("the store is there");
        found.iter().map(|name| name.as_str()[ctx.name("").len()..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list("").await, ["a", "ab", "b", "b/1", "b/2", "c"]);
    assert_eq!(list("b").await, ["b", "b/1", "b/2"]);
    assert_eq!(list("b/").await, ["b/1", "b/2"]);
    assert_eq!(list("B").await, [""; 0]);
    assert_eq!(list("none").await, [""; 0]);
    for lock in held {
        lock.unlock().await.expect("it was held");
    }
    assert_eq!(list("").await, [""; 0], "nobody is there any more");
}

async fn odd_prefixes_are_just_prefixes(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let names = ["a%b", "a_b", "a*b", "axb", "a[x]b", "a?b", "a\\b", "a'b", "é", "🔒x"];
    let mut held = Vec::new();
    for name in names {
        held.push(Recipe::Mutex.lock(&one, &ctx.name(name)).await);
    }
    for name in names {
        let mut prefixes = vec![name];
        prefixes.extend(name.char_indices().nth(2).map(|(at, _)| &name[..at]));
        for prefix in prefixes {
            let found = two.list(&ctx.name(prefix)).await.expect("the store is there");
            let found: Vec<_> = found.iter().map(Name::as_str).collect();
            assert_eq!(found, [ctx.name(name)], "by {prefix:?}");
        }
    }
    for lock in held {
        lock.unlock().await.expect("it was held");
    }
}
