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
    /// Lanes of a workgroup; a function of the row's width, so every row has one order of sums.
    pub lanes: u32,
}

/// Row counts that product kernels exist for, ascending.
pub const ROW_COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Tokens of an attention segment; also the lanes of its kernel.
pub(crate) const SEGMENT: u32 = 128;
/// Most experts per row.
pub(crate) const CHOSEN_MAX: u32 = 256;
/// Words of a job of expert products: page, slab, pairs, the pairs.
pub(crate) const JOB_WORDS: u32 = 3 + ROW_COUNTS[ROW_COUNTS.len() - 1];
/// Columns of a delta state that one workgroup walks.
pub(crate) const DELTA_COLUMNS: u32 = 32;
/// Lanes that share a column of a delta state.
const DELTA_PARTS: u32 = 4;
/// Lanes of a workgroup that works on a head.
const HEAD_LANES: u32 = 128;
/// Lanes of a workgroup that sums over a slice of a row.
const SUM_LANES: u32 = 256;
/// Lanes of an elementwise workgroup.
pub(crate) const LANES: u32 = 64;

impl Variant {
    /// The way to read a matrix of `cols` inputs.
    ///
    /// `most_lanes` is the adapter's limit.
    pub fn of(encoding: Encoding, cols: usize, most_lanes: u32) -> Self {
        // How many lanes find work at once.
        let busy = match encoding {
            Encoding::Tile16 { bits, group } => {
                cols / group.get() * 4 * words(bits.get(), group.get())
            }
            Encoding::Bf16 | Encoding::F32 => cols.div_ceil(4) * 4,
        };
        // Long rows often belong to matrices of few outputs: more lanes each keep the GPU busy.
        let lanes = match busy {
            0..256 => 128,
            256..4096 => 256,
            _ => 512.min(most_lanes),
        };
        Self { encoding, quads: cols.is_multiple_of(4), lanes }
    }

    /// Rows per workgroup for a batch of `rows`: what fits the memory that a workgroup shares.
    pub fn rows_per_group(self, rows: u32) -> u32 {
        let most = if self.lanes > 256 { 4 } else { ROW_COUNTS[ROW_COUNTS.len() - 1] };
        ROW_COUNTS.into_iter().find(|&n| n >= rows).unwrap_or(most).min(most)
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
        let words = words(bits.get(), group.get()) as u32;
        let (bits, group) = (bits.get() as u32, group.get() as u32);
        let code_words = group * bits / 32;
        vec![("BITS", bits), ("GROUP", group), ("WORDS", words), ("CODE_WORDS", code_words)]
    }
}

/// Words of a row in a block that lanes take one each: the low bits of 3-bit codes lie as 2-bit codes
/// do, their high bits come along.
const fn words(bits: usize, group: usize) -> usize {
    group * if bits == 3 { 2 } else { bits } / 32
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
    /// Gated addition to streams and their norm.
    HyperTurn,
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
        /// Buffers that the weights lie in; more than one only where an adapter can.
        slabs: u32,
    },
    /// Second half of an expert.
    ExpertDown {
        /// The weights.
        weights: Variant,
        /// Rows per workgroup.
        rows: u32,
        /// Buffers that the weights lie in; more than one only where an adapter can.
        slabs: u32,
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
    [("ROW_WORDS", ROW_WORDS), ("RUN_WORDS", RUN_WORDS), ("LANES", HEAD_LANES)];
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

/// How the pieces declare the weights of a product.
const WEIGHTS: &str = "@group(0) @binding(0) var<storage, read> weights: ";
/// Experts in one buffer.
const ONE_SLAB: &str = "fn set_slab(index: u32) {}\n";
/// Experts in an array of buffers.
const SOME_SLABS: &str = "var<private> slab: u32;\nfn set_slab(index: u32) { slab = index; }\n";

impl Kernel {
    fn recipe(self) -> Recipe {
        const HEADS: [(&str, u32); 1] = [("LANES", HEAD_LANES)];
        const SUM: [(&str, u32); 1] = [("LANES", SUM_LANES)];
        const SCAN: [(&str, u32); 1] = [("LOG_ROWS", MAX_TENTATIVE as u32)];
        match self {
            Self::Linear { .. } => {
                recipe!("linear", Linear, [R, R, W, R], [], [COMMON], "product/linear.wgsl")
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
            Self::HyperTurn => {
                recipe!("hyper turn", Turn, [R, R, R, W, W], SUM, [REDUCE], "hyper/turn.wgsl")
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
                HEADS,
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
                HEADS,
                [COMMON, REDUCE],
                "delta/finish.wgsl"
            ),
            _ => self.later_recipe(),
        }
    }

    fn later_recipe(self) -> Recipe {
        const HEADS: [(&str, u32); 1] = [("LANES", HEAD_LANES)];
        const JOBS: [(&str, u32); 1] = [("JOB_WORDS", JOB_WORDS)];
        const SUM: [(&str, u32); 1] = [("LANES", SUM_LANES)];
        const ROUTE: [(&str, u32); 2] = [("LANES", SUM_LANES), ("CHOSEN", CHOSEN_MAX)];
        match self {
            Self::Query { .. } => {
                recipe!("query", Query, [R, R, R, W], HEADS, [REDUCE, HEAD], "attention/query.wgsl")
            }
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
            | Self::ExpertUp { weights, rows, .. }
            | Self::ExpertDown { weights, rows, .. } => {
                let mut consts = weights.consts();
                consts.extend([("ROWS", rows), ("LANES", weights.lanes)]);
                consts
            }
            Self::Embed(encoding) => Variant { encoding, quads: true, lanes: LANES }.consts(),
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

    /// How many buffers its first binding is; one but for experts in several slabs.
    pub fn slabs(self) -> u32 {
        match self {
            Self::ExpertUp { slabs, .. } | Self::ExpertDown { slabs, .. } => slabs,
            _ => 1,
        }
    }

    /// The WGSL of this variant.
    pub fn source(self, path: ParamPath) -> String {
        let (recipe, mut out) = (self.recipe(), String::new());
        if self.slabs() > 1 {
            out.push_str("enable wgpu_binding_array;\n");
        }
        for (name, value) in self.consts().iter().chain(recipe.consts) {
            writeln!(out, "const {name}: u32 = {value}u;").expect("strings do not fail");
        }
        if matches!(self, Self::ExpertUp { .. } | Self::ExpertDown { .. }) {
            out.push_str(if self.slabs() > 1 { SOME_SLABS } else { ONE_SLAB });
        }
        let parts = self.extra_parts();
        for line in parts.iter().chain(recipe.parts).flat_map(|part| part.lines()) {
            self.push_line(line, path, &mut out);
        }
        out
    }

    fn push_line(self, line: &str, path: ParamPath, out: &mut String) {
        let slabs = self.slabs();
        if line == "var<immediate> p: P;" && path == ParamPath::Uniform {
            out.push_str("@group(1) @binding(0) var<uniform> p: P;\n");
        } else if let Some(array) = line.strip_prefix(WEIGHTS).filter(|_| slabs > 1) {
            let array = array.trim_end_matches(';');
            writeln!(out, "struct Slab {{ data: {array} }}").expect("strings do not fail");
            let slabs = format!("binding_array<Slab, {slabs}>;\n");
            out.push_str(&WEIGHTS.replace("weights:", "slabs:"));
            out.push_str(&slabs);
        } else {
            let line = match slabs {
                1 => line.to_owned(),
                _ => line.replace("weights[", "slabs[slab].data["),
            };
            // One copy of a line per row: registers, not an array that may be spilt.
            let copies = if line.contains("$r") { self.copies() } else { 1 };
            for row in 0..copies {
                out.push_str(&line.replace("$r", &row.to_string()));
                out.push('\n');
            }
        }
    }

    /// The kernel that walks delta states of this key width.
    pub(crate) fn delta_scan(key_dim: u32) -> Self {
        Self::DeltaScan { chunk: key_dim.div_ceil(DELTA_PARTS) }
    }
}

/// One of each kernel; for tests.
pub fn samples() -> Vec<Kernel> {
    use Kernel as K;
    let mut all =
        vec![K::Norm, K::Repeat, K::Gather, K::HyperMix, K::HyperWrite, K::HyperTurn, K::Conv];
    all.extend([K::Keep, K::Recall, K::DeltaPrepare, K::DeltaFinish, K::Scores, K::Select]);
    all.extend([K::Join, K::Route, K::Combine, K::NgramGate]);
    all.extend([8, 32].map(|chunk| K::DeltaScan { chunk }));
    for head in [64, 256] {
        all.extend([K::Query { head }, K::Append { head }, K::Pool { head }, K::Attend { head }]);
    }
    for encoding in encodings() {
        all.push(K::Embed(encoding));
        let tiles = matches!(encoding, Encoding::Tile16 { .. });
        for cols in [64, 2560, 2559, 10_240] {
            let weights = Variant::of(encoding, cols, 1024);
            if !weights.quads && tiles {
                continue;
            }
            for rows in ROW_COUNTS.map(|rows| weights.rows_per_group(rows)) {
                all.push(K::Linear { weights, rows });
                for slabs in [1, 3] {
                    all.push(K::ExpertUp { weights, rows, slabs });
                    all.push(K::ExpertDown { weights, rows, slabs });
                }
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
