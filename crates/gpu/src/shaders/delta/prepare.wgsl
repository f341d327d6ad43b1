// Before the delta rule: q and k normed per key head, their product, decay and beta per value head.
// A row of the result is: q of all key heads | k | k.q per key head | decay | beta per value head.

struct P {
  key_heads: u32,
  value_heads: u32,
  key_dim: u32,
  // Values of a row of qkv.
  channels: u32,
  stride: u32,
}
var<immediate> p: P;

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> a_log: array<f32>;
@group(0) @binding(4) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let head = group.x;
  let row = group.y;
  let keys = p.key_heads * p.key_dim;
  let src = row * p.channels + head * p.key_dim;
  let to = row * p.stride + head * p.key_dim;
  var qq = 0.0;
  var kk = 0.0;
  for (var i = lane; i < p.key_dim; i = i + LANES) {
    qq = fma(qkv[src + i], qkv[src + i], qq);
    kk = fma(qkv[src + keys + i], qkv[src + keys + i], kk);
  }
  let q_scale = 1.0 / sqrt(sum_lanes(qq, lane) + 1e-6) / sqrt(f32(p.key_dim));
  let k_scale = 1.0 / sqrt(sum_lanes(kk, lane) + 1e-6);
  var kq = 0.0;
  for (var i = lane; i < p.key_dim; i = i + LANES) {
    let q = qkv[src + i] * q_scale;
    let k = qkv[src + keys + i] * k_scale;
    output[to + i] = q;
    output[to + keys + i] = k;
    kq = fma(k, q, kq);
  }
  let product = sum_lanes(kq, lane);
  let rest = row * p.stride + 2u * keys;
  if (lane == 0u) {
    output[rest + head] = product;
  }
  let shared_by = p.value_heads / p.key_heads;
  for (var i = lane; i < shared_by; i = i + LANES) {
    let value_head = head * shared_by + i;
    let at = row * p.value_heads + value_head;
    let dt = softplus(a[at] + dt_bias[value_head]);
    output[rest + p.key_heads + value_head] = exp(-exp(a_log[value_head]) * dt);
    output[rest + p.key_heads + p.value_heads + value_head] = sigmoid(b[at]);
  }
}
