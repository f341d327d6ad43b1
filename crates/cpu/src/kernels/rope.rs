//! Rotary embedding.
//!
//! Owns: the table of a batch's sines and cosines, computed in f64 and rounded once; the rotation.
//! Never: the platform's mathematics library.

use cherenkov_format::qwen4_exp::config::Attention;
use cherenkov_model::Position;

/// Sines and cosines of some positions.
#[derive(Debug, Default)]
pub struct RopeTable {
    frequencies: Vec<f64>,
    section: [usize; 3],
    /// `[position, cos of all pairs then sin of all pairs]`.
    values: Vec<f32>,
}

impl RopeTable {
    /// The table of these positions for this geometry.
    pub fn fill(&mut self, spec: &Attention, positions: &[Position]) {
        let half = spec.rope_dims / 2;
        self.section = spec.mrope_section;
        self.frequencies.clear();
        self.frequencies.extend((0..half).map(|i| {
            let exponent = -((2 * i) as f64) / spec.rope_dims as f64;
            libm::pow(spec.rope_theta, exponent)
        }));
        self.values.clear();
        for position in positions {
            let angles = || {
                let turn = |(i, f): (usize, &f64)| f64::from(axis(spec, i, *position)) * f;
                self.frequencies.iter().enumerate().map(turn)
            };
            self.values.extend(angles().map(|a| libm::cos(a) as f32));
            self.values.extend(angles().map(|a| libm::sin(a) as f32));
        }
    }

    /// Cosines and sines of one of the positions.
    pub fn row(&self, index: usize) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        self.values[index * 2 * half..][..2 * half].split_at(half)
    }
}

/// The coordinate that frequency `i` turns by: axes are interleaved.
fn axis(spec: &Attention, i: usize, position: Position) -> u32 {
    let [_, height, width] = spec.mrope_section;
    match i % 3 {
        1 if i < 3 * height => position.h,
        2 if i < 3 * width => position.w,
        _ => position.t,
    }
}

/// Rotates the first values of a head: value i pairs with value i + half.
#[inline(always)]
pub fn rotate((cos, sin): (&[f32], &[f32]), head: &mut [f32]) {
    let half = cos.len();
    let (a, b) = head[..2 * half].split_at_mut(half);
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x.mul_add(*cos, -(y * sin));
        *b = y.mul_add(*cos, x * sin);
    }
}
