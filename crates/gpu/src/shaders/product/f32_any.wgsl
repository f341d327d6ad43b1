// f32 weights of any width: what hangs over the end of a row counts as zero.

@group(0) @binding(0) var<storage, read> weights: array<f32>;
@group(0) @binding(1) var<storage, read> input: array<f32>;

fn input_stride(cols: u32) -> u32 {
  return cols;
}

fn input_at(row: u32, cols: u32, i: u32) -> f32 {
  return select(0.0, input[row + min(i, cols - 1u)], i < cols);
}

fn input_quad(row: u32, cols: u32, k: u32) -> vec4<f32> {
  let i = 4u * k;
  return vec4<f32>(
    input_at(row, cols, i), input_at(row, cols, i + 1u),
    input_at(row, cols, i + 2u), input_at(row, cols, i + 3u));
}

fn weight_at(base: u32, o: u32, cols: u32, i: u32) -> f32 {
  return weights[base + o * cols + min(i, cols - 1u)];
}

fn weight_quad(base: u32, o: u32, cols: u32, k: u32) -> vec4<f32> {
  let i = 4u * k;
  return vec4<f32>(
    weight_at(base, o, cols, i), weight_at(base, o, cols, i + 1u),
    weight_at(base, o, cols, i + 2u), weight_at(base, o, cols, i + 3u));
}
