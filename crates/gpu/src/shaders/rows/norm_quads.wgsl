// RMS norm of each slice of a row by itself, four values at a time, all loads at once; one workgroup per
// slice and row.

struct P {
  // Values of a slice.
  width: u32,
  // Slices of a row.
  groups: u32,
  eps: f32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> input: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> output: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let quads = p.width / 4u;
  let src = (group.y * p.groups + group.x) * quads;
  let i$r = min(lane + $ru * LANES, quads - 1u);
  let inside$r = lane + $ru * LANES < quads;
  let x$r = select(vec4<f32>(0.0), input[src + i$r], inside$r);
  let w$r = weight[group.x * quads + i$r];
  var sum = 0.0;
  sum = fma(x$r.w, x$r.w, fma(x$r.z, x$r.z, fma(x$r.y, x$r.y, fma(x$r.x, x$r.x, sum))));
  let mean = sum_lanes(sum, lane) / f32(p.width);
  let scale = 1.0 / sqrt(mean + p.eps);
  if (inside$r) { output[src + i$r] = (x$r * scale) * w$r; }
}
