// Products of one tile (16 outputs) of tile16 weights with ROWS rows of activations.
//
// A lane loads 16 bytes: one code word of four neighbouring outputs. WORDS * 4 lanes cover a block;
// the others take the next blocks. Every lane sums its share in order of the blocks, then the shares
// are added as a tree: the sum of a row does not depend on ROWS. Two blocks are loaded before the
// first is used, so that more bytes are on their way.

const TILE: u32 = 16u;
const CODES: u32 = GROUP / WORDS;
const UNITS: u32 = WORDS * 4u;
const STRIDE: u32 = LANES / UNITS;
const HALF: u32 = LANES / 2u;
// In units of 16 bytes: scales and biases, then the code words.
const BLOCK: u32 = 4u + 4u * CODE_WORDS;

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> input: array<vec4<f32>>;

var<workgroup> part: array<vec4<f32>, HALF * ROWS>;

// First vec4 of each row.
var<private> row$r: u32;
var<private> acc$r: vec4<f32>;

fn set_rows(cols: u32) {
  row$r = row$r * (cols / 4u);
}

// What a lane loads of a block: code words, high bits, scales, biases.
struct Loaded {
  words: vec4<u32>,
  high: vec4<u32>,
  scale: vec2<u32>,
  bias: vec2<u32>,
}

// Two words of a block's header: those of outputs 4*quad..4*quad+4.
fn header(at: u32, quad: u32) -> vec2<u32> {
  let both = weights[at + quad / 2u];
  return select(both.xy, both.zw, (quad & 1u) == 1u);
}

fn load(at: u32, word: u32, quad: u32) -> Loaded {
  return Loaded(
    weights[at + 4u + word * 4u + quad],
    high_bits(at, word, quad),
    header(at, quad),
    header(at + 2u, quad));
}

fn floats(two: vec2<u32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(
    two.x << 16u, two.x & 0xffff0000u, two.y << 16u, two.y & 0xffff0000u));
}

// Adds a block's share; `first` is the place of its inputs within a row.
fn add_block(block: Loaded, first: u32) {
  var t$r = vec4<f32>(0.0);
  var s$r = 0.0;
  for (var c = 0u; c < CODES / 4u; c = c + 1u) {
    let c0 = codes(block.words, block.high, c, 0u);
    let c1 = codes(block.words, block.high, c, 1u);
    let c2 = codes(block.words, block.high, c, 2u);
    let c3 = codes(block.words, block.high, c, 3u);
    let x$r = input[row$r + first + c];
    t$r = fma(c0, vec4<f32>(x$r.x), t$r);
    t$r = fma(c1, vec4<f32>(x$r.y), t$r);
    t$r = fma(c2, vec4<f32>(x$r.z), t$r);
    t$r = fma(c3, vec4<f32>(x$r.w), t$r);
    s$r = s$r + ((x$r.x + x$r.y) + (x$r.z + x$r.w));
  }
  let scale = floats(block.scale);
  let bias = floats(block.bias);
  acc$r = fma(bias, vec4<f32>(s$r), fma(scale, t$r, acc$r));
}

fn products(base: u32, tile: u32, cols: u32, lane: u32) {
  let groups = cols / GROUP;
  let unit = lane % UNITS;
  let word = unit / 4u;
  let quad = unit % 4u;
  let start = base + tile * groups * BLOCK;
  let within = word * (CODES / 4u);
  acc$r = vec4<f32>(0.0);
  for (var g = lane / UNITS; g < groups; g = g + 2u * STRIDE) {
    let second = g + STRIDE;
    let a = load(start + g * BLOCK, word, quad);
    let b = load(start + min(second, groups - 1u) * BLOCK, word, quad);
    add_block(a, g * (GROUP / 4u) + within);
    if (second < groups) {
      add_block(b, second * (GROUP / 4u) + within);
    }
  }
  workgroupBarrier();
  if (lane >= HALF) {
    part[$ru * HALF + lane - HALF] = acc$r;
  }
  workgroupBarrier();
  if (lane < HALF) {
    part[$ru * HALF + lane] = acc$r + part[$ru * HALF + lane];
  }
  for (var n = HALF / 2u; n >= 4u; n = n / 2u) {
    workgroupBarrier();
    if (lane < n) {
      part[$ru * HALF + lane] = part[$ru * HALF + lane] + part[$ru * HALF + lane + n];
    }
  }
  workgroupBarrier();
}

// Result of the last products: output o of the tile, row r.
fn result(r: u32, o: u32) -> f32 {
  return part[r * HALF + o / 4u][o % 4u];
}
