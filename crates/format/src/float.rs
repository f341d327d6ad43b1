//! Conversions between f32 and the 16-bit floats of checkpoints.
//!
//! Owns: bit-exact bf16 and f16 conversion, rounding to nearest even. Never: arithmetic.

/// Widens a bf16 bit pattern; exact.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest bf16, ties to even. NaN stays NaN.
#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // Setting the quiet bit keeps a NaN whose payload sits in the dropped half from becoming infinity.
        return ((bits >> 16) | 0x0040) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Widens an IEEE half-precision bit pattern; exact.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits) & 0x3ff;
    let magnitude = match (exponent, fraction) {
        (0, 0) => 0,
        // Subnormal: fraction * 2^-24 is exact in f32.
        (0, _) => (fraction as f32 * 2f32.powi(-24)).to_bits(),
        (0x1f, _) => 0x7f80_0000 | (fraction << 13),
        _ => ((exponent + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// Rounds to the nearest half-precision float, ties to even; overflow becomes infinity.
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude >= 0x7f80_0000 {
        return sign | if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    }
    if magnitude < 0x3880_0000 {
        // Below the smallest normal half: adding 0.5 aligns the mantissa so that the hardware rounds.
        let aligned = f32::from_bits(magnitude) + 0.5;
        return sign | (aligned.to_bits() - 0x3f00_0000) as u16;
    }
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    let half = (rounded >> 13).wrapping_sub(112 << 10);
    sign | half.min(0x7c00) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(bits);
            if wide.is_nan() {
                assert!(f16_to_f32(f32_to_f16(wide)).is_nan());
            } else {
                assert_eq!(f32_to_f16(wide), bits, "{bits:#06x}");
            }
            let wide = bf16_to_f32(bits);
            if wide.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(wide)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(wide), bits, "{bits:#06x}");
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(f32_to_f16(1.0 + 2f32.powi(-11)), 0x3c00);
        assert_eq!(f32_to_f16(1.0 + 3.0 * 2f32.powi(-11)), 0x3c02);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(2f32.powi(-25)), 0);
    }
}
