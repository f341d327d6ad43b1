//! Which kernels there are, and their sources.
//!
//! Owns: the pieces of WGSL, how a variant is put together. Never: compiling (see `pipelines`).
//! Invariant: the arithmetic of a row does not depend on a kernel's number of rows.

use crate::device::ParamPath;
use crate::params::{self, Fields};
use crate::tables::{ROW_WORDS, RUN_WORDS};
use cherenkov_format::{Bits, Encoding, Group};
use cherenkov_model::MAX_TENTATIVE;
use std::fmt::Write;

/// Whether a kernel writes a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It only reads.
    Read,
    /// It writes (and may read).
    Write,
}

/// How weights are read by a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Layout of the weights.
    pub encoding: Encoding,
    /// Whether rows are whole quads of values.
    pub quads: bool,
}

/// Row counts that product kernels exist for, ascending.
pub const ROW_COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Tokens of an attention segment; also the lanes of its kernel.
pub(crate) const SEGMENT: u32 = 128;
/// Most experts per row.
pub(crate) const CHOSEN_MAX: u32 = 256;
/// Words of a job of expert products: page, pairs, the pairs.
pub(crate) const JOB_WORDS: u32 = 2 + ROW_COUNTS[ROW_COUNTS.len() - 1];
/// Columns of a delta state that one workgroup walks.
pub(crate) const DELTA_COLUMNS: u32 = 32;
/// Lanes that share a column of a delta state.
const DELTA_PARTS: u32 = 4;
/// Lanes of a product's workgroup, and of those that work on a head.
const PRODUCT_LANES: u32 = 128;
/// Lanes of a workgroup that sums over a slice of a row.
const SUM_LANES: u32 = 256;
/// Lanes of an elementwise workgroup.
pub(crate) const LANES: u32 = 64;

impl Variant {
    /// The way to read a matrix of `cols` inputs.
    pub fn of(encoding: Encoding, cols: usize) -> Self {
        Self { encoding, quads: cols.is_multiple_of(4) }
    }

    /// Outputs of a tile.
    pub fn tile(self) -> u32 {
        match self.encoding {
            Encoding::Tile16 { .. } => 16,
            Encoding::Bf16 | Encoding::F32 => 4,
        }
    }

    /// Bytes of one element of the weight binding; offsets are counted in it.
    pub fn unit_bytes(self) -> u32 {
        match (self.encoding, self.quads) {
            (Encoding::Tile16 { .. }, _) | (Encoding::F32, true) => 16,
            (Encoding::Bf16, true) => 8,
            (Encoding::Bf16 | Encoding::F32, false) => 4,
        }
    }

    fn parts(self) -> [&'static str; 2] {
        let tile = include_str!("shaders/product/tile.wgsl");
        let dense = include_str!("shaders/product/dense.wgsl");
        match (self.encoding, self.quads) {
            (Encoding::Tile16 { bits, .. }, _) => match bits {
                Bits::B2 => [tile, include_str!("shaders/product/bits2.wgsl")],
                Bits::B3 => [tile, include_str!("shaders/product/bits3.wgsl")],
                Bits::B4 => [tile, include_str!("shaders/product/bits4.wgsl")],
                Bits::B8 => [tile, include_str!("shaders/product/bits8.wgsl")],
            },
            (Encoding::Bf16, true) => [include_str!("shaders/product/bf16_quads.wgsl"), dense],
            (Encoding::Bf16, false) => [include_str!("shaders/product/bf16_any.wgsl"), dense],
            (Encoding::F32, true) => [include_str!("shaders/product/f32_quads.wgsl"), dense],
            (Encoding::F32, false) => [include_str!("shaders/product/f32_any.wgsl"), dense],
        }
    }

    fn consts(self) -> Vec<(&'static str, u32)> {
        let Encoding::Tile16 { bits, group } = self.encoding else { return Vec::new() };
        let (bits, group) = (bits.get() as u32, group.get() as u32);
        // The low bits of 3-bit codes lie as 2-bit codes do.
        let words = group * if bits == 3 { 2 } else { bits } / 32;
        let code_words = group * bits / 32;
        vec![("BITS", bits), ("GROUP", group), ("WORDS", words), ("CODE_WORDS", code_words)]
    }
}

/// A kernel, ready to be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Product of a weight with rows.
    Linear {
        /// The weights.
        weights: Variant,
        /// Rows per workgroup.
        rows: u32,
    },
    /// Rows of a table.
    Embed(Encoding),
    /// RMS norm.
    Norm,
    /// Streams from one row.
    Repeat,
    /// Chosen rows.
    Gather,
    /// Gated mean of streams.
    HyperMix,
    /// Gated addition to streams.
    HyperWrite,
    /// Causal convolution.
    Conv,
    /// Rows enter a ring.
    Keep,
    /// Rows come back.
    Recall,
    /// Inputs of the delta rule.
    DeltaPrepare,
    /// The delta rule.
    DeltaScan {
        /// Values of a column per lane.
        chunk: u32,
    },
    /// Gated norm after the delta rule.
    DeltaFinish,
    /// Query heads.
    Query {
        /// Room for a head.
        head: u32,
    },
    /// Keys and values enter pages.
    Append {
        /// Room for a head.
        head: u32,
    },
    /// Keys of blocks.
    Pool {
        /// Room for a head.
        head: u32,
    },
    /// Scores of blocks.
    Scores,
    /// The best blocks.
    Select,
    /// Attention over a segment.
    Attend {
        /// Room for a head.
        head: u32,
    },
    /// Segments joined.
    Join,
    /// The best experts.
    Route,
    /// First half of an expert.
    ExpertUp {
        /// The weights.
        weights: Variant,
        /// Rows per workgroup.
        rows: u32,
    },
    /// Second half of an expert.
    ExpertDown {
        /// The weights.
        weights: Variant,
        /// Rows per workgroup.
        rows: u32,
    },
    /// Weighted sum of expert outputs.
    Combine,
    /// Gated n-gram embeddings.
    NgramGate,
}

/// The pieces of one kernel.
struct Recipe {
    name: &'static str,
    /// One letter per buffer: read or written.
    access: &'static [Access],
    fields: Fields,
    parts: &'static [&'static str],
    consts: &'static [(&'static str, u32)],
}

const R: Access = Access::Read;
const W: Access = Access::Write;
const COMMON: &str = include_str!("shaders/common.wgsl");
const REDUCE: &str = include_str!("shaders/reduce.wgsl");
const BATCH: &str = include_str!("shaders/batch.wgsl");
const HEAD: &str = include_str!("shaders/attention/head.wgsl");
const TABLE: [(&str, u32); 2] = [("ROW_WORDS", ROW_WORDS), ("RUN_WORDS", RUN_WORDS)];
const TABLE_LANES: [(&str, u32); 3] =
    [("ROW_WORDS", ROW_WORDS), ("RUN_WORDS", RUN_WORDS), ("LANES", PRODUCT_LANES)];
const SELECT: [(&str, u32); 3] =
    [("ROW_WORDS", ROW_WORDS), ("RUN_WORDS", RUN_WORDS), ("LANES", SUM_LANES)];

macro_rules! recipe {
    ($name:literal, $params:ident, $access:expr, $consts:expr, [$($part:expr),*], $file:literal) => {
        Recipe {
            name: $name,
            access: &$access,
            fields: params::$params::FIELDS,
            parts: &[$($part,)* include_str!(concat!("shaders/", $file))],
            consts: &$consts,
        }
    };
}

impl Kernel {
    fn recipe(self) -> Recipe {
        const PRODUCT: [(&str, u32); 1] = [("LANES", PRODUCT_LANES)];
        const SUM: [(&str, u32); 1] = [("LANES", SUM_LANES)];
        const SCAN: [(&str, u32); 1] = [("LOG_ROWS", MAX_TENTATIVE as u32)];
        match self {
            Self::Linear { .. } => {
                recipe!("linear", Linear, [R, R, W, R], PRODUCT, [COMMON], "product/linear.wgsl")
            }
            Self::Embed(_) => recipe!("embed", Embed, [R, R, W], TABLE, [], "rows/embed.wgsl"),
            Self::Norm => recipe!("norm", Norm, [R, R, W], SUM, [REDUCE], "rows/norm.wgsl"),
            Self::Repeat => recipe!("repeat", Repeat, [R, W], [], [], "rows/repeat.wgsl"),
            Self::Gather => recipe!("gather", Gather, [R, R, W], [], [], "rows/gather.wgsl"),
            Self::HyperMix => {
                recipe!("hyper mix", Streams, [R, R, W], [], [COMMON], "hyper/mix.wgsl")
            }
            Self::HyperWrite => {
                recipe!("hyper write", Streams, [R, R, W], [], [], "hyper/write.wgsl")
            }
            Self::Conv => {
                recipe!("conv", Conv, [R, R, R, R, W, W], TABLE, [COMMON, BATCH], "rows/conv.wgsl")
            }
            Self::Keep => recipe!("keep", Keep, [R, R, W], TABLE, [BATCH], "rows/keep.wgsl"),
            Self::Recall => recipe!("recall", Recall, [R, R, R, W], [], [], "rows/recall.wgsl"),
            Self::DeltaPrepare => recipe!(
                "delta prepare",
                DeltaPrepare,
                [R, R, R, R, R, W],
                PRODUCT,
                [COMMON, REDUCE],
                "delta/prepare.wgsl"
            ),
            Self::DeltaScan { .. } => {
                recipe!("delta scan", DeltaScan, [R, R, R, W, W, W], SCAN, [], "delta/scan.wgsl")
            }
            Self::DeltaFinish => recipe!(
                "delta finish",
                DeltaFinish,
                [R, R, R, W],
                PRODUCT,
                [COMMON, REDUCE],
                "delta/finish.wgsl"
            ),
            _ => self.later_recipe(),
        }
    }

    fn later_recipe(self) -> Recipe {
        const PRODUCT: [(&str, u32); 1] = [("LANES", PRODUCT_LANES)];
        const JOBS: [(&str, u32); 2] = [("LANES", PRODUCT_LANES), ("JOB_WORDS", JOB_WORDS)];
        const SUM: [(&str, u32); 1] = [("LANES", SUM_LANES)];
        const ROUTE: [(&str, u32); 2] = [("LANES", SUM_LANES), ("CHOSEN", CHOSEN_MAX)];
        match self {
            Self::Query { .. } => recipe!(
                "query",
                Query,
                [R, R, R, W],
                PRODUCT,
                [REDUCE, HEAD],
                "attention/query.wgsl"
            ),
            Self::Append { .. } => recipe!(
                "append",
                Append,
                [R, R, R, R, R, W, W],
                TABLE_LANES,
                [BATCH, REDUCE, HEAD],
                "attention/append.wgsl"
            ),
            Self::Pool { .. } => recipe!(
                "pool",
                Pool,
                [R, R, R, R, W, W],
                TABLE_LANES,
                [BATCH, REDUCE, HEAD],
                "attention/pool.wgsl"
            ),
            Self::Scores => {
                recipe!("scores", Scores, [R, R, R, W], TABLE, [BATCH], "attention/scores.wgsl")
            }
            Self::Select => {
                recipe!("select", Select, [R, R, W], SELECT, [BATCH], "attention/select.wgsl")
            }
            Self::Attend { .. } => recipe!(
                "attend",
                Attend,
                [R, R, R, R, R, W],
                TABLE_LANES,
                [BATCH, REDUCE],
                "attention/attend.wgsl"
            ),
            Self::Join => recipe!(
                "join",
                Join,
                [R, R, R, R, W],
                TABLE,
                [COMMON, BATCH],
                "attention/join.wgsl"
            ),
            Self::Route => recipe!("route", Route, [R, W], ROUTE, [REDUCE], "moe/route.wgsl"),
            Self::ExpertUp { .. } => {
                recipe!("expert up", ExpertUp, [R, R, R, W], JOBS, [COMMON], "moe/up.wgsl")
            }
            Self::ExpertDown { .. } => {
                recipe!("expert down", ExpertDown, [R, R, R, W], JOBS, [], "moe/down.wgsl")
            }
            Self::Combine => {
                recipe!("combine", Combine, [R, R, R, W], [], [], "moe/combine.wgsl")
            }
            _ => recipe!(
                "ngram gate",
                NgramGate,
                [R, R, R, R, R, R, W, W],
                SUM,
                [COMMON, REDUCE],
                "ngram/gate.wgsl"
            ),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.recipe().name
    }

    /// What it does with each of its buffers.
    pub fn access(self) -> &'static [Access] {
        self.recipe().access
    }

    /// Its parameters.
    pub fn fields(self) -> Fields {
        self.recipe().fields
    }

    /// How often a line with `$r` is written.
    fn copies(self) -> u32 {
        match self {
            Self::Linear { rows, .. }
            | Self::ExpertUp { rows, .. }
            | Self::ExpertDown { rows, .. } => rows,
            Self::DeltaScan { chunk } => chunk,
            _ => 1,
        }
    }

    fn consts(self) -> Vec<(&'static str, u32)> {
        match self {
            Self::Linear { weights, rows }
            | Self::ExpertUp { weights, rows }
            | Self::ExpertDown { weights, rows } => {
                let mut consts = weights.consts();
                consts.push(("ROWS", rows));
                consts
            }
            Self::Embed(encoding) => Variant { encoding, quads: true }.consts(),
            Self::DeltaScan { chunk } => vec![("CHUNK", chunk)],
            Self::Query { head }
            | Self::Append { head }
            | Self::Pool { head }
            | Self::Attend { head } => vec![("HEAD", head)],
            _ => Vec::new(),
        }
    }

    fn extra_parts(self) -> Vec<&'static str> {
        match self {
            Self::Linear { weights, .. }
            | Self::ExpertUp { weights, .. }
            | Self::ExpertDown { weights, .. } => weights.parts().into(),
            Self::Embed(Encoding::Tile16 { .. }) => {
                vec![include_str!("shaders/rows/embed_tile.wgsl")]
            }
            Self::Embed(Encoding::Bf16) => vec![include_str!("shaders/rows/embed_bf16.wgsl")],
            Self::Embed(Encoding::F32) => vec![include_str!("shaders/rows/embed_f32.wgsl")],
            _ => Vec::new(),
        }
    }

    /// The WGSL of this variant.
    pub fn source(self, path: ParamPath) -> String {
        let (recipe, mut out) = (self.recipe(), String::new());
        for (name, value) in self.consts().iter().chain(recipe.consts) {
            writeln!(out, "const {name}: u32 = {value}u;").expect("strings do not fail");
        }
        let parts = self.extra_parts();
        for line in parts.iter().chain(recipe.parts).flat_map(|part| part.lines()) {
            if line == "var<immediate> p: P;" && path == ParamPath::Uniform {
                out.push_str("@group(1) @binding(0) var<uniform> p: P;\n");
            } else if line.contains("$r") {
                // One copy of the line per row: registers, not an array that may be spilt.
                for row in 0..self.copies() {
                    out.push_str(&line.replace("$r", &row.to_string()));
                    out.push('\n');
                }
            } else {
                out.push_str(line);
                out.push('\n');
            }
        }
        out
    }

    /// The kernel that walks delta states of this key width.
    pub(crate) fn delta_scan(key_dim: u32) -> Self {
        Self::DeltaScan { chunk: key_dim.div_ceil(DELTA_PARTS) }
    }
}

/// One of each kernel; for tests.
pub fn samples() -> Vec<Kernel> {
    use Kernel as K;
    let mut all = vec![K::Norm, K::Repeat, K::Gather, K::HyperMix, K::HyperWrite, K::Conv];
    all.extend([K::Keep, K::Recall, K::DeltaPrepare, K::DeltaFinish, K::Scores, K::Select]);
    all.extend([K::Join, K::Route, K::Combine, K::NgramGate]);
    all.extend([8, 32].map(|chunk| K::DeltaScan { chunk }));
    for head in [64, 256] {
        all.extend([K::Query { head }, K::Append { head }, K::Pool { head }, K::Attend { head }]);
    }
    for encoding in encodings() {
        all.push(K::Embed(encoding));
        let tiles = matches!(encoding, Encoding::Tile16 { .. });
        for weights in [true, false].map(|quads| Variant { encoding, quads }) {
            if weights.quads || !tiles {
                all.extend(ROW_COUNTS.map(|rows| K::Linear { weights, rows }));
                all.extend(ROW_COUNTS.map(|rows| K::ExpertUp { weights, rows }));
                all.extend(ROW_COUNTS.map(|rows| K::ExpertDown { weights, rows }));
            }
        }
    }
    all
}

fn encodings() -> Vec<Encoding> {
    let mut all = vec![Encoding::F32, Encoding::Bf16];
    for bits in Bits::ALL {
        all.extend([Group::G32, Group::G64].map(|group| Encoding::Tile16 { bits, group }));
    }
    all
}
