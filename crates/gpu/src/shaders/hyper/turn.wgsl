// stream_c += gate_c * y, and the norm of what it becomes, four values at a time, all loads at once. One
// workgroup per stream and row.

struct P {
  width: u32,
  count: u32,
  eps: f32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> y: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> stream: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> normed: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let quads = p.width / 4u;
  let at = (group.y * p.count + group.x) * quads;
  let open = vec4<f32>(gate[group.y * p.count + group.x]);
  let i$r = min(lane + $ru * LANES, quads - 1u);
  let inside$r = lane + $ru * LANES < quads;
  let y$r = y[group.y * quads + i$r];
  let s$r = stream[at + i$r];
  let w$r = weight[group.x * quads + i$r];
  let x$r = select(vec4<f32>(0.0), fma(open, y$r, s$r), inside$r);
  var sum = 0.0;
  sum = fma(x$r.w, x$r.w, fma(x$r.z, x$r.z, fma(x$r.y, x$r.y, fma(x$r.x, x$r.x, sum))));
  // Behind the barriers of this sum nobody reads the old stream any more.
  let mean = sum_lanes(sum, lane) / f32(p.width);
  let scale = 1.0 / sqrt(mean + p.eps);
  if (inside$r) { stream[at + i$r] = x$r; }
  if (inside$r) { normed[at + i$r] = (x$r * scale) * w$r; }
}
