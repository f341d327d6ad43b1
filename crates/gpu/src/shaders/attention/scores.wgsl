// The scores of the complete blocks that a row sees: sum over heads of relu(q . key) / sqrt(width).
// Scores are never negative, so their bits order them.

struct P {
  width: u32,
  heads: u32,
  ratio: u32,
  page_rows: u32,
  // First row of this slice, and scores of a row.
  first: u32,
  stride: u32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> queries: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> pooled: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> scores: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let block = group.x * 64u + lane;
  let row = p.first + group.y;
  if (block >= (row_index(row) + 1u) / p.ratio) {
    return;
  }
  let quads = p.width / 4u;
  let key = page_row(row_run(row), block * p.ratio, p.page_rows) / p.ratio * quads;
  var score = 0.0;
  for (var h = 0u; h < p.heads; h = h + 1u) {
    let query = (row * p.heads + h) * quads;
    var dots = vec4<f32>(0.0);
    for (var i = 0u; i < quads; i = i + 1u) {
      dots = fma(queries[query + i], pooled[key + i], dots);
    }
    let dot = (dots.x + dots.y) + (dots.z + dots.w);
    score = score + select(0.0, dot, dot > 0.0);
  }
  scores[group.y * p.stride + block] = bitcast<u32>(score / sqrt(f32(p.width)));
}
