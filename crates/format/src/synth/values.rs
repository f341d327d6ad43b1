//! The numbers of a synthetic model.
//!
//! Owns: how every tensor's values are drawn, as floats or directly as codes. Never: files.
//! Invariant: floats follow from (seed, tensor, row) and codes from (seed, tensor, first row of the
//! unit) alone, so neither threads nor the order of writing change a bit; every drawn float is a
//! bf16 number, every scale is exact in f16 too.
//!
//! Values are uniform, symmetric about the tensor's centre. Projections get a spread of
//! `gain / sqrt(inputs)`, which keeps activations near one throughout; the gain makes gates and the
//! router depend on their input (routes are spread, gates are open to different degrees). A mean other
//! than zero would be amplified from layer to layer by the square root of the width, so codes are
//! drawn with exactly the centre as their mean.

use crate::checksum::checksum;
use crate::encoding::{Bits, Encoding};
use crate::float::{bf16_to_f32, f32_to_bf16};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::tensors::{Kind, TensorSpec};
use crate::rows::{ROW_GROUP, RowEncoding};
use crate::tile16::{HEADER_BYTES, TILE_ROWS, block_bytes};

/// Where the values of a tensor lie: uniform in `centre - reach .. centre + reach`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Mean.
    pub centre: f32,
    /// Largest distance from it.
    pub reach: f32,
}

/// Standard deviation of a uniform value, times the square root of three, is its reach.
const SQRT_3: f32 = 1.732_050_8;

impl Spread {
    fn projection(inputs: usize, gain: f32) -> Self {
        Self { centre: 0.0, reach: gain * SQRT_3 / (inputs as f32).sqrt() }
    }

    /// Of a dense tensor. Norms: of `w`, to which 1 is added later.
    pub fn of(spec: &TensorSpec, config: &Config) -> Self {
        let end = spec.name.rsplit('.').next().unwrap_or_default();
        let streams = config.hyper.count as f32;
        match (spec.kind, end) {
            (Kind::Norm, _) => Self { centre: 0.0, reach: 0.1 },
            // Decay rates from 1 to 16, steps from 0.001 to 0.1 as DeltaNets are initialised.
            (Kind::Plain, "A_log") => Self { centre: 1.386, reach: 1.386 },
            (Kind::Plain, "dt_bias") => Self { centre: -4.55, reach: 2.35 },
            (Kind::Plain, "norm") => Self { centre: 1.0, reach: 0.1 },
            (_, "embed_tokens") => Self { centre: 0.0, reach: SQRT_3 },
            // The sums over all streams are divided by their count.
            (_, "input_mix_weight_down" | "block_inject_weight") => {
                Self::projection(spec.cols, streams)
            }
            (_, "gate" | "lm_head") => Self::projection(spec.cols, 4.0),
            _ => Self::projection(spec.cols, 1.0),
        }
    }

    /// Of a routed expert's matrix with this many inputs.
    pub fn expert(inputs: usize) -> Self {
        Self::projection(inputs, 1.0)
    }

    /// Of n-gram rows.
    pub const NGRAM: Self = Self { centre: 0.0, reach: SQRT_3 };

    /// A scale that gives codes of this width the spread, before it is varied.
    fn scale(self, bits: Bits) -> f32 {
        let deviation = match bits {
            Bits::B2 => 1.118,
            Bits::B3 => 2.291,
            Bits::B4 => 4.183,
            Bits::B8 => 73.46,
        };
        self.reach / SQRT_3 / deviation
    }
}

/// A stream of random words (splitmix64).
pub struct Noise(u64);

impl Noise {
    /// The stream of one row, or of one unit that starts with that row.
    pub fn new(seed: u64, tensor: &str, row: u64) -> Self {
        let key = [seed, checksum(tensor.as_bytes()), row].map(u64::to_le_bytes).concat();
        Self(checksum(&key))
    }

    #[inline]
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Draws one row; every value is a bf16 number.
pub fn row(mut noise: Noise, spread: Spread, out: &mut [f32]) {
    let step = spread.reach / 32768.0;
    for four in out.chunks_mut(4) {
        let word = noise.word();
        for (i, out) in four.iter_mut().enumerate() {
            // The middle of one of 65536 cells: the mean is exactly the centre.
            let at = f32::from((word >> (16 * i)) as u16) - 32767.5;
            *out = bf16_to_f32(f32_to_bf16(at * step + spread.centre));
        }
    }
}

/// Replaces code 0, which has no opposite, by the centre. Both ends of the range are then equally
/// far from it, and the mean is the centre.
#[inline]
fn centred(word: u64, bits: Bits) -> u64 {
    match bits {
        Bits::B4 => {
            let any = word | (word >> 1) | (word >> 2) | (word >> 3);
            word | ((!any & 0x1111_1111_1111_1111) << 3)
        }
        Bits::B8 => {
            let mut any = word | (word >> 4);
            any |= any >> 2;
            any |= any >> 1;
            word | ((!any & 0x0101_0101_0101_0101) << 7)
        }
        // The middle lies between two codes: all are used.
        Bits::B2 | Bits::B3 => word,
    }
}

/// Fills `out` with codes.
fn codes(noise: &mut Noise, bits: Bits, out: &mut [u8]) {
    let (whole, rest) = out.as_chunks_mut::<8>();
    for out in whole {
        *out = centred(noise.word(), bits).to_le_bytes();
    }
    let last = centred(noise.word(), bits).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// A scale and the bias that centres the codes on zero: 8 or 128 scales below it at 4 and 8 bits,
/// 1.5 or 3.5 at 2 and 3. `random` varies the scale by a quarter.
fn pair(scale: f32, bits: Bits, random: u16) -> (u16, u16) {
    let varied = scale * (0.75 + f32::from(random) / 131_072.0);
    // Five significant bits: the bias is exact in bf16.
    let scale = f32_to_bf16(varied) & 0xfff8;
    let centre = match bits {
        Bits::B2 => 1.5,
        Bits::B3 => 3.5,
        Bits::B4 => 8.0,
        Bits::B8 => 128.0,
    };
    (scale, f32_to_bf16(-centre * bf16_to_f32(scale)))
}

/// Writes rows `first..first + rows` of a matrix into `out`, a unit of its own. `float` draws a row
/// of floats by number.
pub fn matrix(
    noise: &mut Noise,
    spread: Spread,
    (rows, cols): (usize, usize),
    encoding: Encoding,
    float: impl Fn(usize, &mut [f32]),
    out: &mut [u8],
) {
    let Encoding::Tile16 { bits, group } = encoding else {
        let to = if encoding == Encoding::F32 { RowEncoding::F32 } else { RowEncoding::Bf16 };
        return floats(rows, cols, to, float, out);
    };
    let size = block_bytes(bits, group);
    let per_tile = cols / group.get();
    let scale = spread.scale(bits);
    for (number, block) in out.chunks_exact_mut(size).enumerate() {
        let live = (rows - number / per_tile * TILE_ROWS).min(TILE_ROWS);
        let (header, words) = block.split_at_mut(HEADER_BYTES);
        for r in 0..live {
            let (s, b) = pair(scale, bits, noise.word() as u16);
            header[2 * r..][..2].copy_from_slice(&s.to_le_bytes());
            header[32 + 2 * r..][..2].copy_from_slice(&b.to_le_bytes());
        }
        codes(noise, bits, words);
        if live < TILE_ROWS {
            // Rows beyond the matrix are zeros.
            words.chunks_exact_mut(4 * TILE_ROWS).for_each(|word| word[4 * live..].fill(0));
        }
    }
}

/// Writes rows of an n-gram table into `out`.
pub fn table(
    noise: &mut Noise,
    width: usize,
    rows: usize,
    encoding: RowEncoding,
    float: impl Fn(usize, &mut [f32]),
    out: &mut [u8],
) {
    let RowEncoding::Affine { bits } = encoding else {
        return floats(rows, width, encoding, float, out);
    };
    let scale = Spread::NGRAM.scale(bits);
    let groups = width / ROW_GROUP;
    for row in out.chunks_exact_mut(encoding.row_bytes(width).expect("laid out")) {
        let (packed, tail) = row.split_at_mut(width * bits.get() / 8);
        codes(noise, bits, packed);
        for g in 0..groups {
            let (s, b) = pair(scale, bits, noise.word() as u16);
            tail[2 * g..][..2].copy_from_slice(&s.to_le_bytes());
            tail[2 * (groups + g)..][..2].copy_from_slice(&b.to_le_bytes());
        }
    }
}

fn floats(
    rows: usize,
    cols: usize,
    to: RowEncoding,
    float: impl Fn(usize, &mut [f32]),
    out: &mut [u8],
) {
    let mut values = vec![0f32; cols];
    let row_bytes = to.row_bytes(cols).expect("laid out");
    for (number, out) in out.chunks_exact_mut(row_bytes).enumerate().take(rows) {
        float(number, &mut values);
        to.put_float(&values, out);
    }
}
