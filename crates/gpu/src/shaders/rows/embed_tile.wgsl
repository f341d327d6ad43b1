// Rows of a tile16 table, chosen by token; one lane per value.

@group(0) @binding(0) var<storage, read> table: array<u32>;

const BLOCK: u32 = 16u + 16u * CODE_WORDS;

fn half_of(word: u32, odd: u32) -> f32 {
  return bitcast<f32>(select(word << 16u, word & 0xffff0000u, odd == 1u));
}

fn code_at(words: u32, row: u32, i: u32) -> u32 {
  let quad = i / 4u;
  let lane = (i % 4u) * 8u;
  if (BITS == 8u) {
    return (table[words + quad * 16u + row] >> lane) & 255u;
  }
  if (BITS == 4u) {
    return (table[words + quad / 2u * 16u + row] >> (lane + 4u * (quad % 2u))) & 15u;
  }
  let low = (table[words + quad / 4u * 16u + row] >> (lane + 2u * (quad % 4u))) & 3u;
  if (BITS == 2u) {
    return low;
  }
  let top = table[words + (WORDS + quad / 8u) * 16u + row] >> (lane + quad % 8u);
  return low | ((top & 1u) << 2u);
}

fn value_at(row: u32, cols: u32, i: u32) -> f32 {
  let at = (row / 16u * (cols / GROUP) + i / GROUP) * BLOCK;
  let r = row % 16u;
  let scale = half_of(table[at + r / 2u], r % 2u);
  let bias = half_of(table[at + 8u + r / 2u], r % 2u);
  return fma(f32(code_at(at + 16u, r, i % GROUP)), scale, bias);
}
