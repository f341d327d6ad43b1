//! How experts were streamed, in words and for programs.
//!
//! Owns: the shape of these numbers (docs/streaming.md). Never: counting.

use crate::terminal::bytes;
use cherenkov_engine::Streamed;
use cherenkov_experts::{Access, Counters, ExpertCounters};
use serde_json::{Map, Value, json};
use std::time::Duration;

fn percent(part: u64, rest: u64) -> f64 {
    100.0 * part as f64 / ((part + rest) as f64).max(1.0)
}

/// Lines of the table: one per phase that asked for experts, what reading ahead brought, the rate.
pub fn lines(phases: &[(&'static str, &Streamed)]) -> Vec<String> {
    let (mut lines, mut all) = (Vec::new(), Counters::default());
    for (phase, streamed) in phases {
        let c = streamed.total();
        all += c;
        if c.selections > 0 {
            lines.push(format!(
                "  {phase:<9} {} hits ({:.1} %), {} misses, {} read ({} by scans), waited {:.3} s",
                c.hits,
                percent(c.hits, c.misses),
                c.misses,
                bytes(c.read_bytes),
                bytes(c.scan_bytes),
                c.wait_time.as_secs_f64()
            ));
        }
    }
    let vain = all.ahead_late + all.ahead_wasted;
    if all.ahead_right + vain > 0 {
        lines.push(format!(
            "  ahead     {} right ({:.1} %), {} late, {} wasted, {} taken back",
            all.ahead_right,
            percent(all.ahead_right, vain),
            all.ahead_late,
            all.ahead_wasted,
            all.ahead_cancelled
        ));
    }
    if all.read_bytes > 0 && all.read_time > Duration::ZERO {
        let rate = all.read_bytes as f64 / all.read_time.as_secs_f64();
        lines.push(format!("  a read    {}/s by itself", bytes(rate as u64)));
    }
    lines
}

/// Counters of a layer or of all; reads by precision and cause.
fn counters(c: &Counters, streamed: &Streamed) -> Value {
    let cause = |reads: u64, bytes: u64| json!({ "reads": reads, "bytes": bytes });
    let mut by_precision = Map::new();
    by_precision.insert(
        streamed.bits.to_string(),
        json!({
            "demand": cause(c.demand_reads - c.low_reads, c.demand_bytes - c.low_bytes),
            "lookahead": cause(c.ahead_reads, c.ahead_bytes),
            "scan": cause(c.scan_reads, c.scan_bytes),
        }),
    );
    if let Some(bits) = streamed.low_bits {
        // Only a step that waits reads short records.
        let demand = cause(c.low_reads, c.low_bytes);
        by_precision.insert(bits.to_string(), json!({ "demand": demand }));
    }
    json!({
        "selections": c.selections,
        "hits": c.hits,
        "misses": c.misses,
        "ahead_right": c.ahead_right,
        "ahead_late": c.ahead_late,
        "ahead_wasted": c.ahead_wasted,
        "ahead_cancelled": c.ahead_cancelled,
        "scan_ahead_reads": c.scan_ahead_reads,
        "failed_reads": c.failed_reads,
        "read_bytes": c.read_bytes,
        "read_seconds": c.read_time.as_secs_f64(),
        "waves": c.waves,
        "waits": c.waits,
        "wait_seconds": c.wait_time.as_secs_f64(),
        "reads_by_bits": by_precision,
        "low_hits": c.low_hits,
        "upgrades": c.upgrades,
        "left_out": c.left_out,
    })
}

/// All layers of one phase together.
pub fn phase(streamed: &Streamed) -> Value {
    counters(&streamed.total(), streamed)
}

/// Per layer, per expert, and how the pool stands.
pub fn all(streamed: &Streamed) -> Value {
    let layers: Vec<Value> = streamed.layers.iter().map(|c| counters(c, streamed)).collect();
    let per_layer = streamed.experts.len() / streamed.layers.len().max(1);
    let each = |of: fn(&ExpertCounters) -> u64| -> Vec<Vec<u64>> {
        let layers = streamed.experts.chunks(per_layer.max(1));
        layers.map(|layer| layer.iter().map(of).collect()).collect()
    };
    let drives = streamed.drives.iter().map(|drive| {
        let uncached = match &drive.access {
            Access::Direct => Value::Null,
            Access::Buffered { reason } => json!(reason),
        };
        json!({
            "path": drive.path,
            "read_bytes": drive.read_bytes,
            "retries": drive.retries,
            "page_cache": uncached,
        })
    });
    json!({
        "record_bytes": streamed.record_bytes,
        "bits": streamed.bits,
        "pool_slots": streamed.slots,
        "readers": streamed.readers,
        "lookahead_width": streamed.width,
        "policy": streamed.policy,
        "drives": drives.collect::<Vec<_>>(),
        "layers": layers,
        "experts": {
            "selections": each(|e| e.selections),
            "hits": each(|e| e.hits),
            "misses": each(|e| e.misses),
            "reads": each(|e| e.reads),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed() -> Streamed {
        let first = Counters {
            selections: 80,
            hits: 6,
            misses: 2,
            demand_reads: 2,
            demand_bytes: 2000,
            read_bytes: 2000,
            wait_time: Duration::from_millis(250),
            read_time: Duration::from_millis(500),
            ..Counters::default()
        };
        let second = Counters {
            ahead_reads: 4,
            ahead_bytes: 4000,
            ahead_right: 3,
            ahead_late: 1,
            read_bytes: 4000,
            ..first
        };
        let second = Counters { demand_reads: 0, demand_bytes: 0, ..second };
        let expert = |n| ExpertCounters { selections: n, ..ExpertCounters::default() };
        Streamed {
            layers: vec![first, second],
            experts: (0..6).map(expert).collect(),
            bits: 4,
            ..Streamed::default()
        }
    }

    #[test]
    fn phases_are_summed_and_layers_are_apart() {
        let streamed = streamed();
        let text = lines(&[("prefill", &Streamed::default()), ("decode", &streamed)]).join("\n");
        for part in [
            "  decode    12 hits (75.0 %), 4 misses, 6.0 kB read (0 B by scans), waited 0.500 s",
            "  ahead     3 right (75.0 %), 1 late, 0 wasted, 0 taken back",
            "  a read    6.0 kB/s by itself",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("prefill"));
        let all = all(&streamed);
        assert_eq!(all["experts"]["selections"], json!([[0, 1, 2], [3, 4, 5]]));
        let lookahead = &all["layers"][1]["reads_by_bits"]["4"]["lookahead"];
        assert_eq!(*lookahead, json!({ "reads": 4, "bytes": 4000 }));
        assert_eq!(phase(&streamed)["read_bytes"], 6000);
        let mut short = streamed;
        (short.low_bits, short.layers[0].low_reads, short.layers[0].low_bytes) = (Some(2), 1, 500);
        let reads = &super::all(&short)["layers"][0]["reads_by_bits"];
        assert_eq!(reads["2"]["demand"], json!({ "reads": 1, "bytes": 500 }));
        assert_eq!(reads["4"]["demand"], json!({ "reads": 1, "bytes": 1500 }));
    }
}
