// out = epilogue(W x): one workgroup per tile of outputs and ROWS rows.

struct P {
  rows: u32,
  cols: u32,
  // Outputs of this part of the matrix.
  outs: u32,
  // Outputs of the whole matrix, and the first one of this part.
  stride: u32,
  offset: u32,
  epilogue: u32,
  divisor: f32,
}
var<immediate> p: P;

@group(0) @binding(2) var<storage, read_write> output: array<f32>;
@group(0) @binding(3) var<storage, read> extra: array<f32>;

fn epilogue(v: f32, row: u32, at: u32) -> f32 {
  switch p.epilogue {
    case 1u: { return silu(v / p.divisor); }
    case 2u: { return 2.0 * sigmoid(v / p.divisor); }
    case 3u: { return silu(extra[at]) * v; }
    case 4u: { return v * sigmoid(extra[row]); }
    default: { return v; }
  }
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first = group.y * ROWS;
  row$r = min(first + $ru, p.rows - 1u);
  set_rows(p.cols);
  products(0u, group.x, p.cols, lane);
  for (var i = lane; i < TILE * ROWS; i = i + LANES) {
    let o = group.x * TILE + i % TILE;
    let row = first + i / TILE;
    if (o < p.outs && row < p.rows) {
      let at = row * p.stride + p.offset + o;
      output[at] = epilogue(result(i / TILE, i % TILE), row, at);
    }
  }
}
