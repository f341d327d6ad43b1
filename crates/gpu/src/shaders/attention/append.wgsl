// Keys, normed and rotated, and values enter their pages.

struct P {
  width: u32,
  heads: u32,
  half: u32,
  page_rows: u32,
  eps: f32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> rope: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read_write> keys: array<f32>;
@group(0) @binding(6) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.y;
  let src = (row * p.heads + group.x) * p.width;
  let place = page_row(row_run(row), row_index(row), p.page_rows);
  let to = (place * p.heads + group.x) * p.width;
  for (var i = lane; i < p.width; i = i + LANES) {
    head[i] = k[src + i];
    values[to + i] = v[src + i];
  }
  workgroupBarrier();
  norm_rotate(p.width, p.half, row * 2u, p.eps, lane);
  for (var i = lane; i < p.width; i = i + LANES) {
    keys[to + i] = head[i];
  }
}
