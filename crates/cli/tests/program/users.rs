//! Several users of one machine, and where their locks are.

use super::common::{HOLDLINE, Place, Run, Running, finish, until};
use rustix::process::{Signal, geteuid};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two users who need no name, and a group that both are in.
const ONE: u32 = 64_711;
const TWO: u32 = 64_712;
const BOTH: u32 = 64_700;

/// Whether this process may become other users; if not, it is noted.
pub(crate) fn may_change_user() -> bool {
    if !geteuid().is_root() {
        holdline_testkit::missing("the right to become other users (root)");
    }
    geteuid().is_root()
}

/// A folder that all may enter, with a copy of the program that all may run.
pub(crate) fn place() -> (Place, PathBuf) {
    let place = Place::new();
    let open = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    };
    open(&place.path(""));
    let program = place.path("holdline");
    // By a process of its own: what another thread starts while this one writes the file would
    // have it open for writing as well for a moment, and so it could not be run.
    let copied = Command::new("cp").arg(HOLDLINE).arg(&program).status().expect("cp is there");
    assert!(copied.success(), "there is room");
    open(&program);
    (place, program)
}

/// The program as this user, with these groups and a strict umask.
pub(crate) fn user(
    place: &Place,
    program: &Path,
    uid: u32,
    groups: &str,
    url: &str,
    args: &[&str],
) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
    command.arg(if groups.is_empty() {
        "--clear-groups".into()
    } else {
        format!("--groups={groups}")
    });
    command.args(["sh", "-c", "umask 077; exec \"$0\" \"$@\""]).arg(program).args(args);
    command.env("HOLDLINE_STORE", url).env("HOLDLINE_CONFIG", "").env("HOME", place.path("home"));
    command.env_remove("HOLDLINE_HELD").env_remove("XDG_RUNTIME_DIR").current_dir(place.path(""));
    command
}

/// One user excludes the other, is seen, broken and waited for; a killed one is followed at once.
fn share(as_one: &dyn Fn(&[&str]) -> Command, as_two: &dyn Fn(&[&str]) -> Command) {
    let hold = ["run", "--lease", "600s", "x", "--", "sh", "-c", "echo in; read x"];
    let mut holder = Running::start(&mut as_one(&hold));
    assert_eq!(holder.line(), "in");
    let busy = finish(&mut as_two(&["run", "-n", "x", "true"]));
    assert_eq!(busy.code, 75, "{busy:?}");
    let mut waiter = Running::start(&mut as_two(&hold));
    until("the other waits", || finish(&mut as_one(&["status", "x"])).out.contains("waits"));
    // The lease is far longer than the test may take.
    holder.signal(Signal::KILL);
    assert_eq!(waiter.line(), "in");
    drop(holder);
    // Now the other way round; and this time the notice of a release wakes.
    let mut next = Running::start(&mut as_one(&hold));
    until("the one waits", || finish(&mut as_two(&["status", "x"])).out.contains("waits"));
    waiter.tell("\n");
    assert_eq!(waiter.end().code, 0);
    assert_eq!(next.line(), "in");
    next.signal(Signal::KILL);
    drop(next);
    let run = finish(&mut as_two(&["run", "-w", "50s", "x", "true"]));
    assert_eq!(run.code, 0, "{run:?}");
}

fn mode(path: &Path) -> (u32, u32) {
    let about = path.metadata().expect("it is there");
    (about.mode() & 0o7777, about.gid())
}

/// What root makes beside a user's own file is the user's.
#[test]
fn root_may_use_a_users_own_file_and_leaves_it_the_users() {
    if !may_change_user() {
        return;
    }
    let (place, program) = place();
    let home = place.path("own");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(ONE), Some(ONE)).unwrap();
    let file = home.join("locks.db");
    let url = format!("sqlite:{}", file.display());
    let as_user = |uid| {
        let (place, program, url) = (&place, &program, &url);
        move |args: &[&str]| user(place, program, uid, "", url, args)
    };
    assert_eq!(finish(&mut as_user(ONE)(&["status"])).code, 0);
    share(&as_user(0), &as_user(ONE));
    share(&as_user(ONE), &as_user(0));
    // A process of root's that was killed before a restart of the machine is seen to be dead.
    let hold = ["run", "--lease", "600s", "x", "--", "sh", "-c", "echo in; read x"];
    let mut holder = Running::start(&mut as_user(0)(&hold));
    assert_eq!(holder.line(), "in");
    holder.signal(Signal::KILL);
    drop(holder);
    let conn = rusqlite::Connection::open(&file).unwrap();
    conn.execute("UPDATE meta SET boot = 'another'", []).unwrap();
    let run = finish(&mut as_user(ONE)(&["run", "-n", "x", "true"]));
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn all_users_may_share_a_file() {
    if !may_change_user() {
        return;
    }
    let (place, program) = place();
    let url = format!("{}?mode=666", place.url());
    // The folder is root's: others can neither remove the files nor put links in their place.
    let made = finish(place.command(["status"]).env("HOLDLINE_STORE", &url));
    assert_eq!(made.code, 0, "{made:?}");
    let as_user = |uid| {
        let (place, program, url) = (&place, &program, place.url());
        move |args: &[&str]| user(place, program, uid, "", &url, args)
    };
    share(&as_user(ONE), &as_user(TWO));
    share(&as_user(0), &as_user(TWO));
    share(&as_user(ONE), &as_user(0));
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(&place.path(file)).0, 0o666, "{file}");
    }
    assert_eq!(mode(&place.path("locks.db.live")).0, 0o707 | 0o2070);
    let left = fs::read_dir(place.path("locks.db.live")).unwrap().count();
    assert!(left <= 3, "who was killed is tidied up by others: {left} are left");
}

/// What is beside the file may be anybody's: SQLite removes the log when the last program closes
/// the file, and programs that are not ours do close it.
#[test]
fn all_users_may_make_what_is_beside_a_file_for_all() {
    if !may_change_user() {
        return;
    }
    let (place, program) = place();
    let folder = place.path("open");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let url = "sqlite:open/locks.db?mode=666";
    let as_one = |args: &[&str]| user(&place, &program, ONE, "", url, args);
    let as_two = |args: &[&str]| user(&place, &program, TWO, "", url, args);
    let made = finish(&mut as_one(&["status"]));
    assert_eq!(made.code, 0, "{made:?}");
    for name in ["locks.db-wal", "locks.db-shm"] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    let live = folder.join("locks.db.live");
    fs::remove_dir_all(&live).unwrap();
    share(&as_two, &as_one);
    for name in ["locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(&folder.join(name)), (0o666, TWO), "{name}");
    }
    assert_eq!(mode(&live), (0o2777, TWO));
}

/// After `su`, the folder of the session is the other user's.
#[test]
fn root_leaves_nothing_in_the_folder_of_another_users_session() {
    if !may_change_user() {
        return;
    }
    let place = Place::new();
    let session = place.path("session");
    fs::create_dir(&session).unwrap();
    std::os::unix::fs::chown(&session, Some(ONE), Some(ONE)).unwrap();
    let in_session = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("XDG_RUNTIME_DIR", &session);
        command
    };
    let owner = std::process::id().to_string();
    let mut acquire = Running::start(&mut in_session(&["acquire", "x", "--owner", &owner]));
    let handle = acquire.line();
    assert_eq!(fs::read_dir(&session).unwrap().count(), 0);
    let released = finish(&mut in_session(&["release", &handle]));
    assert_eq!(released.code, 0, "{released:?}");
    assert_eq!(acquire.end().code, 0);
}

#[test]
fn a_group_may_share_a_file_and_others_are_refused() {
    if !may_change_user() {
        return;
    }
    let (place, program) = place();
    let folder = place.path("shared");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(ONE), Some(BOTH)).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o775)).unwrap();
    let url = format!("sqlite:shared/locks.db?mode=660&group={BOTH}");
    let both = BOTH.to_string();
    // The folder passes no group on, so the files would have that of the first user alone.
    let as_one = |args: &[&str]| user(&place, &program, ONE, &both, &url, args);
    let as_two = |args: &[&str]| user(&place, &program, TWO, &both, &url, args);
    share(&as_one, &as_two);
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(&folder.join(file)), (0o660, BOTH), "{file}");
    }
    assert_eq!(mode(&folder.join("locks.db.live")), (0o2770, BOTH));
    let stranger = finish(&mut user(&place, &program, 64_713, "", &url, &["run", "x", "true"]));
    assert_eq!(stranger.code, 69, "{stranger:?}");
    assert!(stranger.err.contains("Permission denied"), "{stranger:?}");
    let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "nothing is left behind: {names:?}");
}

#[test]
fn a_private_file_is_shared_by_naming_its_mode() {
    if !may_change_user() {
        return;
    }
    let (place, program) = place();
    assert_eq!(place.run(["run", "x", "true"]).code, 0);
    let alone = finish(&mut user(&place, &program, ONE, "", &place.url(), &["run", "x", "true"]));
    let examined = finish(&mut user(&place, &program, ONE, "", &place.url(), &["doctor"]));
    for (run, code, out) in [(&alone, 69, &alone.err), (&examined, 78, &examined.out)] {
        assert_eq!(run.code, code, "{run:?}");
        for part in ["for user 0 only (mode 600)", "?mode=666 (all users) or ?group=NAME"] {
            assert!(out.contains(part), "what to do is not said: {run:?}");
        }
    }
    let url = format!("{}?mode=666", place.url());
    let opened = finish(place.command(["run", "x", "true"]).env("HOLDLINE_STORE", &url));
    assert_eq!(opened.code, 0, "{opened:?}");
    let as_one = |args: &[&str]| user(&place, &program, ONE, "", &place.url(), args);
    let as_root = |args: &[&str]| user(&place, &program, 0, "", &place.url(), args);
    share(&as_one, &as_root);
}

#[test]
fn the_file_of_the_machine_is_the_default_of_all_users() {
    if !may_change_user() {
        return;
    }
    let (_place, program) = place();
    // Users of a machine of their own: /var/lib is empty, for this process and its children.
    let script = r#"
        set -e
        mount -t tmpfs none /var/lib
        chmod 755 /var/lib; mkdir -m 755 /var/lib/holdline
        export HOME=/nonexistent HOLDLINE_CONFIG=
        unset HOLDLINE_STORE HOLDLINE_STATE XDG_STATE_HOME HOLDLINE_HELD
        "$H" --store 'sqlite:/var/lib/holdline/locks.db?mode=666' status > /dev/null
        as() { uid=$1; shift; setpriv --reuid="$uid" --regid="$uid" --clear-groups "$H" "$@"; }
        "$H" run cron -- setpriv --reuid=64711 --clear-groups \
            env -u HOLDLINE_STORE -u HOLDLINE_HELD \
            "$H" run -n cron -- echo both || echo "busy $?"
        as 64711 run cron -- true
        as 64712 doctor --quiet --lease 60s >&2 || echo "doctor $?"
        as 64712 status
        HOLDLINE_STATE=/tmp/none/x.db as 64712 status || echo "code $?"
        chmod 600 /var/lib/holdline/locks.db
        as 64712 status || echo "code $?"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", script]).env("H", program);
    let Run { code, out, err } = finish(&mut command);
    let machine = "sqlite:/var/lib/holdline/locks.db (shared by all users of this machine)";
    let nobody = format!("no lock is held or waited for in {machine}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((code, lines), (0, vec!["busy 75", &nobody, "code 69", "code 69"]), "{err}");
    assert!(err.contains("there is no folder /tmp/none"), "{err}");
    assert!(err.contains("Permission denied"), "no world of its own instead: {err}");
}

#[test]
fn mistakes_in_paths_are_errors() {
    let place = Place::new();
    for (url, code, part) in [
        ("sqlite:none/x.db", 69, "there is no folder"),
        ("sqlite:~/x.db", 64, "~ is left as it is"),
        ("sqlite::memory:", 64, "it must be a path"),
        ("sqlite:file:x.db", 64, "it must be a path"),
        ("sqlite:x.db?mode=640", 64, "mode must be"),
        ("sqlite:x.db?group=no-such-group", 64, "there is no group"),
        ("sqlite:x.db?busy_timeout=1s&busy_timeout=2s", 64, "given twice"),
        ("sqlite:x.db\n", 64, "contains a line end"),
        ("sqlite:x.db?moed=660", 64, "\"moed\" is not known"),
        ("memory:", 64, "keep nobody out"),
        ("quorum:sqlite:a,memory:b,sqlite:c", 64, "keep nobody out"),
    ] {
        for args in [&["run", "x", "true"][..], &["status"], &["acquire", "x"]] {
            let mut command = place.command(args);
            let run = finish(command.env("HOLDLINE_STORE", url).current_dir(place.path("")));
            assert_eq!(run.code, code, "{url}: {run:?}");
            assert!(run.err.contains(part), "{url}: {run:?}");
        }
    }
    assert!(place.files().is_empty(), "nothing is left behind");
}

#[test]
fn a_relative_path_is_the_same_store_for_the_command() {
    let place = Place::new();
    let inner = format!("cd / && {HOLDLINE} run -n --store \"$HOLDLINE_STORE\" y -c 'echo both'");
    let mut command = place.command(["run", "--store", "sqlite:locks.db", "x", "-c", &inner]);
    let run = finish(command.current_dir(place.path("")));
    assert_eq!((run.code, run.out.as_str()), (0, "both\n"), "{run:?}");
    let mut command = place.command(["run", "x", "-c", "echo $HOLDLINE_STORE"]);
    command.env_remove("HOLDLINE_STORE").env("HOLDLINE_STATE", "locks.db");
    let run = finish(command.current_dir(place.path("")));
    let whole = place.path("").canonicalize().unwrap().join("locks.db");
    assert_eq!(run.out.trim(), format!("sqlite:{}", whole.display()), "{run:?}");
}
