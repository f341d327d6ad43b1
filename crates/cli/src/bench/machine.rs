//! The machine, in words.
//!
//! Owns: what a reader of figures must know about it.

use serde_json::{Value, json};
use sysinfo::System;

/// What the machine is.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Operating system and version.
    pub os: String,
    /// Its kernel.
    pub kernel: String,
}

impl Machine {
    /// Asks the system.
    pub fn look() -> Self {
        let mut system = System::new();
        system.refresh_memory();
        system.refresh_cpu_all();
        let unknown = || "unknown".to_owned();
        let brand = system.cpus().first().map(|c| c.brand().trim().to_owned());
        Self {
            cpu: brand.filter(|b| !b.is_empty()).unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: system.total_memory(),
            os: System::long_os_version().unwrap_or_else(unknown),
            kernel: System::kernel_version().unwrap_or_else(unknown),
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "os": self.os,
            "kernel": self.kernel,
            "architecture": std::env::consts::ARCH,
        })
    }
}
