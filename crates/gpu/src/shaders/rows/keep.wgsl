// The last rows of each run enter the ring of their sequence.

struct P {
  width: u32,
  // Values of an input row, and the first one that is kept.
  stride: u32,
  offset: u32,
  capacity: u32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> input: array<f32>;
@group(0) @binding(2) var<storage, read_write> ring: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  let row = group.y;
  let run = row_run(row);
  if (i >= p.width || row_at(row) + p.capacity < run_rows(run)) {
    return;
  }
  let to = run_slot(run) * p.capacity + row_index(row) % p.capacity;
  ring[to * p.width + i] = input[row * p.stride + p.offset + i];
}
