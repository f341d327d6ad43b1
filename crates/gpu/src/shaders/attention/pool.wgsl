// The key of every block that a row completes: mean of its raw keys, norm, rotation at the position
// of its first row. Also keeps raw keys of short runs.

struct P {
  width: u32,
  // Values of an input row, and where its raw key begins.
  stride: u32,
  offset: u32,
  half: u32,
  ratio: u32,
  capacity: u32,
  page_rows: u32,
  // 1: every run is short enough to be remembered at once.
  keeps: u32,
  eps: f32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> rope: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> input: array<f32>;
@group(0) @binding(4) var<storage, read_write> ring: array<f32>;
@group(0) @binding(5) var<storage, read_write> pooled: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.y;
  let run = row_run(row);
  let index = row_index(row);
  let at = row_at(row);
  let slot = run_slot(run) * p.capacity;
  if (p.keeps == 1u) {
    for (var i = lane; i < p.width; i = i + LANES) {
      ring[(slot + index % p.capacity) * p.width + i] = input[row * p.stride + p.offset + i];
    }
  }
  if ((index + 1u) % p.ratio != 0u) {
    return;
  }
  for (var i = lane; i < p.width; i = i + LANES) {
    var sum = 0.0;
    for (var n = 0u; n < p.ratio; n = n + 1u) {
      let back = p.ratio - 1u - n;
      if (back <= at) {
        sum = sum + input[(row - back) * p.stride + p.offset + i];
      } else {
        sum = sum + ring[(slot + (index - back) % p.capacity) * p.width + i];
      }
    }
    head[i] = sum / f32(p.ratio);
  }
  workgroupBarrier();
  norm_rotate(p.width, p.half, row * 2u + 1u, p.eps, lane);
  let place = page_row(run, index + 1u - p.ratio, p.page_rows) / p.ratio;
  for (var i = lane; i < p.width; i = i + LANES) {
    pooled[place * p.width + i] = head[i];
  }
}
