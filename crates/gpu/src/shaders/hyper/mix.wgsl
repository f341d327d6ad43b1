// out = mean over streams of sigmoid(gate_c) * n_c.

struct P {
  width: u32,
  count: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> normed: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  if (i >= p.width) {
    return;
  }
  let at = group.y * p.count * p.width + i;
  let gate$r = gates[at + $ru * p.width];
  let n$r = normed[at + $ru * p.width];
  var sum = 0.0;
  sum = fma(sigmoid(gate$r), n$r, sum);
  output[group.y * p.width + i] = sum / f32(p.count);
}
