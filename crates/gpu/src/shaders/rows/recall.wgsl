// Each row becomes a row of the input or a kept row.

struct P {
  width: u32,
  capacity: u32,
}
var<immediate> p: P;

// Per row: 0, row, 0; or 1, slot, index.
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read> input: array<f32>;
@group(0) @binding(2) var<storage, read> ring: array<f32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  if (i >= p.width) {
    return;
  }
  let a = source[group.y * 3u + 1u];
  let b = source[group.y * 3u + 2u];
  if (source[group.y * 3u] == 0u) {
    output[group.y * p.width + i] = input[a * p.width + i];
  } else {
    output[group.y * p.width + i] = ring[(a * p.capacity + b % p.capacity) * p.width + i];
  }
}
