// Chosen rows, one after the other.

struct P {
  width: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> input: array<f32>;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  if (i < p.width) {
    output[group.y * p.width + i] = input[chosen[group.y] * p.width + i];
  }
}
