// Query heads, normed and rotated at their row's position.

struct P {
  width: u32,
  heads: u32,
  half: u32,
  // Input values of a row and of a head.
  row_stride: u32,
  head_stride: u32,
  eps: f32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> rope: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> input: array<f32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let src = group.y * p.row_stride + group.x * p.head_stride;
  for (var i = lane; i < p.width; i = i + LANES) {
    head[i] = input[src + i];
  }
  workgroupBarrier();
  norm_rotate(p.width, p.half, group.y * 2u, p.eps, lane);
  let to = (group.y * p.heads + group.x) * p.width;
  for (var i = lane; i < p.width; i = i + LANES) {
    output[to + i] = head[i];
  }
}
