// The best blocks of a row, ascending; the lowest first among equals. One workgroup per row.
//
// The threshold is found byte by byte from the top: how many scores share the bytes so far and have
// which next byte. Then each lane takes what it wants of its own stretch of blocks.

struct P {
  ratio: u32,
  budget: u32,
  first: u32,
  stride: u32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read_write> picks: array<u32>;

var<workgroup> counts: array<atomic<u32>, 256>;
// Bytes found so far, and how many of the scores equal to the threshold are taken.
var<workgroup> found: vec2<u32>;
var<workgroup> above: array<u32, LANES>;
var<workgroup> equal: array<u32, LANES>;

// Inclusive sums over lanes.
fn scan(lane: u32) {
  for (var n = 1u; n < LANES; n = n * 2u) {
    workgroupBarrier();
    var a = above[lane];
    var e = equal[lane];
    if (lane >= n) {
      a = a + above[lane - n];
      e = e + equal[lane - n];
    }
    workgroupBarrier();
    above[lane] = a;
    equal[lane] = e;
  }
  workgroupBarrier();
}

// One byte of the threshold.
fn narrow(blocks: u32, at: u32, shift: u32, lane: u32) {
  atomicStore(&counts[lane], 0u);
  workgroupBarrier();
  let known = found.x;
  // All bytes above the one at `shift`; a shift by 32 would be none at all.
  let mask = select(0xffffff00u << shift, 0u, shift == 24u);
  for (var b = lane; b < blocks; b = b + LANES) {
    let score = scores[at + b];
    if ((score & mask) == known) {
      atomicAdd(&counts[(score >> shift) & 255u], 1u);
    }
  }
  workgroupBarrier();
  if (lane == 0u) {
    var left = found.y;
    var byte = 255u;
    loop {
      let count = atomicLoad(&counts[byte]);
      if (count >= left || byte == 0u) {
        break;
      }
      left = left - count;
      byte = byte - 1u;
    }
    found = vec2<u32>(known | (byte << shift), left);
  }
  workgroupBarrier();
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = p.first + group.y;
  let blocks = (row_index(row) + 1u) / p.ratio;
  let to = row * (p.budget + 1u);
  if (lane == 0u) {
    picks[to] = min(blocks, p.budget);
  }
  if (blocks <= p.budget) {
    for (var b = lane; b < blocks; b = b + LANES) {
      picks[to + 1u + b] = b;
    }
    return;
  }
  if (p.budget == 0u) {
    return;
  }
  let at = group.y * p.stride;
  if (lane == 0u) {
    found = vec2<u32>(0u, p.budget);
  }
  workgroupBarrier();
  narrow(blocks, at, 24u, lane);
  narrow(blocks, at, 16u, lane);
  narrow(blocks, at, 8u, lane);
  narrow(blocks, at, 0u, lane);
  let threshold = found.x;
  let ties = found.y;
  let share = (blocks + LANES - 1u) / LANES;
  let begin = min(lane * share, blocks);
  let end = min(begin + share, blocks);
  var a = 0u;
  var e = 0u;
  for (var b = begin; b < end; b = b + 1u) {
    a = a + u32(scores[at + b] > threshold);
    e = e + u32(scores[at + b] == threshold);
  }
  above[lane] = a;
  equal[lane] = e;
  scan(lane);
  var equals = equal[lane] - e;
  var place = above[lane] - a + min(equals, ties);
  for (var b = begin; b < end; b = b + 1u) {
    let score = scores[at + b];
    let tie = score == threshold;
    if (score > threshold || (tie && equals < ties)) {
      picks[to + 1u + place] = b;
      place = place + 1u;
    }
    equals = equals + u32(tie);
  }
}
