//! What this machine has, and what this process uses.
//!
//! Owns: the questions to the system. Never: decisions (see `plan`).

/// Bytes that can be had now without pushing others out; a container's limit counts.
pub fn available() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = system.available_memory();
    match system.cgroup_limits() {
        Some(limits) => free.min(limits.free_memory),
        None => free,
    }
}

/// Largest resident size of this process so far; `None` where the system does not tell.
pub fn peak_resident() -> Option<u64> {
    #[cfg(unix)]
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
