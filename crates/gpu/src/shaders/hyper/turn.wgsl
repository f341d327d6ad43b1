// stream_c += gate_c * y, and the norm of what it becomes. One workgroup per stream and row.

struct P {
  width: u32,
  count: u32,
  eps: f32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> stream: array<f32>;
@group(0) @binding(4) var<storage, read_write> normed: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let at = (group.y * p.count + group.x) * p.width;
  let open = gate[group.y * p.count + group.x];
  var sum = 0.0;
  for (var i = lane; i < p.width; i = i + LANES) {
    let x = fma(open, y[group.y * p.width + i], stream[at + i]);
    stream[at + i] = x;
    sum = fma(x, x, sum);
  }
  let mean = sum_lanes(sum, lane) / f32(p.width);
  let scale = 1.0 / sqrt(mean + p.eps);
  for (var i = lane; i < p.width; i = i + LANES) {
    normed[at + i] = (stream[at + i] * scale) * weight[group.x * p.width + i];
  }
}
