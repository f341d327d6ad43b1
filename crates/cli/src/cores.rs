//! How many threads compute.
//!
//! Owns: the number of performance cores that this process may use. Never: starting threads.
//! Invariant: the number is at least 1 and never more than the system lets us run at a time
//! (affinity, quota of the control group).
//!
//! Work is cut into equal parts, so a part on a slow core would make the fast ones wait, and the
//! second thread of a core shares the units that the kernels keep busy.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Cores below this share of the strongest one's capacity, in percent, do not count.
const CAPACITY_PERCENT: u64 = 60;
/// The same for the highest clock, where nothing else is known.
const CLOCK_PERCENT: u64 = 75;

/// Threads to use where nobody says otherwise.
pub fn performance() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    known().map_or(allowed, |cores| cores.clamp(1, allowed))
}

/// Performance cores as the system describes them.
#[cfg(target_os = "linux")]
fn known() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    count(Path::new("/sys/devices"), &allowed(&status)?)
}

/// Performance cores as the system describes them. Macs name their strongest level of cores 0.
#[cfg(target_os = "macos")]
fn known() -> Option<usize> {
    let query = ["-n", "hw.perflevel0.physicalcpu"];
    let said = std::process::Command::new("/usr/sbin/sysctl").args(query).output().ok()?;
    String::from_utf8(said.stdout).ok()?.trim().parse().ok()
}

/// Other systems are taken at their word about how many threads make sense.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn known() -> Option<usize> {
    None
}

/// The processors this process may run on, of the contents of `/proc/self/status`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "Linux"))]
fn allowed(status: &str) -> Option<BTreeSet<u32>> {
    let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    list(line)
}

/// Numbers such as `0-3,8`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "Linux"))]
fn list(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?);
    }
    Some(all)
}

/// Distinct performance cores among the processors `allowed`, as `/sys/devices` describes them.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "Linux"))]
fn count(devices: &Path, allowed: &BTreeSet<u32>) -> Option<usize> {
    let read = |path: &str| fs::read_to_string(devices.join(path)).ok();
    let of = |cpu: u32, what: &str| read(&format!("system/cpu/cpu{cpu}/{what}"));
    // Compared with the strongest that we may use: confined to weak ones, those are what we have.
    let strong = |what: &str, percent: u64| -> Option<BTreeSet<u32>> {
        let value = |cpu: &u32| Some((*cpu, of(*cpu, what)?.trim().parse::<u64>().ok()?));
        let values: Vec<_> = allowed.iter().map(value).collect::<Option<_>>()?;
        let most = values.iter().map(|v| v.1).max()?;
        let strong = values.into_iter().filter(|v| v.1 * 100 >= most * percent);
        Some(strong.map(|v| v.0).collect())
    };
    let named = || {
        let cores = list(&read("cpu_core/cpus")?)?;
        let cores: BTreeSet<_> = cores.intersection(allowed).copied().collect();
        (!cores.is_empty()).then_some(cores)
    };
    let strong = named()
        .or_else(|| strong("cpu_capacity", CAPACITY_PERCENT))
        .or_else(|| strong("cpufreq/cpuinfo_max_freq", CLOCK_PERCENT))
        .unwrap_or_else(|| allowed.clone());
    let core = |cpu: &u32| {
        let siblings = of(*cpu, "topology/thread_siblings_list");
        siblings.as_deref().and_then(list).and_then(|s| s.first().copied()).unwrap_or(*cpu)
    };
    Some(strong.iter().map(core).collect::<BTreeSet<_>>().len()).filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: what is said about each processor, and which are Intel's "core".
    fn machine(core: Option<&str>, cpus: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: String, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        if let Some(list) = core {
            put("cpu_core/cpus".into(), list);
        }
        for (cpu, (file, text)) in cpus.iter().enumerate() {
            put(format!("system/cpu/cpu{cpu}/{file}"), &format!("{text}\n"));
        }
        dir
    }

    fn cores(dir: &tempfile::TempDir, allowed: &str) -> Option<usize> {
        count(dir.path(), &list(allowed).unwrap())
    }

    #[test]
    fn weak_cores_do_not_count_unless_there_are_no_others() {
        let capacity = ["1024", "1024", "870", "870", "870", "400", "400", "400"];
        let phone = machine(None, &capacity.map(|c| ("cpu_capacity", c)));
        assert_eq!(cores(&phone, "0-7"), Some(5));
        assert_eq!(cores(&phone, "4-7"), Some(1));
        assert_eq!(cores(&phone, "5-7"), Some(3));
        let clocks = ["2800000", "2800000", "1800000", "1800000"];
        let board = machine(None, &clocks.map(|c| ("cpufreq/cpuinfo_max_freq", c)));
        assert_eq!(cores(&board, "0-3"), Some(2));
        let turbo = machine(None, &["5200000", "4900000"].map(|c| ("cpufreq/cpuinfo_max_freq", c)));
        assert_eq!(cores(&turbo, "0,1"), Some(2));
    }

    #[test]
    fn the_names_of_a_hybrid_processor_come_first_and_threads_of_a_core_are_one() {
        let siblings = ["0-1", "0-1", "2-3", "2-3", "4", "5"];
        let cpus = siblings.map(|s| ("topology/thread_siblings_list", s));
        let laptop = machine(Some("0-3\n"), &cpus);
        assert_eq!(cores(&laptop, "0-5"), Some(2));
        assert_eq!(cores(&laptop, "0,4,5"), Some(1));
        assert_eq!(cores(&laptop, "4-5"), Some(2), "confined to the weak ones");
        assert_eq!(cores(&machine(None, &cpus), "0-5"), Some(4));
    }

    #[test]
    fn a_machine_that_says_nothing_has_the_cores_we_may_use() {
        let silent = machine(None, &[]);
        assert_eq!(cores(&silent, "0-2,7"), Some(4));
        assert_eq!(allowed("Name:\tx\nCpus_allowed_list:\t0-1,4\n"), list("0,1,4"));
        assert_eq!(allowed("Name:\tx\n"), None);
        assert_eq!(list("0-x"), None);
        assert!(performance() >= 1);
    }
}
