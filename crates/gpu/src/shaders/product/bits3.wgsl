// 3-bit codes: low two bits as 2-bit codes, then words in which quad 8w+i has its high bit at bit i.

fn high_bits(at: u32, word: u32, quad: u32) -> vec4<u32> {
  return weights[at + 4u + (WORDS + word / 2u) * 4u + quad] >> vec4<u32>((word & 1u) * 4u);
}

fn codes(q: vec4<u32>, high: vec4<u32>, c: u32, byte: u32) -> vec4<f32> {
  let low = (q >> vec4<u32>(byte * 8u + c * 2u)) & vec4<u32>(3u);
  let top = (high >> vec4<u32>(byte * 8u + c)) & vec4<u32>(1u);
  return vec4<f32>(low | (top << vec4<u32>(2u)));
}
