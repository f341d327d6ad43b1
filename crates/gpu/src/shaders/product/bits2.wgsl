// 2-bit codes: word w holds quads 4w..4w+4, quad 4w+i at bits 2i of each byte.

fn high_bits(at: u32, word: u32, quad: u32) -> vec4<u32> {
  return vec4<u32>(0u);
}

fn codes(q: vec4<u32>, high: vec4<u32>, c: u32, byte: u32) -> vec4<f32> {
  return vec4<f32>((q >> vec4<u32>(byte * 8u + c * 2u)) & vec4<u32>(3u));
}
