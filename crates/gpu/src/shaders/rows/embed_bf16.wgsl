// Rows of a bf16 table.

@group(0) @binding(0) var<storage, read> table: array<u32>;

fn value_at(row: u32, cols: u32, i: u32) -> f32 {
  let at = row * cols + i;
  let pair = table[at / 2u];
  return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, (at & 1u) == 1u));
}
