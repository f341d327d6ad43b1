// f32 weights whose rows are whole quads.

@group(0) @binding(0) var<storage, read> weights: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> input: array<vec4<f32>>;

fn input_stride(cols: u32) -> u32 {
  return cols / 4u;
}

fn input_quad(row: u32, cols: u32, k: u32) -> vec4<f32> {
  return input[row + k];
}

fn weight_quad(base: u32, o: u32, cols: u32, k: u32) -> vec4<f32> {
  return weights[base + o * (cols / 4u) + k];
}
