// Products of one tile (4 outputs) of row-major weights with ROWS rows of activations.
//
// LANES / 4 lanes share an output; each sums its quads of inputs in order, then the shares are added as
// a tree: the sum of a row does not depend on ROWS.

const TILE: u32 = 4u;
const SHARE: u32 = LANES / TILE;

var<workgroup> part: array<f32, LANES * ROWS>;

var<private> row$r: u32;

fn set_rows(cols: u32) {
  row$r = row$r * input_stride(cols);
}

fn products(base: u32, tile: u32, cols: u32, lane: u32) {
  let quads = (cols + 3u) / 4u;
  // The last tile may hang over: its lanes then sum the last output again, and nobody stores it.
  let o = min(tile * TILE + lane / SHARE, p.outs - 1u);
  let share = lane % SHARE;
  var acc$r = 0.0;
  for (var k = share; k < quads; k = k + 2u * SHARE) {
    let second = k + SHARE;
    let v = weight_quad(base, o, cols, k);
    let w = weight_quad(base, o, cols, min(second, quads - 1u));
    let x$r = input_quad(row$r, cols, k);
    acc$r = fma(v.w, x$r.w, fma(v.z, x$r.z, fma(v.y, x$r.y, fma(v.x, x$r.x, acc$r))));
    if (second < quads) {
      let y$r = input_quad(row$r, cols, second);
      acc$r = fma(w.w, y$r.w, fma(w.z, y$r.z, fma(w.y, y$r.y, fma(w.x, y$r.x, acc$r))));
    }
  }
  workgroupBarrier();
  part[$ru * LANES + lane] = acc$r;
  for (var n = SHARE / 2u; n > 0u; n = n / 2u) {
    workgroupBarrier();
    if (share < n) {
      part[$ru * LANES + lane] = part[$ru * LANES + lane] + part[$ru * LANES + lane + n];
    }
  }
  workgroupBarrier();
}

fn result(r: u32, o: u32) -> f32 {
  return part[r * LANES + o * SHARE];
}
