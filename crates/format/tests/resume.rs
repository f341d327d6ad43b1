//! Packing interrupted anywhere: nothing that opens is left, and the bytes come out the same.

mod common;

use cherenkov_format::pack::{self, Existing, Options};
use cherenkov_format::progress::{Silent, Stage, Status};
use cherenkov_format::{Error, Store, verify};
use common::*;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

#[test]
fn threads_change_no_byte() {
    let (tiny, _) = tiny();
    let with = |n: usize| Options { threads: NonZeroUsize::new(n), ..Options::default() };
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tiny.write(&src);
    let packed = [1, 5].map(|n| {
        let out = dir.path().join(format!("out{n}"));
        pack::pack(&src, &out, &with(n), &mut Silent).unwrap();
        contents(&out)
    });
    assert_eq!(packed[0], packed[1]);
}

/// Runs until the callback has been called `calls` times.
fn stop_after(calls: usize) -> impl FnMut(Status) -> ControlFlow<()> {
    let mut left = calls;
    move |_| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        ControlFlow::Continue(())
    }
}

#[test]
fn a_pack_stopped_anywhere_resumes_to_the_same_bytes() {
    let (tiny, _) = tiny();
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tiny.write(&src);
    let options = Options { threads: NonZeroUsize::new(2), ..Options::default() };
    let whole = dir.path().join("whole");
    let mut calls = 0;
    pack::pack(&src, &whole, &options, &mut |_: Status| {
        calls += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    let want = contents(&whole);
    assert!(calls > 40, "{calls}");
    for stop in 0..calls {
        let out = dir.path().join(format!("out{stop}"));
        let partial = dir.path().join(format!(".out{stop}.partial"));
        let error = pack::pack(&src, &out, &options, &mut stop_after(stop)).unwrap_err();
        assert!(matches!(error, Error::Cancelled { .. }), "{stop}: {error}");
        assert!(Store::open(&out).is_err());
        if Store::open(&partial).is_ok() {
            // Only the rename was left: it must be whole.
            verify::verify(&partial, &mut Silent).unwrap();
        }
        let mut resumed = 0;
        let report = pack::pack(&src, &out, &options, &mut |s: Status| {
            if s.stage == Stage::Convert {
                resumed = s.skipped;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(contents(&out), want, "stopped after {stop}");
        assert!(!partial.exists());
        assert!(report.resumed_bytes >= resumed);
        if stop > calls / 2 {
            assert!(report.resumed_bytes > 0, "{stop}");
        }
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_damaged_or_foreign_remainder_is_not_trusted() {
    let (tiny, _) = tiny();
    let dir = tempfile::tempdir().unwrap();
    let (src, out) = (dir.path().join("src"), dir.path().join("out"));
    tiny.write(&src);
    let whole = dir.path().join("whole");
    pack::pack(&src, &whole, &Options::default(), &mut Silent).unwrap();
    let want = contents(&whole);
    let partial = dir.path().join(".out.partial");
    // Bytes that the journal lists as written are not what they were.
    pack::pack(&src, &out, &Options::default(), &mut stop_after(60)).unwrap_err();
    for name in ["dense.bin", "experts.bin"] {
        let path = partial.join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes.iter_mut().for_each(|b| *b ^= 0x5a);
        fs::write(&path, bytes).unwrap();
    }
    fs::write(partial.join("manifest.json"), "{").unwrap();
    pack::pack(&src, &out, &Options::default(), &mut Silent).unwrap();
    assert_eq!(contents(&out), want);
    fs::remove_dir_all(&out).unwrap();
    // Another precision left it.
    pack::pack(&src, &out, &exact(), &mut stop_after(60)).unwrap_err();
    fs::write(partial.join("junk"), "x").unwrap();
    let report = pack::pack(&src, &out, &Options::default(), &mut Silent).unwrap();
    assert_eq!(report.resumed_bytes, 0);
    assert_eq!(contents(&out), want);
}

#[test]
fn force_replaces_a_store_when_the_new_one_is_whole() {
    let (tiny, _) = tiny();
    let dir = tempfile::tempdir().unwrap();
    let (src, out) = (dir.path().join("src"), dir.path().join("out"));
    tiny.write(&src);
    pack::pack(&src, &out, &exact(), &mut Silent).unwrap();
    let before = contents(&out);
    let error = pack::pack(&src, &out, &Options::default(), &mut Silent).unwrap_err().to_string();
    assert!(error.contains("already") && error.contains("force"), "{error}");
    let force = Options { existing: Existing::Replace, ..Options::default() };
    for stop in [0, 10, 60] {
        pack::pack(&src, &out, &force, &mut stop_after(stop)).unwrap_err();
        assert_eq!(contents(&out), before);
    }
    pack::pack(&src, &out, &force, &mut Silent).unwrap();
    let after = contents(&out);
    assert_ne!(before, after);
    // Killed between the two renames: the output is gone, both halves are beside it.
    pack::pack(&src, &out, &Options { ..exact() }, &mut Silent).unwrap_err();
    fs::rename(&out, dir.path().join(".out.partial")).unwrap();
    fs::create_dir(dir.path().join(".out.old")).unwrap();
    pack::pack(&src, &out, &force, &mut Silent).unwrap();
    assert_eq!(contents(&out), after);
    assert!(!dir.path().join(".out.old").exists());
    // Something that is no store is never replaced.
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("letter"), "dear").unwrap();
    pack::pack(&src, &home, &force, &mut Silent).unwrap_err();
    assert!(home.join("letter").exists());
}

const CHILD: &str = "CHERENKOV_FORMAT_TEST_CHILD";

/// Not a test by itself: the process that the next one kills.
#[test]
fn child_packs_slowly() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let dir = Path::new(&dir);
    let options = Options { threads: NonZeroUsize::new(2), ..Options::default() };
    pack::pack(&dir.join("src"), &dir.join("out"), &options, &mut |_: Status| {
        std::thread::sleep(std::time::Duration::from_millis(4));
        ControlFlow::Continue(())
    })
    .unwrap();
}

#[test]
fn a_killed_pack_leaves_nothing_that_opens_and_resumes() {
    let (tiny, _) = tiny();
    let dir = tempfile::tempdir().unwrap();
    let (src, out) = (dir.path().join("src"), dir.path().join("out"));
    tiny.write(&src);
    let whole = dir.path().join("whole");
    pack::pack(&src, &whole, &Options::default(), &mut Silent).unwrap();
    let mut killed = 0;
    for wait in [30, 90, 60, 120, 45, 150] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_packs_slowly"])
            .env(CHILD, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        if out.exists() {
            break;
        }
        killed += 1;
        assert!(Store::open(&dir.path().join(".out.partial")).is_err());
    }
    assert!(killed > 0);
    if !out.exists() {
        let options = Options { threads: NonZeroUsize::new(2), ..Options::default() };
        pack::pack(&src, &out, &options, &mut Silent).unwrap();
    }
    assert_eq!(contents(&out), contents(&whole));
}
