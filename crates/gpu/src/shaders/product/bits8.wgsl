// 8-bit codes: word q is quad q.

fn high_bits(at: u32, word: u32, quad: u32) -> vec4<u32> {
  return vec4<u32>(0u);
}

fn codes(q: vec4<u32>, high: vec4<u32>, c: u32, byte: u32) -> vec4<f32> {
  return vec4<f32>((q >> vec4<u32>(byte * 8u)) & vec4<u32>(255u));
}
