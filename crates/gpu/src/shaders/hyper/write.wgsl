// stream_c += gate_c * y.

struct P {
  width: u32,
  count: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read_write> stream: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  if (i >= p.width) {
    return;
  }
  let value = y[group.y * p.width + i];
  for (var c = 0u; c < p.count; c = c + 1u) {
    let at = (group.y * p.count + c) * p.width + i;
    stream[at] = fma(gate[group.y * p.count + c], value, stream[at]);
  }
}
