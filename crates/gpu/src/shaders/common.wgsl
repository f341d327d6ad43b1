// Activations shared by all kernels.

fn sigmoid(x: f32) -> f32 {
  return 1.0 / (1.0 + exp(-x));
}

fn silu(x: f32) -> f32 {
  return x / (1.0 + exp(-x));
}

// ln(1 + e^x) without overflow or cancellation.
fn softplus(x: f32) -> f32 {
  let t = exp(-abs(x));
  let small = t * (1.0 - t * (0.5 - t * (0.33333334 - 0.25 * t)));
  return max(x, 0.0) + select(log(1.0 + t), small, t < 0.01);
}
