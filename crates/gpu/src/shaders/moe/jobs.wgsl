// The routes of a batch become jobs, one per pair (row, rank), when every expert lies in memory.

struct P {
  pairs: u32,
  k: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> routes: array<u32>;
// Per expert: page and slab of its record.
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read_write> jobs: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let pair = group.x * 64u + lane;
  if (pair >= p.pairs) {
    return;
  }
  let expert = routes[pair / p.k * 2u * p.k + pair % p.k];
  let to = pair * JOB_WORDS;
  jobs[to] = places[expert * 2u];
  jobs[to + 1u] = places[expert * 2u + 1u];
  jobs[to + 2u] = 1u;
  jobs[to + 3u] = pair;
}
