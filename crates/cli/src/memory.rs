//! What this machine has, and what this process uses.
//!
//! Owns: the questions to the system. Never: decisions (see `plan`).

#[cfg(target_os = "linux")]
mod cgroup;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Memory of the machine, as this process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes that this process holds already.
    pub resident: u64,
    /// Bytes that it can have besides without pushing others out.
    pub available: u64,
}

impl Machine {
    /// Asks the system.
    pub fn look() -> Self {
        Self { resident: resident().unwrap_or(0), available: available() }
    }
}

/// Bytes that can be had now without pushing others out; a container's limit counts.
pub fn available() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let free = system.available_memory();
    #[cfg(target_os = "linux")]
    let free = cgroup::free().map_or(free, |limit| free.min(limit));
    free
}

/// Resident size of this process now; `None` where the system does not tell.
pub fn resident() -> Option<u64> {
    let own = Pid::from_u32(std::process::id());
    let mut system = System::new();
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, memory);
    system.process(own).map(sysinfo::Process::memory)
}

/// Largest resident size of this process so far; `None` where the system does not tell.
pub fn peak_resident() -> Option<u64> {
    // What getrusage says on Linux counts the parent's memory from before the program was started.
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    }
    #[cfg(all(unix, not(target_os = "linux")))]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        let size = u64::try_from(usage.max_rss()).ok()?;
        // Apple counts bytes, everyone else kilobytes.
        Some(if cfg!(target_vendor = "apple") { size } else { size * 1024 })
    }
    #[cfg(not(unix))]
    {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells() {
        let machine = Machine::look();
        assert!(machine.available > 0);
        if let (Some(peak), true) = (peak_resident(), machine.resident > 0) {
            // Counters of the system lag a little behind.
            assert!(machine.resident <= peak + (1 << 20), "{machine:?}, {peak}");
        }
    }
}
