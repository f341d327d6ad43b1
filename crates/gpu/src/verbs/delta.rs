//! The gated delta rule.
//!
//! Invariant: rows of a tentative run change no state; those that stay are replayed by the next run.

use crate::device::{GpuDevice, GpuVector, Scratch};
use crate::error::{Error, Result};
use crate::kernels::{DELTA_COLUMNS, Kernel};
use crate::params;
use crate::state::Log;
use cherenkov_format::qwen4_exp::config::{Delta, Gate};
use cherenkov_model::Keep;
use cherenkov_model::device::{DeltaIo, DeltaLane, DeltaWeights};

/// Words of a run's entry in the delta table.
const RUN_WORDS: usize = 8;

/// Values of a prepared row.
fn stride(spec: &Delta) -> u32 {
    (2 * spec.key_heads * spec.key_dim + spec.key_heads + 2 * spec.value_heads) as u32
}

fn check_io(w: &DeltaWeights<GpuVector>, io: DeltaIo) -> Result<()> {
    let s = &w.spec;
    let (heads, values) = (s.value_heads as u32, s.value_width() as u32);
    let found = [io.qkv, io.z, io.a, io.b, io.out].map(|x| x.width);
    let expected = [s.channels() as u32, values, heads, heads, values];
    let constants = [w.a_log.len, w.dt_bias.len, w.norm.len];
    let fits = found == expected && constants == [heads, heads, s.value_dim as u32];
    ensure!(fits, "delta: activations of {found:?} values, expected {expected:?}");
    Ok(())
}

impl GpuDevice {
    /// The delta table of the batch for a lane.
    pub(crate) fn delta_words(&self, lane: usize) -> Vec<u32> {
        let logs = &self.state.deltas[lane].logs;
        let mut words = Vec::with_capacity(self.batch.runs.len() * RUN_WORDS);
        for run in &self.batch.runs {
            let log = logs[run.slot.0 as usize];
            let tentative = u32::from(run.keep == Keep::Tentative);
            words.extend([run.slot.0, run.first as u32, run.rows as u32, tentative]);
            words.extend([log.replay, log.side, 1 - log.side, 0]);
        }
        words
    }

    /// Brings the delta table up to date; all lanes of a model agree, so once per pass.
    pub(crate) fn send_delta_words(&mut self, words: Vec<u32>) -> Result<()> {
        if words == self.delta_sent {
            return Ok(());
        }
        let table = self.scratch(Scratch::DeltaRuns, words.len() as u64 * 4)?;
        self.stream().write(&table, 0, bytemuck::cast_slice(&words))?;
        self.delta_sent = words;
        Ok(())
    }

    pub(crate) fn verb_delta(
        &mut self,
        lane: DeltaLane,
        w: &DeltaWeights<GpuVector>,
        io: DeltaIo,
    ) -> Result<()> {
        let lane = lane.0 as usize;
        let spec = self.state.deltas.get(lane).map(|delta| &delta.spec);
        ensure!(spec == Some(&w.spec), "delta: weights of another shape than the lane's");
        check_io(w, io)?;
        let logs = &self.state.deltas[lane].logs;
        if self.batch.runs.iter().any(|run| logs[run.slot.0 as usize].open > 0) {
            return Err(Error::Misuse { what: "settle before the next run".into() });
        }
        self.send_delta_words(self.delta_words(lane))?;
        self.delta_prepare(w, io)?;
        let y = self.scratch_rows(Scratch::Wide, w.spec.value_width() as u32)?;
        let qkv = self.buf(io.qkv)?;
        self.delta_scan(lane, &qkv, &y, self.batch.runs.len() as u32)?;
        self.delta_finish(w, io)?;
        let logs = &mut self.state.deltas[lane].logs;
        for run in &self.batch.runs {
            let log = &mut logs[run.slot.0 as usize];
            *log = match run.keep {
                Keep::All => Log { open: 0, replay: 0, side: log.side },
                Keep::Tentative => Log { open: run.rows as u32, replay: 0, side: 1 - log.side },
            };
        }
        Ok(())
    }

    fn delta_prepare(&mut self, w: &DeltaWeights<GpuVector>, io: DeltaIo) -> Result<()> {
        let spec = &w.spec;
        let prepared = self.scratch_rows(Scratch::Normed, stride(spec))?;
        let (qkv, a, b) = (self.buf(io.qkv)?, self.buf(io.a)?, self.buf(io.b)?);
        let params = params::DeltaPrepare {
            key_heads: spec.key_heads as u32,
            value_heads: spec.value_heads as u32,
            key_dim: spec.key_dim as u32,
            channels: spec.channels() as u32,
            stride: stride(spec),
        };
        let buffers = [&qkv, &a, &b, &w.a_log.buf, &w.dt_bias.buf, &prepared];
        self.run(Kernel::DeltaPrepare, &buffers, &params, [params.key_heads, self.rows(), 1])
    }

    /// Walks the runs of the delta table.
    fn delta_scan(
        &mut self,
        lane: usize,
        qkv: &crate::arena::Buf,
        y: &crate::arena::Buf,
        runs: u32,
    ) -> Result<()> {
        let delta = &self.state.deltas[lane];
        let spec = delta.spec.clone();
        let (state, log, log_stride) = (delta.state()?, delta.log()?, delta.log_stride());
        let table = self.scratch(Scratch::DeltaRuns, 4)?;
        let prepared = self.scratch_rows(Scratch::Normed, stride(&spec))?;
        let params = params::DeltaScan {
            key_heads: spec.key_heads as u32,
            value_heads: spec.value_heads as u32,
            key_dim: spec.key_dim as u32,
            value_dim: spec.value_dim as u32,
            channels: spec.channels() as u32,
            stride: stride(&spec),
            log_stride,
            blocks: (spec.value_dim as u32).div_ceil(DELTA_COLUMNS),
        };
        let kernel = Kernel::delta_scan(params.key_dim);
        let buffers = [&table, &prepared, qkv, &state, &log, y];
        self.run(kernel, &buffers, &params, [params.value_heads * params.blocks, runs, 1])
    }

    fn delta_finish(&mut self, w: &DeltaWeights<GpuVector>, io: DeltaIo) -> Result<()> {
        let y = self.scratch_rows(Scratch::Wide, w.spec.value_width() as u32)?;
        let (z, out) = (self.buf(io.z)?, self.buf(io.out)?);
        let params = params::DeltaFinish {
            width: w.spec.value_dim as u32,
            heads: w.spec.value_heads as u32,
            act: match w.spec.gate {
                Gate::Sigmoid => 0,
                Gate::Silu => 1,
            },
            eps: self.eps,
        };
        let buffers = [&y, &z, &w.norm.buf, &out];
        self.run(Kernel::DeltaFinish, &buffers, &params, [params.heads, self.rows(), 1])
    }

    /// Replays what waits in the logs of a settled sequence.
    pub(crate) fn replay_slot(&mut self, slot: usize) -> Result<()> {
        for lane in 0..self.state.deltas.len() {
            let log = self.state.deltas[lane].logs[slot];
            if log.open > 0 {
                return Err(Error::Misuse { what: "settle before copying or saving".into() });
            }
            if log.replay == 0 {
                continue;
            }
            let words = vec![slot as u32, 0, 0, 0, log.replay, log.side, 1 - log.side, 0];
            self.send_delta_words(words)?;
            // No row is computed, but one may be fetched: any buffers of its size will do.
            let channels = self.state.deltas[lane].spec.channels() as u32;
            let qkv = self.scratch_rows(Scratch::Wide, channels)?;
            let y = self.scratch_rows(Scratch::Rank, 1)?;
            self.delta_scan(lane, &qkv, &y, 1)?;
            self.state.deltas[lane].logs[slot] = Log { open: 0, replay: 0, side: log.side };
        }
        Ok(())
    }
}
