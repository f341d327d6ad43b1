// Every stream of a row becomes, or gains, x.

struct P {
  width: u32,
  count: u32,
  // 0: becomes; 1: gains.
  gains: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> input: array<f32>;
@group(0) @binding(1) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  if (i >= p.width) {
    return;
  }
  let x = input[group.y * p.width + i];
  for (var c = 0u; c < p.count; c = c + 1u) {
    let at = (group.y * p.count + c) * p.width + i;
    output[at] = select(x, output[at] + x, p.gains == 1u);
  }
}
