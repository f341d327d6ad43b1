// RMS norm of each slice of a row by itself; one workgroup per slice and row.

struct P {
  // Values of a slice.
  width: u32,
  // Slices of a row.
  groups: u32,
  eps: f32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> input: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let src = (group.y * p.groups + group.x) * p.width;
  var sum = 0.0;
  for (var i = lane; i < p.width; i = i + LANES) {
    let x = input[src + i];
    sum = fma(x, x, sum);
  }
  let mean = sum_lanes(sum, lane) / f32(p.width);
  let scale = 1.0 / sqrt(mean + p.eps);
  for (var i = lane; i < p.width; i = i + LANES) {
    output[src + i] = (input[src + i] * scale) * weight[group.x * p.width + i];
  }
}
