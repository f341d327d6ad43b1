// Sums and maxima over the LANES lanes of a workgroup, always as the same tree.

var<workgroup> tree: array<f32, LANES>;

fn sum_lanes(value: f32, lane: u32) -> f32 {
  workgroupBarrier();
  tree[lane] = value;
  for (var n = LANES / 2u; n > 0u; n = n / 2u) {
    workgroupBarrier();
    if (lane < n) {
      tree[lane] = tree[lane] + tree[lane + n];
    }
  }
  workgroupBarrier();
  return tree[0];
}

fn max_lanes(value: f32, lane: u32) -> f32 {
  workgroupBarrier();
  tree[lane] = value;
  for (var n = LANES / 2u; n > 0u; n = n / 2u) {
    workgroupBarrier();
    if (lane < n) {
      tree[lane] = max(tree[lane], tree[lane + n]);
    }
  }
  workgroupBarrier();
  return tree[0];
}
