// Softmax attention of one head over one segment of a row's visible tokens: the picked blocks, then
// the incomplete tail. Gives the segment's maximum, its sum and its weighted values.
//
// Segments are cut by place in that list, so they depend on the row alone.

struct P {
  heads: u32,
  kv_heads: u32,
  ratio: u32,
  page_rows: u32,
  // Most blocks of a row.
  budget: u32,
  first: u32,
  // Segments of a row in the result.
  segments: u32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> picks: array<u32>;
@group(0) @binding(2) var<storage, read> queries: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> parts: array<f32>;

const QUADS: u32 = HEAD / 4u;
// Groups of lanes that share the tokens of a segment among them.
const GROUPS: u32 = max(1u, LANES / QUADS);

var<workgroup> query: array<vec4<f32>, QUADS>;
var<workgroup> weights: array<f32, LANES>;
// First quad of each token's head.
var<workgroup> places: array<u32, LANES>;
var<workgroup> sums: array<vec4<f32>, GROUPS * QUADS>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = p.first + group.z;
  let index = row_index(row);
  let complete = (index + 1u) / p.ratio * p.ratio;
  let picked = picks[row * (p.budget + 1u)] * p.ratio;
  let tokens = picked + index + 1u - complete;
  let begin = group.x * LANES;
  if (begin >= tokens) {
    return;
  }
  let count = min(LANES, tokens - begin);
  let src = (row * p.heads + group.y) * QUADS;
  for (var i = lane; i < QUADS; i = i + LANES) {
    query[i] = queries[src + i];
  }
  workgroupBarrier();
  let kv_head = group.y / (p.heads / p.kv_heads);
  var score = -3.4e38;
  if (lane < count) {
    let t = begin + lane;
    var token = complete + t - picked;
    if (t < picked) {
      token = picks[row * (p.budget + 1u) + 1u + t / p.ratio] * p.ratio + t % p.ratio;
    }
    let place = (page_row(row_run(row), token, p.page_rows) * p.kv_heads + kv_head) * QUADS;
    places[lane] = place;
    var dots = vec4<f32>(0.0);
    for (var i = 0u; i < QUADS; i = i + 1u) {
      dots = fma(query[i], keys[place + i], dots);
    }
    score = ((dots.x + dots.y) + (dots.z + dots.w)) / sqrt(f32(HEAD));
  }
  let most = max_lanes(score, lane);
  let weight = select(0.0, exp(score - most), lane < count);
  weights[lane] = weight;
  let sum = sum_lanes(weight, lane);
  let to = ((group.z * p.heads + group.y) * p.segments + group.x) * (HEAD + 2u);
  if (lane == 0u) {
    parts[to] = most;
    parts[to + 1u] = sum;
  }
  for (var i = lane; i < GROUPS * QUADS; i = i + LANES) {
    var value = vec4<f32>(0.0);
    for (var t = i / QUADS; t < count; t = t + GROUPS) {
      value = fma(vec4<f32>(weights[t]), values[places[t] + i % QUADS], value);
    }
    sums[i] = value;
  }
  workgroupBarrier();
  for (var i = lane; i < HEAD; i = i + LANES) {
    var value = 0.0;
    for (var g = 0u; g < GROUPS; g = g + 1u) {
      value = value + sums[g * QUADS + i / 4u][i % 4u];
    }
    parts[to + 2u + i] = value;
  }
}
