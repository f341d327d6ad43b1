// out = sum over ranks, ascending, of weight * part, then + shared. A weight of 0 has no part.

struct P {
  width: u32,
  k: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> routes: array<u32>;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read> shared_part: array<f32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  let row = group.y;
  if (i >= p.width) {
    return;
  }
  let weight$r = bitcast<f32>(routes[row * 2u * p.k + p.k + $ru]);
  let part$r = select(0.0, parts[(row * p.k + $ru) * p.width + i], weight$r != 0.0);
  var sum = 0.0;
  sum = fma(weight$r, part$r, sum);
  output[row * p.width + i] = sum + shared_part[row * p.width + i];
}
