// Softmax attention of SHARE query heads over one segment of a row's visible tokens: the picked blocks,
// then the incomplete tail. Gives each head's maximum, its sum and its weighted values.
//
// The heads share a key and value head, so its rows are read once for all of them; each head's sums are
// its own. Segments are cut by place in the list of tokens, so they depend on the row alone.

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

var<workgroup> query: array<vec4<f32>, SHARE * QUADS>;
var<workgroup> weights: array<f32, SHARE * LANES>;
// First quad of each token's head.
var<workgroup> places: array<u32, LANES>;
var<workgroup> sums: array<vec4<f32>, GROUPS * QUADS>;

// Writes one head's weighted values: the groups' sums, added in order.
fn finish(to: u32, lane: u32) {
  workgroupBarrier();
  for (var i = lane; i < HEAD; i = i + LANES) {
    var value = 0.0;
    for (var g = 0u; g < GROUPS; g = g + 1u) {
      value = value + sums[g * QUADS + i / 4u][i % 4u];
    }
    parts[to + 2u + i] = value;
  }
  workgroupBarrier();
}

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
  let first_head = group.y * SHARE;
  let src = (row * p.heads + first_head) * QUADS;
  for (var i = lane; i < SHARE * QUADS; i = i + LANES) {
    query[i] = queries[src + i];
  }
  workgroupBarrier();
  let kv_head = first_head / (p.heads / p.kv_heads);
  var score$r = -3.4e38;
  if (lane < count) {
    let t = begin + lane;
    var token = complete + t - picked;
    if (t < picked) {
      token = picks[row * (p.budget + 1u) + 1u + t / p.ratio] * p.ratio + t % p.ratio;
    }
    let place = (page_row(row_run(row), token, p.page_rows) * p.kv_heads + kv_head) * QUADS;
    places[lane] = place;
    var dots$r = vec4<f32>(0.0);
    for (var i = 0u; i < QUADS; i = i + 1u) {
      let key = keys[place + i];
      dots$r = fma(query[$ru * QUADS + i], key, dots$r);
    }
    score$r = ((dots$r.x + dots$r.y) + (dots$r.z + dots$r.w)) / sqrt(f32(HEAD));
  }
  let stride = p.segments * (HEAD + 2u);
  let to = (group.z * p.heads + first_head) * stride + group.x * (HEAD + 2u);
  let most$r = max_lanes(score$r, lane);
  let weight$r = select(0.0, exp(score$r - most$r), lane < count);
  weights[$ru * LANES + lane] = weight$r;
  let sum$r = sum_lanes(weight$r, lane);
  if (lane == 0u) {
    parts[to + $ru * stride] = most$r;
    parts[to + $ru * stride + 1u] = sum$r;
  }
  // The sums above ended with a barrier: places and weights are there.
  var value$r = vec4<f32>(0.0);
  let quad = lane % QUADS;
  if (lane < GROUPS * QUADS) {
    // Four tokens are loaded together and added in order; those beyond the end have no weight.
    for (var t = lane / QUADS; t < count; t = t + 4u * GROUPS) {
      let t1 = min(t + GROUPS, count - 1u);
      let t2 = min(t + 2u * GROUPS, count - 1u);
      let t3 = min(t + 3u * GROUPS, count - 1u);
      let v0 = values[places[t] + quad];
      let v1 = values[places[t1] + quad];
      let v2 = values[places[t2] + quad];
      let v3 = values[places[t3] + quad];
      value$r = fma(vec4<f32>(weights[$ru * LANES + t]), v0, value$r);
      value$r = fma(vec4<f32>(select(0.0, weights[$ru * LANES + t1], t + GROUPS < count)), v1, value$r);
      value$r = fma(vec4<f32>(select(0.0, weights[$ru * LANES + t2], t + 2u * GROUPS < count)), v2, value$r);
      value$r = fma(vec4<f32>(select(0.0, weights[$ru * LANES + t3], t + 3u * GROUPS < count)), v3, value$r);
    }
  }
  if (lane < GROUPS * QUADS) { sums[lane] = value$r; } finish(to + $ru * stride, lane);
}
