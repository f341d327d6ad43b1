// Rows of an f32 table.

@group(0) @binding(0) var<storage, read> table: array<f32>;

fn value_at(row: u32, cols: u32, i: u32) -> f32 {
  return table[row * cols + i];
}
