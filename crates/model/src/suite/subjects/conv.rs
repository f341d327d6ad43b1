//! `conv_silu` and `ngram_add`: causal convolutions with a memory.

use super::super::random::Random;
use super::super::rows::Rows;
use super::super::subject::{Piece, Subject, Tried};
use crate::checked::Verb;
use crate::device::{Act, Device, PleWeights, RowLane};
use crate::error::Result;

/// A convolution over the rows.
pub struct Conv {
    width: usize,
    kernel: usize,
    taps: Vec<f32>,
}

/// Kernels of 1 to 5 taps.
pub fn convs(random: &mut Random) -> Vec<Conv> {
    let case =
        |(width, kernel)| Conv { width, kernel, taps: random.values(width * kernel, 0.0, 0.5) };
    [(64, 4), (96, 2), (80, 3), (320, 5), (32, 1)].map(case).into()
}

/// On a device.
pub struct LoadedConv<D: Device> {
    lane: RowLane,
    taps: D::Vector,
    x: Act,
    out: Act,
}

impl Subject for Conv {
    type Loaded<D: Device> = LoadedConv<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::ConvSilu]
    }

    fn name(&self) -> String {
        format!("{} channels, {} taps", self.width, self.kernel)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<LoadedConv<D>> {
        Ok(LoadedConv {
            lane: device.row_lane(self.width, self.kernel - 1),
            taps: device.vector(&self.taps)?,
            x: device.act(self.width),
            out: device.act(self.width),
        })
    }

    fn run<D: Device>(
        &self,
        device: &mut D,
        on: &mut LoadedConv<D>,
        rows: &Rows,
    ) -> Tried<Vec<Piece>> {
        device.put(on.x, &rows.primary(1, self.width, self.width))?;
        device.conv_silu(on.lane, &on.taps, self.kernel, on.x, on.out)?;
        Ok(vec![Piece::values(Verb::ConvSilu, device.fetch(on.out)?)])
    }
}

/// A PLE layer.
pub struct Ngram {
    h: usize,
    count: usize,
    kernel: usize,
    dilation: usize,
    /// Norms of key, query and convolution.
    norms: [Vec<f32>; 3],
    taps: Vec<f32>,
}

/// 2 and 4 streams, several kernels and dilations.
pub fn ngrams(random: &mut Random) -> Vec<Ngram> {
    let shapes = [(64, 2, 4, 3), (96, 4, 4, 2), (64, 4, 2, 5), (160, 2, 3, 3)];
    let case = |(h, count, kernel, dilation)| Ngram {
        h,
        count,
        kernel,
        dilation,
        norms: [0; 3].map(|_| random.values(h * count, 1.0, 0.3)),
        taps: random.values(h * count * kernel, 0.0, 0.5),
    };
    shapes.map(case).into()
}

/// On a device.
pub struct LoadedNgram<D: Device> {
    lane: RowLane,
    w: PleWeights<D::Vector>,
    key: Act,
    val: Act,
    stream: Act,
}

impl Subject for Ngram {
    type Loaded<D: Device> = LoadedNgram<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::NgramAdd]
    }

    fn name(&self) -> String {
        let (kernel, dilation) = (self.kernel, self.dilation);
        format!("{} streams of {}, {kernel} taps {dilation} apart", self.count, self.h)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<LoadedNgram<D>> {
        let wide = self.h * self.count;
        Ok(LoadedNgram {
            lane: device.row_lane(wide, (self.kernel - 1) * self.dilation),
            w: PleWeights {
                count: self.count,
                norm_key: device.vector(&self.norms[0])?,
                norm_query: device.vector(&self.norms[1])?,
                norm_conv: device.vector(&self.norms[2])?,
                taps: device.vector(&self.taps)?,
                kernel: self.kernel,
                dilation: self.dilation,
            },
            key: device.act(wide),
            val: device.act(self.h),
            stream: device.act(wide),
        })
    }

    fn run<D: Device>(
        &self,
        device: &mut D,
        on: &mut LoadedNgram<D>,
        rows: &Rows,
    ) -> Tried<Vec<Piece>> {
        let wide = self.h * self.count;
        device.put(on.key, &rows.primary(1, wide, wide))?;
        device.put(on.val, &rows.input(2, self.h))?;
        device.put(on.stream, &rows.input(3, wide))?;
        device.ngram_add(on.lane, &on.w, on.key, on.val, on.stream)?;
        Ok(vec![Piece::values(Verb::NgramAdd, device.fetch(on.stream)?)])
    }
}
