// Norm and rotation of one head, in memory that the workgroup shares.

var<workgroup> head: array<f32, HEAD>;

// Norms head[0..width] with the weight and turns its first 2*half values. The rotation is row
// `turn` of the table: half pairs (cosine, sine). The values must be there, behind a barrier.
fn norm_rotate(width: u32, half: u32, turn: u32, eps: f32, lane: u32) {
  var sum = 0.0;
  for (var i = lane; i < width; i = i + LANES) {
    sum = fma(head[i], head[i], sum);
  }
  let scale = 1.0 / sqrt(sum_lanes(sum, lane) / f32(width) + eps);
  for (var i = lane; i < width; i = i + LANES) {
    head[i] = (head[i] * scale) * weight[i];
  }
  workgroupBarrier();
  for (var i = lane; i < half; i = i + LANES) {
    let cosine = rope[(turn * half + i) * 2u];
    let sine = rope[(turn * half + i) * 2u + 1u];
    let x = head[i];
    let y = head[i + half];
    head[i] = fma(x, cosine, -(y * sine));
    head[i + half] = fma(y, cosine, x * sine);
  }
  workgroupBarrier();
}
