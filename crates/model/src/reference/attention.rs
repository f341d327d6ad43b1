//! QSA attention in the reference.

use super::math;
use super::state::{KvState, RowRing};
use crate::batch::{Batch, Position, Run};
use crate::device::AttentionWeights;

/// Stores the keys and values of all rows, and the pooled key of every block that becomes complete.
pub fn append(
    kv: &mut KvState,
    raw: &mut RowRing,
    w: &AttentionWeights<Vec<f32>>,
    batch: &Batch,
    eps: f64,
    (k, v, index): (&[f32], &[f32], &[f32]),
) {
    let spec = &w.spec;
    let (width, head) = (spec.kv_heads * spec.head_dim, spec.head_dim);
    for run in &batch.runs {
        for row in run.range() {
            let at = run.start as usize + row - run.first;
            let (page, place) = kv.place(run, at);
            for h in 0..spec.kv_heads {
                let from = row * width + h * head;
                let mut key = math::norm(&k[from..from + head], &w.k_norm, 1, eps);
                math::rotate(spec, batch.positions[row], &mut key);
                let to = place * width + h * head;
                kv.pages[page].k[to..to + head].copy_from_slice(&key);
                kv.pages[page].v[to..to + head].copy_from_slice(&v[from..from + head]);
            }
            let key_at = row * spec.index_width() + spec.index_heads * spec.index_dim;
            raw.put(run.slot.0 as usize, at as u32, &index[key_at..key_at + spec.index_dim]);
            if (at + 1).is_multiple_of(spec.index_ratio) {
                pool(kv, raw, w, run, at + 1 - spec.index_ratio, eps);
            }
        }
    }
}

/// The key of the block that starts at `first`: mean of raw keys, norm, rotation at its first token.
fn pool(
    kv: &mut KvState,
    raw: &RowRing,
    w: &AttentionWeights<Vec<f32>>,
    run: &Run,
    first: usize,
    eps: f64,
) {
    let spec = &w.spec;
    let mut sum = vec![0f64; spec.index_dim];
    for at in first..first + spec.index_ratio {
        for (sum, x) in sum.iter_mut().zip(raw.row(run.slot.0 as usize, at as i64)) {
            *sum += f64::from(x);
        }
    }
    let mean: Vec<f32> = sum.iter().map(|s| (s / spec.index_ratio as f64) as f32).collect();
    let mut key = math::norm(&mean, &w.index_k_norm, 1, eps);
    math::rotate(spec, Position::text(first as u32), &mut key);
    let (page, place) = kv.place(run, first);
    let to = place / spec.index_ratio * spec.index_dim;
    kv.pages[page].pooled[to..to + spec.index_dim].copy_from_slice(&key);
}

/// The selected complete blocks of every row.
pub fn select(
    kv: &KvState,
    w: &AttentionWeights<Vec<f32>>,
    batch: &Batch,
    eps: f64,
    index: &[f32],
) -> Vec<Vec<u32>> {
    let budget = w.spec.budget_blocks();
    let scores = scores(kv, w, batch, eps, index);
    scores.iter().map(|scores| math::top_k(scores, budget)).collect()
}

/// The scores of the complete blocks that every row sees.
pub fn scores(
    kv: &KvState,
    w: &AttentionWeights<Vec<f32>>,
    batch: &Batch,
    eps: f64,
    index: &[f32],
) -> Vec<Vec<f64>> {
    let spec = &w.spec;
    let scale = (spec.index_dim as f64).sqrt();
    let mut all = Vec::with_capacity(batch.rows());
    for run in &batch.runs {
        for row in run.range() {
            let visible = run.start as usize + row - run.first + 1;
            let mut scores = vec![0f64; visible / spec.index_ratio];
            for h in 0..spec.index_heads {
                let from = row * spec.index_width() + h * spec.index_dim;
                let query = &index[from..from + spec.index_dim];
                let mut query = math::norm(query, &w.index_q_norm, 1, eps);
                math::rotate(spec, batch.positions[row], &mut query);
                for (b, score) in scores.iter_mut().enumerate() {
                    *score += math::dot(&query, kv.block(run, b)).max(0.0);
                }
            }
            scores.iter_mut().for_each(|s| *s /= scale);
            all.push(scores);
        }
    }
    all
}

/// Attention over the picked blocks and the incomplete tail.
pub fn attend(
    kv: &KvState,
    w: &AttentionWeights<Vec<f32>>,
    batch: &Batch,
    eps: f64,
    q: &[f32],
    picks: &[Vec<u32>],
) -> Vec<f32> {
    let spec = &w.spec;
    let head = spec.head_dim;
    let mut out = Vec::with_capacity(batch.rows() * spec.heads * head);
    for run in &batch.runs {
        for row in run.range() {
            let visible = run.start as usize + row - run.first + 1;
            let ratio = spec.index_ratio;
            let picked =
                picks[row].iter().flat_map(|&b| b as usize * ratio..(b as usize + 1) * ratio);
            let tokens: Vec<usize> = picked.chain(visible / ratio * ratio..visible).collect();
            for h in 0..spec.heads {
                let from = (row * spec.heads + h) * 2 * head;
                let mut query = math::norm(&q[from..from + head], &w.q_norm, 1, eps);
                math::rotate(spec, batch.positions[row], &mut query);
                let gate = &q[from + head..from + 2 * head];
                out.extend(one_head(kv, run, h, &tokens, &query, gate));
            }
        }
    }
    out
}

fn one_head(
    kv: &KvState,
    run: &Run,
    h: usize,
    tokens: &[usize],
    query: &[f32],
    gate: &[f32],
) -> Vec<f32> {
    let spec = &kv.spec;
    let head = spec.head_dim;
    let kv_head = h / (spec.heads / spec.kv_heads);
    let slice = |at: usize| {
        let (page, place) = kv.place(run, at);
        let from = (place * spec.kv_heads + kv_head) * head;
        (page, from..from + head)
    };
    let scale = 1.0 / (head as f64).sqrt();
    let scores: Vec<f64> = tokens
        .iter()
        .map(|&at| {
            let (page, range) = slice(at);
            math::dot(query, &kv.pages[page].k[range]) * scale
        })
        .collect();
    let mut sum = vec![0f64; head];
    for (&at, weight) in tokens.iter().zip(math::softmax(&scores)) {
        let (page, range) = slice(at);
        for (sum, &v) in sum.iter_mut().zip(&kv.pages[page].v[range]) {
            *sum += weight * f64::from(v);
        }
    }
    sum.iter().zip(gate).map(|(s, &g)| (s * math::sigmoid(f64::from(g))) as f32).collect()
}
