// The k largest router logits of a row (lowest id among equals) and their softmax weights. One
// workgroup per row. Logits are compared as integers in the total order of floats.

struct P {
  experts: u32,
  k: u32,
  // 1: the weights are divided by their sum.
  norm: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
// Per row: k ids, then k weights as bits.
@group(0) @binding(1) var<storage, read_write> routes: array<u32>;

// Keys of all experts, four by four; what hangs over the end is smaller than any logit.
var<workgroup> keys: array<vec4<u32>, ROOM / 4u>;
var<workgroup> chosen: array<u32, CHOSEN>;
var<workgroup> sorted: array<u32, CHOSEN>;

fn order(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let src = group.y * p.experts;
  for (var i = lane; i < ROOM; i = i + LANES) {
    keys[i / 4u][i % 4u] = select(0u, order(logits[src + min(i, p.experts - 1u)]), i < p.experts);
  }
  workgroupBarrier();
  for (var e = lane; e < p.experts; e = e + LANES) {
    let mine = vec4<u32>(keys[e / 4u][e % 4u]);
    var before = vec4<u32>(0u);
    for (var o = 0u; o < ROOM / 4u; o = o + 1u) {
      let other = keys[o];
      let lower = vec4<u32>(4u * o, 4u * o + 1u, 4u * o + 2u, 4u * o + 3u) < vec4<u32>(e);
      let first = (other > mine) | ((other == mine) & lower);
      before = before + select(vec4<u32>(0u), vec4<u32>(1u), first);
    }
    let rank = (before.x + before.y) + (before.z + before.w);
    if (rank < p.k) {
      chosen[rank] = e;
    }
  }
  workgroupBarrier();
  for (var r = lane; r < p.k; r = r + LANES) {
    var place = 0u;
    for (var o = 0u; o < p.k; o = o + 1u) {
      place = place + u32(chosen[o] < chosen[r]);
    }
    sorted[place] = chosen[r];
  }
  let most = logits[src + chosen[0]];
  var all = 0.0;
  for (var e = lane; e < p.experts; e = e + LANES) {
    all = all + exp(logits[src + e] - most);
  }
  var sum = sum_lanes(all, lane);
  if (p.norm == 1u) {
    sum = 0.0;
    for (var r = 0u; r < p.k; r = r + 1u) {
      sum = sum + exp(logits[src + sorted[r]] - most);
    }
  }
  for (var r = lane; r < p.k; r = r + LANES) {
    let to = group.y * 2u * p.k + r;
    routes[to] = sorted[r];
    routes[to + p.k] = bitcast<u32>(exp(logits[src + sorted[r]] - most) / sum);
  }
}
