// parts[row, rank] = down hidden, for a tile of outputs and up to ROWS pairs (row, rank) of one expert.

struct P {
  cols: u32,
  outs: u32,
  page: u32,
  down_at: u32,
  // First job of this dispatch.
  first: u32,
}
var<immediate> p: P;

@group(0) @binding(2) var<storage, read> jobs: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let job = (p.first + group.y) * JOB_WORDS;
  let count = jobs[job + 2u];
  set_slab(jobs[job + 1u]);
  row$r = jobs[job + 3u + min($ru, count - 1u)];
  set_rows(p.cols);
  products(jobs[job] * p.page + p.down_at, group.x, p.cols, lane);
  let r = lane / TILE;
  let o = group.x * TILE + lane % TILE;
  if (r < count && o < p.outs) {
    output[jobs[job + 3u + r] * p.outs + o] = result(r, lane % TILE);
  }
}
