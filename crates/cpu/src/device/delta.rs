//! Gated DeltaNet on the device.
//!
//! Owns: which rows are applied to a state when. Never: kernels.
//! Invariant: a tentative run leaves the state and logs its rows; settled rows are applied at the next
//! run, or when the state is saved or copied, with the bits that running them in place gives.

use super::engine::{Engine, Worker};
use super::state::{DeltaSlot, DeltaState, Log};
use super::weights::CpuVector;
use crate::kernels::delta::{Head, Logged, Outcome, Prepare, padded, slab_values};
use crate::memory::Aligned;
use crate::threads::Cut;
use cherenkov_model::device::DeltaWeights;
use cherenkov_model::{Batch, Error, Keep, MAX_TENTATIVE, Result};

/// The inputs of a step, rows of the batch.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub qkv: &'a [f32],
    pub z: &'a [f32],
    pub a: &'a [f32],
    pub b: &'a [f32],
}

/// Runs all rows.
pub fn run(
    engine: &mut Engine,
    scratch: &mut [Aligned<f32>; 4],
    state: &mut DeltaState,
    w: &DeltaWeights<CpuVector>,
    (batch, eps): (&Batch, f32),
    io: Inputs<'_>,
    out: &mut [f32],
) -> Result<()> {
    let spec = &w.spec;
    let (keys_width, gates_width) = (2 * spec.key_heads * spec.key_dim, 2 * spec.value_heads);
    let rows = batch.rows();
    let [keys, gates, ..] = scratch;
    let (keys, gates) = (keys.reserve(rows * keys_width), gates.reserve(rows * gates_width));
    let arch = engine.arch;
    engine.rows(
        rows * keys_width,
        (keys, keys_width),
        (gates, gates_width),
        |first, keys, gates| {
            arch.run(Prepare {
                spec,
                qkv: &io.qkv[first * spec.channels()..],
                a: &io.a[first * spec.value_heads..],
                b: &io.b[first * spec.value_heads..],
                a_log: &w.a_log,
                dt_bias: &w.dt_bias,
                keys,
                gates,
            });
        },
    );
    for run in &batch.runs {
        let slot = run.slot.0 as usize;
        let outcome = match run.keep {
            Keep::All => Outcome::Stay,
            Keep::Tentative => Outcome::Log,
        };
        if outcome == Outcome::Log {
            state.log(slot);
        }
        if state.slot(slot).log.open > 0 {
            let what =
                format!("sequence in slot {slot} runs before its tentative rows are settled");
            return Err(Error::Device { device: super::NAME, what });
        }
        let keys = &keys[run.first * keys_width..][..run.rows * keys_width];
        let gates = &gates[run.first * gates_width..][..run.rows * gates_width];
        let qkv = &io.qkv[run.first * spec.channels()..];
        let z = &io.z[run.first * spec.value_width()..];
        let rows = RunRows { keys, gates, qkv, z, norm: &w.norm, eps, first: run.first };
        heads(engine, state, slot, rows, outcome, out);
        if outcome == Outcome::Log {
            let log = state.log(slot);
            log.keys[..keys.len()].copy_from_slice(keys);
            log.gates[..gates.len()].copy_from_slice(gates);
            log.open = run.rows;
        }
    }
    Ok(())
}

/// Applies the settled rows that a slot's state lacks.
pub fn flush(engine: &mut Engine, state: &mut DeltaState, slot: usize) {
    if state.slots[slot].log.pending > 0 {
        let none =
            RunRows { keys: &[], gates: &[], qkv: &[], z: &[], norm: &[], eps: 0.0, first: 0 };
        heads(engine, state, slot, none, Outcome::Stay, &mut []);
    }
}

/// Says that the first `rows` rows of the tentative run stay.
pub fn settle(state: &mut DeltaState, slot: usize, rows: usize) {
    let log = &mut state.slots[slot].log;
    if log.open > 0 {
        assert!(rows <= log.open, "{rows} of {} tentative rows", log.open);
        (log.open, log.pending) = (0, rows);
    }
}

/// One run's rows, prepared.
#[derive(Clone, Copy)]
struct RunRows<'a> {
    keys: &'a [f32],
    gates: &'a [f32],
    qkv: &'a [f32],
    z: &'a [f32],
    norm: &'a [f32],
    eps: f32,
    first: usize,
}

/// Runs the heads of one slot over its pending rows, then over `rows`; `out` is the whole batch's.
fn heads(
    engine: &mut Engine,
    state: &mut DeltaState,
    slot: usize,
    rows: RunRows<'_>,
    outcome: Outcome,
    out: &mut [f32],
) {
    let (spec, head_len) = (state.spec.clone(), state.head_len());
    let DeltaSlot { state: matrix, log } = state.slot(slot);
    let Log { gates, keys, d, pending, .. } = log;
    let replay = Logged { rows: *pending, gates, keys };
    let count = rows.gates.len() / (2 * spec.value_heads);
    let parts = engine.parts((count + replay.rows) * spec.value_heads * head_len / 8);
    let d_len = MAX_TENTATIVE * padded(spec.value_dim);
    let out_rows = (out.len() / spec.value_width()).max(1);
    let mut workers = std::mem::take(&mut engine.workers);
    let out = Cut::columns(out, out_rows, spec.value_dim, parts);
    let (matrix, d) = (Cut::slice(matrix, head_len, parts), Cut::slice(d, d_len, parts));
    let scratch = Cut::slice(&mut workers, 1, parts);
    let arch = engine.arch;
    engine.run(parts, &|i| {
        let heads = matrix.units(i);
        let (mut matrix, mut d, mut scratch) = (matrix.take(i), d.take(i), scratch.take(i));
        let mut out = out.take(i);
        let Worker { floats: [slab, ..], .. } = &mut scratch.row(0)[0];
        let mut logs = d.row(0).chunks_exact_mut(d_len);
        for (state, head) in matrix.row(0).chunks_exact_mut(head_len).zip(heads) {
            arch.run(Head {
                spec: &spec,
                head,
                state,
                replay,
                d: logs.next().unwrap_or_default(),
                keys: rows.keys,
                gates: rows.gates,
                qkv: rows.qkv,
                z: rows.z,
                norm: rows.norm,
                eps: rows.eps,
                outcome,
                out: &mut out,
                first: rows.first,
                slab: slab.reserve(slab_values(&spec)),
            });
        }
    });
    engine.workers = workers;
    *pending = 0;
}
