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

var<workgroup> chosen: array<u32, CHOSEN>;
var<workgroup> sorted: array<u32, CHOSEN>;

fn order(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let src = group.y * p.experts;
  for (var e = lane; e < p.experts; e = e + LANES) {
    let mine = order(logits[src + e]);
    var rank = 0u;
    for (var o = 0u; o < p.experts; o = o + 1u) {
      let other = order(logits[src + o]);
      rank = rank + u32(other > mine || (other == mine && o < e));
    }
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
