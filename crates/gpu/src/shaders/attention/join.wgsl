// The segments of a head joined in order, times the sigmoid of its gate.

struct P {
  width: u32,
  heads: u32,
  ratio: u32,
  budget: u32,
  first: u32,
  segments: u32,
  // Tokens of a segment.
  tokens: u32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> picks: array<u32>;
@group(0) @binding(2) var<storage, read> parts: array<f32>;
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = p.first + group.z;
  let tail = (row_index(row) + 1u) % p.ratio;
  let tokens = picks[row * (p.budget + 1u)] * p.ratio + tail;
  let segments = (tokens + p.tokens - 1u) / p.tokens;
  let i = group.x * 64u + lane;
  if (i >= p.width) {
    return;
  }
  let stride = p.width + 2u;
  let src = (group.z * p.heads + group.y) * p.segments * stride;
  var most = -3.4e38;
  for (var s = 0u; s < segments; s = s + 1u) {
    most = max(most, parts[src + s * stride]);
  }
  var sum = 0.0;
  var value = 0.0;
  for (var s = 0u; s < segments; s = s + 1u) {
    let at = src + s * stride;
    let share = exp(parts[at] - most);
    sum = fma(parts[at + 1u], share, sum);
    value = fma(parts[at + 2u + i], share, value);
  }
  let head = row * p.heads + group.y;
  // No visible token at all (a block of one token whose own key lost): zero, as an empty sum.
  let mean = select(0.0, value / sum, segments > 0u);
  output[head * p.width + i] = mean * sigmoid(gates[(head * 2u + 1u) * p.width + i]);
}
