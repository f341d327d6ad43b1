// The delta rule, row by row: one workgroup per run, value head and COLUMNS columns of the state.
//
// Four lanes share a column, each holds CHUNK of its values in registers. Rows of a tentative run are
// not stored in the state but logged (k, d, decay); the rows that stayed are replayed before the
// sequence's next run, with the same arithmetic, so the state's bits are those of a run that stayed.

struct P {
  key_heads: u32,
  value_heads: u32,
  key_dim: u32,
  value_dim: u32,
  channels: u32,
  // Values of a prepared row.
  stride: u32,
  // Values of a logged row.
  log_stride: u32,
  // Column blocks of a head.
  blocks: u32,
}
var<immediate> p: P;

const COLUMNS: u32 = 32u;
const PARTS: u32 = 4u;
// Words of a run: slot, first row, rows, tentative, rows to replay, log to replay, log to write, 0.
const RUN: u32 = 8u;

@group(0) @binding(0) var<storage, read> runs: array<u32>;
@group(0) @binding(1) var<storage, read> prepared: array<f32>;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> logged: array<f32>;
@group(0) @binding(5) var<storage, read_write> output: array<f32>;

const ROOM: u32 = max(128u, CHUNK * PARTS);
var<workgroup> keys: array<f32, ROOM>;
var<workgroup> queries: array<f32, ROOM>;
var<workgroup> seen: array<f32, COLUMNS * PARTS>;
var<workgroup> answered: array<f32, COLUMNS * PARTS>;

// What a lane needs of a row.
struct Step {
  query: f32,
  key: f32,
  v: f32,
  kq: f32,
  decay: f32,
  beta: f32,
}

fn fetch(row: u32, head: u32, key_head: u32, j: u32, lane: u32) -> Step {
  let key_total = p.key_heads * p.key_dim;
  let at = row * p.stride + key_head * p.key_dim + min(lane, p.key_dim - 1u);
  let rest = row * p.stride + 2u * key_total;
  let value = 2u * key_total + head * p.value_dim + min(j, p.value_dim - 1u);
  return Step(
    select(0.0, prepared[at], lane < p.key_dim),
    select(0.0, prepared[at + key_total], lane < p.key_dim),
    qkv[row * p.channels + value],
    prepared[rest + key_head],
    prepared[rest + p.key_heads + head],
    prepared[rest + p.key_heads + p.value_heads + head]);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let head = group.x / p.blocks;
  let block = group.x % p.blocks;
  let column = lane % COLUMNS;
  let part = lane / COLUMNS;
  let j = block * COLUMNS + column;
  let inside = j < p.value_dim;
  let key_head = head / (p.value_heads / p.key_heads);
  let writes_keys = block == 0u && head % (p.value_heads / p.key_heads) == 0u;
  let run = group.y * RUN;
  let slot = runs[run];
  let rows = runs[run + 2u];
  let tentative = runs[run + 3u] == 1u;
  let replayed = runs[run + 4u];
  let state_at = slot * p.value_heads * p.key_dim * p.value_dim
    + (head * p.key_dim + part * CHUNK) * p.value_dim + j;
  // How many of this lane's values exist.
  let mine = select(0u, min(CHUNK, p.key_dim - min(p.key_dim, part * CHUNK)), inside);
  let key_total = p.key_heads * p.key_dim;
  let value_total = p.value_heads * p.value_dim;

  var s$r = 0.0;
  if ($ru < mine) { s$r = state[state_at + $ru * p.value_dim]; }

  for (var n = 0u; n < replayed; n = n + 1u) {
    let src = ((slot * 2u + runs[run + 5u]) * LOG_ROWS + n) * p.log_stride;
    workgroupBarrier();
    for (var i = lane; i < CHUNK * PARTS; i = i + 128u) {
      keys[i] = select(0.0, logged[src + key_head * p.key_dim + min(i, p.key_dim - 1u)], i < p.key_dim);
    }
    workgroupBarrier();
    let decay = logged[src + key_total + value_total + head];
    let d = select(0.0, logged[src + key_total + head * p.value_dim + min(j, p.value_dim - 1u)], inside);
    s$r = s$r * decay;
    s$r = fma(keys[part * CHUNK + $ru], d, s$r);
  }
  if (tentative && replayed > 0u) {
    if ($ru < mine) { state[state_at + $ru * p.value_dim] = s$r; }
  }

  var next = fetch(runs[run + 1u], head, key_head, j, lane);
  for (var n = 0u; n < rows; n = n + 1u) {
    let row = runs[run + 1u] + n;
    let now = next;
    workgroupBarrier();
    queries[lane] = now.query;
    keys[lane] = now.key;
    // Heads wider than the workgroup: the rest comes without haste.
    for (var i = lane + 128u; i < CHUNK * PARTS; i = i + 128u) {
      let at = row * p.stride + key_head * p.key_dim + min(i, p.key_dim - 1u);
      queries[i] = select(0.0, prepared[at], i < p.key_dim);
      keys[i] = select(0.0, prepared[at + key_total], i < p.key_dim);
    }
    workgroupBarrier();
    // The next row is on its way while this one is computed.
    next = fetch(min(row + 1u, runs[run + 1u] + rows - 1u), head, key_head, j, lane);
    let decay = now.decay;
    var sk = 0.0;
    var sq = 0.0;
    s$r = s$r * decay;
    sk = fma(s$r, keys[part * CHUNK + $ru], sk);
    sq = fma(s$r, queries[part * CHUNK + $ru], sq);
    seen[lane] = sk;
    answered[lane] = sq;
    workgroupBarrier();
    let saw = (seen[column] + seen[column + 32u]) + (seen[column + 64u] + seen[column + 96u]);
    let d = select(0.0, now.beta * (now.v - saw), inside);
    s$r = fma(keys[part * CHUNK + $ru], d, s$r);
    let to = ((slot * 2u + runs[run + 6u]) * LOG_ROWS + n) * p.log_stride;
    if (part == 0u && inside) {
      let y = (answered[column] + answered[column + 32u])
        + (answered[column + 64u] + answered[column + 96u]);
      output[row * value_total + head * p.value_dim + j] = fma(d, now.kq, y);
      if (tentative) {
        logged[to + key_total + head * p.value_dim + j] = d;
      }
    }
    if (tentative && writes_keys) {
      for (var i = lane; i < p.key_dim; i = i + 128u) {
        logged[to + key_head * p.key_dim + i] = keys[i];
      }
    }
    if (tentative && block == 0u && lane == 0u) {
      logged[to + key_total + value_total + head] = decay;
    }
  }
  if (!tentative) {
    if ($ru < mine) { state[state_at + $ru * p.value_dim] = s$r; }
  }
}
