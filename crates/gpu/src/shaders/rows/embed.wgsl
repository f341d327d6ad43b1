// out = table[token] for the tokens whose row lies in this part of the table.

struct P {
  cols: u32,
  first: u32,
  count: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  let row = tokens[group.y * ROW_WORDS] - p.first;
  if (i < p.cols && row < p.count) {
    output[group.y * p.cols + i] = value_at(row, p.cols, i);
  }
}
