// Products of one tile (16 outputs) of tile16 weights with ROWS rows of activations.
//
// A lane loads 16 bytes: one code word of four neighbouring outputs. WORDS * 4 lanes cover a block;
// the others take the next blocks. Every lane sums its share in order of the blocks, then the shares
// are added as a tree: the sum of a row does not depend on ROWS.

const TILE: u32 = 16u;
const CODES: u32 = GROUP / WORDS;
const UNITS: u32 = WORDS * 4u;
const STRIDE: u32 = LANES / UNITS;
// In units of 16 bytes: scales and biases, then the code words.
const BLOCK: u32 = 4u + 4u * CODE_WORDS;

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> input: array<vec4<f32>>;

var<workgroup> part: array<vec4<f32>, LANES * ROWS>;

// First vec4 of each row.
var<private> row$r: u32;

fn set_rows(cols: u32) {
  row$r = row$r * (cols / 4u);
}

// Four bf16 values of a block's header: those of outputs 4*quad..4*quad+4.
fn header(at: u32, quad: u32) -> vec4<f32> {
  let both = weights[at + quad / 2u];
  let two = select(both.xy, both.zw, (quad & 1u) == 1u);
  return bitcast<vec4<f32>>(vec4<u32>(
    two.x << 16u, two.x & 0xffff0000u, two.y << 16u, two.y & 0xffff0000u));
}

fn products(base: u32, tile: u32, cols: u32, lane: u32) {
  let groups = cols / GROUP;
  let unit = lane % UNITS;
  let word = unit / 4u;
  let quad = unit % 4u;
  var acc$r = vec4<f32>(0.0);
  for (var g = lane / UNITS; g < groups; g = g + STRIDE) {
    let at = base + (tile * groups + g) * BLOCK;
    let q = weights[at + 4u + word * 4u + quad];
    let high = high_bits(at, word, quad);
    let scale = header(at, quad);
    let bias = header(at + 2u, quad);
    let src = g * (GROUP / 4u) + word * (CODES / 4u);
    var t$r = vec4<f32>(0.0);
    var s$r = 0.0;
    for (var c = 0u; c < CODES / 4u; c = c + 1u) {
      let c0 = codes(q, high, c, 0u);
      let c1 = codes(q, high, c, 1u);
      let c2 = codes(q, high, c, 2u);
      let c3 = codes(q, high, c, 3u);
      let x$r = input[row$r + src + c];
      t$r = fma(c0, vec4<f32>(x$r.x), t$r);
      t$r = fma(c1, vec4<f32>(x$r.y), t$r);
      t$r = fma(c2, vec4<f32>(x$r.z), t$r);
      t$r = fma(c3, vec4<f32>(x$r.w), t$r);
      s$r = s$r + ((x$r.x + x$r.y) + (x$r.z + x$r.w));
    }
    acc$r = fma(bias, vec4<f32>(s$r), fma(scale, t$r, acc$r));
  }
  workgroupBarrier();
  part[$ru * LANES + lane] = acc$r;
  for (var n = LANES / 2u; n >= 4u; n = n / 2u) {
    workgroupBarrier();
    if (lane < n) {
      part[$ru * LANES + lane] = part[$ru * LANES + lane] + part[$ru * LANES + lane + n];
    }
  }
  workgroupBarrier();
}

// Result of the last products: output o of the tile, row r.
fn result(r: u32, o: u32) -> f32 {
  return part[r * LANES + o / 4u][o % 4u];
}
