//! Memory limits of the control groups that this process is in (Linux).
//!
//! Owns: their files. Never: decisions.
//! Invariant: the tightest limit counts, of the group itself and of every group around it; page cache
//! that the system gives up at need counts as free.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// Bytes that the groups of this process let it have beyond what they use; `None` without a limit.
pub fn free() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    free_in(Path::new(ROOT), &groups)
}

/// Files of one version of control groups.
struct Files {
    root: PathBuf,
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

/// `groups` are lines `id:controllers:path`; version 2 has id 0 and no controllers.
fn free_in(root: &Path, groups: &str) -> Option<u64> {
    let lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    let of_line = |(id, controllers, path): (&str, &str, &str)| {
        let files = if id == "0" && controllers.is_empty() {
            let (limit, used, cache) = ("memory.max", "memory.current", "inactive_file");
            Files { root: root.to_owned(), limit, used, cache }
        } else if controllers.split(',').any(|c| c == "memory") {
            let (limit, used) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            Files { root: root.join("memory"), limit, used, cache: "total_inactive_file" }
        } else {
            return None;
        };
        files.tightest(path)
    };
    lines.filter_map(of_line).min()
}

impl Files {
    /// Of the group at `path` and all around it.
    fn tightest(&self, path: &str) -> Option<u64> {
        let mut dir = self.root.join(path.trim_start_matches('/'));
        let mut least = None;
        loop {
            if let Some(free) = self.free(&dir) {
                least = Some(least.map_or(free, |least: u64| least.min(free)));
            }
            // In a container the path may be one that only the host can see.
            if dir == self.root || !dir.pop() {
                return least;
            }
        }
    }

    fn free(&self, dir: &Path) -> Option<u64> {
        // `max` is no number.
        let limit = number(&dir.join(self.limit))?;
        let used = number(&dir.join(self.used))?;
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cache =
            stat.lines().find_map(|line| line.strip_prefix(self.cache)?.trim().parse().ok());
        Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    #[test]
    fn the_tightest_group_counts_and_page_cache_is_free() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        group(&root.join("a"), &[("memory.max", "1000\n"), ("memory.current", "900\n")]);
        let stat = "anon 100\ninactive_file 300\n";
        let own = [("memory.max", "max\n"), ("memory.current", "500\n"), ("memory.stat", stat)];
        group(&root.join("a/b"), &own);
        assert_eq!(free_in(root, "0::/a/b\n"), Some(100), "the group around it has the limit");
        fs::write(root.join("a/b/memory.max"), "250\n").unwrap();
        assert_eq!(free_in(root, "0::/a/b\n"), Some(50));
        fs::write(root.join("a/b/memory.max"), "100\n").unwrap();
        assert_eq!(free_in(root, "0::/a/b\n"), Some(0), "more than it may have");
        assert_eq!(free_in(root, "0::/elsewhere\n"), None);
        assert_eq!(free_in(root, "nonsense\n"), None);
    }

    #[test]
    fn version_one_and_paths_of_the_host_are_read() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let files = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "700\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 200\n"),
        ];
        group(&root.join("memory"), &files);
        let groups = "12:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n";
        assert_eq!(free_in(root, groups), Some(500), "the container's root stands for its path");
    }
}
