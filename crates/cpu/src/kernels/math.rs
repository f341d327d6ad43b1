//! Elementary functions, computed the same way on every platform.
//!
//! Owns: exp, ln and what is made of them. Never: the platform's mathematics library.
//! Invariant: lane by lane, no lane sees another; NaN in, NaN out.

use crate::simd::Simd;

/// Adding and subtracting this rounds a float below 2^22 in magnitude to an integer, ties to even.
pub const MAGIC: f32 = 12_582_912.0;

/// Highest argument of [`exp`] with a finite result.
const EXP_MAX: f32 = 88.722_84;
/// Below this [`exp`] is 0.
const EXP_MIN: f32 = -103.972_08;
const LN_2_HIGH: f32 = std::f32::consts::LN_2;
/// ln 2 minus [`LN_2_HIGH`].
const LN_2_LOW: f32 = -1.904_654_3e-9;

/// `-x`.
#[inline(always)]
pub fn neg<S: Simd>(s: S, x: S::F) -> S::F {
    s.mul(x, s.splat(-1.0))
}

/// `|x|`.
#[inline(always)]
pub fn abs<S: Simd>(s: S, x: S::F) -> S::F {
    s.of_bits(s.and(s.bits(x), s.isplat(i32::MAX)))
}

/// The larger of both; `acc` where `x` is NaN.
#[inline(always)]
pub fn larger<S: Simd>(s: S, acc: S::F, x: S::F) -> S::F {
    s.select(s.gt(x, acc), x, acc)
}

/// The nearest integer to `x`, ties to even; |x| below 2^22.
#[inline(always)]
pub fn round_to_int<S: Simd>(s: S, x: S::F) -> S::I {
    s.isub(s.bits(s.add(x, s.splat(MAGIC))), s.isplat(MAGIC.to_bits() as i32))
}

/// Horner's rule, highest power first.
#[inline(always)]
fn poly<S: Simd, const N: usize>(s: S, x: S::F, coefficients: [f32; N]) -> S::F {
    let mut y = s.splat(coefficients[0]);
    for c in &coefficients[1..] {
        y = s.fma(y, x, s.splat(*c));
    }
    y
}

/// `2^n` within the normal numbers.
#[inline(always)]
fn power_of_2<S: Simd>(s: S, n: S::I) -> S::F {
    s.of_bits(s.shl(s.iadd(n, s.isplat(127)), 23))
}

/// `e^x`: within 1 ulp or so of the true value where that is normal.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let magic = s.splat(MAGIC);
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(shifted, magic);
    let r = s.fma(n, s.splat(-LN_2_HIGH), x);
    let r = s.fma(n, s.splat(-LN_2_LOW), r);
    let p = poly(
        s,
        r,
        [1.985_276_2e-4, 1.393_043_6e-3, 8.333_361e-3, 4.166_648_5e-2, 0.166_666_67, 0.5],
    );
    let y = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    // 2^n in two steps, so that results below the smallest normal number come out right.
    let n = s.isub(s.bits(shifted), s.isplat(MAGIC.to_bits() as i32));
    let half = s.sar(n, 1);
    let y = s.mul(s.mul(y, power_of_2(s, half)), power_of_2(s, s.isub(n, half)));
    let y = s.select(s.gt(x, s.splat(EXP_MAX)), s.splat(f32::INFINITY), y);
    s.select(s.gt(s.splat(EXP_MIN), x), s.splat(0.0), y)
}

/// Natural logarithm of a positive normal number.
#[inline(always)]
fn ln_normal<S: Simd>(s: S, x: S::F) -> S::F {
    // x = 2^e * m, m within [sqrt(1/2), sqrt(2)).
    const SQRT_HALF: i32 = 0x3f35_04f3;
    let offset = s.isub(s.bits(x), s.isplat(SQRT_HALF));
    let e = s.to_f32(s.sar(offset, 23));
    let mantissa = s.iadd(s.and(offset, s.isplat(0x007f_ffff)), s.isplat(SQRT_HALF));
    let f = s.sub(s.of_bits(mantissa), s.splat(1.0));
    let z = s.mul(f, f);
    let p = poly(
        s,
        f,
        [
            7.037_683_6e-2,
            -0.115_146_1,
            0.116_769_99,
            -0.124_201_41,
            0.142_493_23,
            -0.166_680_58,
            0.200_007_15,
            -0.249_999_94,
            0.333_333_3,
        ],
    );
    let y = s.mul(s.mul(p, f), z);
    let y = s.fma(e, s.splat(-2.121_944_4e-4), y);
    let y = s.fma(z, s.splat(-0.5), y);
    s.fma(e, s.splat(0.693_359_4), s.add(f, y))
}

/// `ln(1 + u)` for u within [0, 1]; NaN stays.
#[inline(always)]
fn ln_1p<S: Simd>(s: S, u: S::F) -> S::F {
    let one = s.splat(1.0);
    let w = s.add(one, u);
    // What the addition rounded away.
    let lost = s.sub(u, s.sub(w, one));
    s.add(ln_normal(s, w), s.div(lost, w))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, neg(s, x))))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.mul(x, sigmoid(s, x))
}

/// `ln(1 + e^x)`.
#[inline(always)]
pub fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let rest = ln_1p(s, exp(s, neg(s, abs(s, x))));
    s.add(larger(s, s.splat(0.0), x), rest)
}

/// Natural logarithm; subnormal arguments count as their exact value, negative ones give NaN.
#[inline(always)]
pub fn ln<S: Simd>(s: S, x: S::F) -> S::F {
    let small = s.gt(s.splat(f32::MIN_POSITIVE), x);
    let scaled = s.select(small, s.mul(x, s.splat(16_777_216.0)), x);
    let y = ln_normal(s, scaled);
    let y = s.select(small, s.sub(y, s.splat(16.635_532)), y);
    let zero = s.splat(0.0);
    let nan = s.splat(f32::NAN);
    let y = s.select(s.gt(x, s.splat(f32::MAX)), s.splat(f32::INFINITY), y);
    // Not positive: minus infinity for zero, else NaN (NaN compares with nothing).
    let at_zero = s.select(s.gt(zero, x), nan, s.splat(f32::NEG_INFINITY));
    let y = s.select(s.gt(x, zero), y, at_zero);
    let ordered = s.or(s.gt(x, s.splat(-1.0)), s.gt(one(s), x));
    s.select(ordered, y, nan)
}

#[inline(always)]
fn one<S: Simd>(s: S) -> S::F {
    s.splat(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Arch, Isa, LANES, Op};

    #[derive(Clone, Copy, Debug)]
    enum Function {
        Exp,
        Ln,
        Sigmoid,
        Silu,
        Softplus,
    }

    struct Apply {
        function: Function,
        x: [f32; LANES],
    }

    impl Op for Apply {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; LANES] {
            let x = s.load(&self.x);
            let y = match self.function {
                Function::Exp => exp(s, x),
                Function::Ln => ln(s, x),
                Function::Sigmoid => sigmoid(s, x),
                Function::Silu => silu(s, x),
                Function::Softplus => softplus(s, x),
            };
            let mut out = [0.0; LANES];
            s.store(y, &mut out);
            out
        }
    }

    fn truth(function: Function, x: f64) -> f64 {
        match function {
            Function::Exp => libm::exp(x),
            Function::Ln => libm::log(x),
            Function::Sigmoid => 1.0 / (1.0 + libm::exp(-x)),
            Function::Silu => x / (1.0 + libm::exp(-x)),
            Function::Softplus => x.max(0.0) + libm::log1p(libm::exp(-x.abs())),
        }
    }

    /// Distance in units of the last place of a f32 of that size.
    fn ulps(found: f32, truth: f64) -> f64 {
        let unit = f64::from(f32::from_bits((truth.abs() as f32).to_bits() & 0x7f80_0000))
            * f64::from(f32::EPSILON);
        (f64::from(found) - truth).abs() / unit.max(f64::from(f32::from_bits(1)))
    }

    fn arguments() -> Vec<[f32; LANES]> {
        let mut all = Vec::new();
        // Every 65 521st bit pattern, NaN and infinities of both signs among them.
        let mut bits = 0u32;
        loop {
            all.push(f32::from_bits(bits));
            let Some(next) = bits.checked_add(65_521) else { break };
            bits = next;
        }
        all.extend((-120_000..120_000).map(|i| i as f32 * 1e-3));
        all.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, EXP_MAX, EXP_MIN]);
        while !all.len().is_multiple_of(LANES) {
            all.push(1.0);
        }
        all.as_chunks().0.to_vec()
    }

    fn check(function: Function, normal_ulps: f64, floor: f64) {
        for x in arguments() {
            let y = Arch::new(Isa::detect()).unwrap().run(Apply { function, x });
            for (x, y) in x.into_iter().zip(y) {
                let truth = truth(function, f64::from(x));
                if truth.is_nan() {
                    assert!(y.is_nan(), "{function:?}({x}) = {y}");
                } else if truth.abs() > f64::from(f32::MAX) {
                    assert_eq!(f64::from(y), truth.signum() * f64::INFINITY, "{function:?}({x})");
                } else {
                    let off = (f64::from(y) - truth).abs();
                    assert!(
                        off <= floor || ulps(y, truth) <= normal_ulps,
                        "{function:?}({x}) = {y}, expected {truth}"
                    );
                }
            }
        }
    }

    #[test]
    fn exp_is_right_everywhere() {
        check(Function::Exp, 1.1, 0.0);
    }

    #[test]
    fn ln_is_right_everywhere() {
        check(Function::Ln, 1.6, 0.0);
    }

    #[test]
    fn sigmoid_is_right_everywhere() {
        // Where e^-x overflows the true value is below 1e-38.
        check(Function::Sigmoid, 2.5, 1e-38);
    }

    #[test]
    fn silu_is_right_everywhere() {
        check(Function::Silu, 3.0, 1e-36);
    }

    #[test]
    fn softplus_is_right_everywhere() {
        check(Function::Softplus, 2.0, 0.0);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for function in
            [Function::Exp, Function::Ln, Function::Sigmoid, Function::Silu, Function::Softplus]
        {
            for x in arguments().into_iter().step_by(7) {
                let expected = Arch::new(Isa::Portable).unwrap().run(Apply { function, x });
                for isa in Isa::available() {
                    let found = Arch::new(isa).unwrap().run(Apply { function, x });
                    for ((x, e), f) in x.into_iter().zip(expected).zip(found) {
                        let same = e.to_bits() == f.to_bits() || e.is_nan() && f.is_nan();
                        assert!(same, "{function:?}({x}): {} {f}, portable {e}", isa.name());
                    }
                }
            }
        }
    }
}
