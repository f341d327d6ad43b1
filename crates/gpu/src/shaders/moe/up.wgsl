// hidden = silu(gate x) * up x, for a tile of inner values and up to ROWS pairs (row, rank) of one
// expert.

struct P {
  cols: u32,
  outs: u32,
  // Experts per row.
  k: u32,
  // Elements of the weight binding per page of 4096 bytes, and before each matrix of a record.
  page: u32,
  gate_at: u32,
  up_at: u32,
  // First job of this dispatch.
  first: u32,
}
var<immediate> p: P;

// Per job: page of the record, its slab, number of pairs, the pairs.
@group(0) @binding(2) var<storage, read> jobs: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let job = (p.first + group.y) * JOB_WORDS;
  let base = jobs[job] * p.page;
  let count = jobs[job + 2u];
  set_slab(jobs[job + 1u]);
  row$r = jobs[job + 3u + min($ru, count - 1u)] / p.k;
  set_rows(p.cols);
  let r = lane / TILE;
  let o = group.x * TILE + lane % TILE;
  products(base + p.gate_at, group.x, p.cols, lane);
  var gate = 0.0;
  if (r < ROWS) {
    gate = result(r, lane % TILE);
  }
  products(base + p.up_at, group.x, p.cols, lane);
  if (r < count && o < p.outs) {
    output[jobs[job + 3u + r] * p.outs + o] = silu(gate) * result(r, lane % TILE);
  }
}
