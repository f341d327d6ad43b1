// PLE up to its convolution: gated = sigmoid(signed sqrt of (norm(key) . norm(stream)) / sqrt(h)) * val
// per stream, and its norm. One workgroup per stream and row.

struct P {
  width: u32,
  count: u32,
  eps: f32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> key: array<f32>;
@group(0) @binding(1) var<storage, read> stream: array<f32>;
@group(0) @binding(2) var<storage, read> val: array<f32>;
@group(0) @binding(3) var<storage, read> key_weight: array<f32>;
@group(0) @binding(4) var<storage, read> query_weight: array<f32>;
@group(0) @binding(5) var<storage, read> conv_weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> gated: array<f32>;
@group(0) @binding(7) var<storage, read_write> normed: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let src = (group.y * p.count + group.x) * p.width;
  let w = group.x * p.width;
  var keys = 0.0;
  var queries = 0.0;
  var both = 0.0;
  for (var i = lane; i < p.width; i = i + LANES) {
    let k = key[src + i];
    let q = stream[src + i];
    keys = fma(k, k, keys);
    queries = fma(q, q, queries);
    both = fma(k * key_weight[w + i], q * query_weight[w + i], both);
  }
  let width = f32(p.width);
  let k_scale = 1.0 / sqrt(sum_lanes(keys, lane) / width + p.eps);
  let q_scale = 1.0 / sqrt(sum_lanes(queries, lane) / width + p.eps);
  let a = ((sum_lanes(both, lane) * k_scale) * q_scale) / sqrt(width);
  let root = sqrt(max(abs(a), 1e-6));
  // Zero stays zero, and what is no number stays none.
  let open = sigmoid(select(select(a, -root, a < 0.0), root, a > 0.0));
  var squares = 0.0;
  for (var i = lane; i < p.width; i = i + LANES) {
    let g = open * val[group.y * p.width + i];
    gated[src + i] = g;
    squares = fma(g, g, squares);
  }
  let scale = 1.0 / sqrt(sum_lanes(squares, lane) / width + p.eps);
  for (var i = lane; i < p.width; i = i + LANES) {
    normed[src + i] = ((open * val[group.y * p.width + i]) * scale) * conv_weight[w + i];
  }
}
