// Causal depthwise convolution over the rows of each sequence: earlier rows of the run come from the
// input, rows before it from the ring.

struct P {
  width: u32,
  kernel: u32,
  dilation: u32,
  capacity: u32,
  // 0: output = silu(sum); 1: output += gated + silu(sum).
  adds: u32,
  // 1: every run is short enough to be remembered at once.
  keeps: u32,
  runs_at: u32,
  pages_at: u32,
}
var<immediate> p: P;

@group(0) @binding(1) var<storage, read> taps: array<f32>;
@group(0) @binding(2) var<storage, read> input: array<f32>;
@group(0) @binding(3) var<storage, read> gated: array<f32>;
@group(0) @binding(4) var<storage, read_write> ring: array<f32>;
@group(0) @binding(5) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = group.x * 64u + lane;
  let row = group.y;
  if (i >= p.width) {
    return;
  }
  let index = row_index(row);
  let at = row_at(row);
  let slot = run_slot(row_run(row)) * p.capacity;
  // Both places are loaded, all taps together: waiting once is cheaper than choosing first.
  let back$r = (p.kernel - 1u - $ru) * p.dilation;
  let near$r = input[(row - min(back$r, at)) * p.width + i];
  let far$r = ring[(slot + (index - min(back$r, index)) % p.capacity) * p.width + i];
  let tap$r = taps[i * p.kernel + $ru];
  var sum = 0.0;
  sum = fma(tap$r, select(select(0.0, far$r, back$r <= index), near$r, back$r <= at), sum);
  let here = row * p.width + i;
  // A run of at most MAX_TENTATIVE rows overwrites no row that the run still needs.
  if (p.keeps == 1u) {
    ring[(slot + index % p.capacity) * p.width + i] = input[here];
  }
  if (p.adds == 1u) {
    output[here] = (output[here] + gated[here]) + silu(sum);
  } else {
    output[here] = silu(sum);
  }
}
