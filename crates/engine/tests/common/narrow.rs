//! Records at fewer bits made from wider ones while they are read: the scheme of the packer, and what a
//! program without a packer would do.

use cherenkov_experts::{ExpertKey, FileSource, PageBuf, Result, Source};
use cherenkov_format::affine::quantise;
use cherenkov_format::float::{bf16_to_f32, f32_to_bf16};
use cherenkov_format::{Bits, Encoding, Group, Projection, RecordLayout, tile16};

/// How narrower codes come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The packer's search, over the values of the wider codes.
    Search,
    /// The low bits of the codes are dropped.
    Drop,
    /// As before, and the bias is moved to the middle of what was dropped.
    DropCentred,
}

/// A source of narrower records.
pub struct Narrowed {
    wide: FileSource,
    layout: RecordLayout,
    bits: Bits,
    scheme: Scheme,
}

fn affine(encoding: Encoding) -> (Bits, Group) {
    let Encoding::Tile16 { bits, group } = encoding else { panic!("floats have no codes") };
    (bits, group)
}

impl Narrowed {
    pub fn new(wide: FileSource, bits: Bits, scheme: Scheme) -> Self {
        let from = *wide.layout();
        let narrow = |which| {
            let (_, group) = affine(from.shape(which).2);
            Encoding::Tile16 { bits, group }
        };
        let (inner, outer) = (narrow(Projection::Gate), narrow(Projection::Down));
        let layout = RecordLayout::new(from.hidden(), from.width(), inner, outer).unwrap();
        Self { wide, layout, bits, scheme }
    }

    fn group(&self, (from, codes): (Bits, &mut [u8]), (scale, bias): (u16, u16)) -> (u16, u16) {
        let (s, b) = (bf16_to_f32(scale), bf16_to_f32(bias));
        let dropped = from.get() - self.bits.get();
        let step = f32::from(1u8 << dropped);
        if self.scheme == Scheme::Search {
            let values: Vec<f32> = codes.iter().map(|&c| f32::from(c) * s + b).collect();
            let found = quantise(&values, self.bits);
            codes.copy_from_slice(&found.codes[..codes.len()]);
            return (found.scale, found.bias);
        }
        codes.iter_mut().for_each(|c| *c >>= dropped);
        let middle = if self.scheme == Scheme::Drop { 0.0 } else { (step - 1.0) / 2.0 };
        (f32_to_bf16(s * step), f32_to_bf16(b + s * middle))
    }
}

impl Source for Narrowed {
    fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    fn shape(&self) -> (usize, usize) {
        self.wide.shape()
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        let from = *self.wide.layout();
        let mut record = PageBuf::new(from.bytes());
        self.wide.read(key, record.as_mut())?;
        out.fill(0);
        for which in [Projection::Gate, Projection::Up, Projection::Down] {
            let (rows, cols, encoding) = from.shape(which);
            let (bits, group) = affine(encoding);
            let [wide, narrow] = [bits, self.bits].map(|bits| tile16::block_bytes(bits, group));
            let (source, target) = (from.span(which).0, self.layout.span(which).0);
            let mut codes = vec![0; group.get()];
            for row in 0..rows {
                for g in 0..cols / group.get() {
                    let block = row / 16 * (cols / group.get()) + g;
                    let bytes = &record.as_ref()[source + block * wide..][..wide];
                    let pair = tile16::get_row(bytes, bits, group, row % 16, &mut codes);
                    let pair = self.group((bits, &mut codes), pair);
                    let bytes = &mut out[target + block * narrow..][..narrow];
                    tile16::put_row(bytes, self.bits, group, row % 16, pair, &codes);
                }
            }
        }
        Ok(())
    }
}

/// Sums over tokens of what one model says and another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Divergence {
    pub tokens: usize,
    /// Sum of the KL divergences, nats.
    pub kl: f64,
    /// The largest one.
    pub worst: f64,
    /// Tokens with the same most probable one.
    pub agree: usize,
}

impl Divergence {
    /// Adds one token: logits of the model compared with, and of the other.
    pub fn add(&mut self, exact: &[f32], other: &[f32]) {
        let (p, q) = (log_softmax(exact), log_softmax(other));
        let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
        self.tokens += 1;
        self.kl += kl;
        self.worst = self.worst.max(kl);
        self.agree += usize::from(largest(exact) == largest(other));
    }

    /// Nats per token.
    pub fn mean(&self) -> f64 {
        self.kl / self.tokens as f64
    }
}

pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - most).exp()).sum();
    logits.iter().map(|&l| f64::from(l - most) - sum.ln()).collect()
}

fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}
