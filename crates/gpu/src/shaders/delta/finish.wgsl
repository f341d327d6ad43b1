// out = rms_norm(y) * w * act(z), per value head.

struct P {
  width: u32,
  heads: u32,
  // 0: sigmoid; 1: silu.
  act: u32,
  eps: f32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> z: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let src = (group.y * p.heads + group.x) * p.width;
  var sum = 0.0;
  for (var i = lane; i < p.width; i = i + LANES) {
    sum = fma(y[src + i], y[src + i], sum);
  }
  let scale = 1.0 / sqrt(sum_lanes(sum, lane) / f32(p.width) + p.eps);
  for (var i = lane; i < p.width; i = i + LANES) {
    let gate = select(sigmoid(z[src + i]), silu(z[src + i]), p.act == 1u);
    output[src + i] = ((y[src + i] * scale) * weight[i]) * gate;
  }
}
