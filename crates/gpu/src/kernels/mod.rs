//! Which kernels there are, and their sources.
//!
//! Owns: the pieces of WGSL, how a variant is put together. Never: compiling (see `pipelines`).
//! Invariant: the arithmetic of a row does not depend on a kernel's number of rows.

use crate::device::ParamPath;
use crate::params::Fields;
use cherenkov_format::{Bits, Encoding, Group};
use std::fmt::Write;

mod recipes;
mod variant;

pub use variant::Variant;

/// Whether a kernel writes a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It only reads.
    Read,
    /// It writes (and may read).
    Write,
}

/// Row counts that product kernels exist for, ascending.
pub const ROW_COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Tokens of an attention segment; also the lanes of its kernel.
pub(crate) const SEGMENT: u32 = 128;
/// Most experts of a layer.
pub(crate) const EXPERTS_MAX: u32 = 2048;
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
/// Most quads that a lane of a norm holds.
const CHUNKS_MAX: u32 = 16;
/// Lanes of an elementwise workgroup.
pub(crate) const LANES: u32 = 64;

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
    Norm {
        /// Quads per lane, where slices are whole quads.
        chunks: Option<u32>,
    },
    /// Streams from one row.
    Repeat,
    /// Chosen rows.
    Gather,
    /// Gated mean of streams.
    HyperMix {
        /// Streams.
        count: u32,
    },
    /// Gated addition to streams.
    HyperWrite,
    /// Gated addition to streams and their norm.
    HyperTurn {
        /// Quads per lane.
        chunks: u32,
    },
    /// Causal convolution.
    Conv {
        /// Taps.
        kernel: u32,
    },
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
        /// Values of a head.
        head: u32,
        /// Query heads that read the same keys and values together.
        share: u32,
    },
    /// Segments joined.
    Join,
    /// The best experts.
    Route {
        /// Room for the logits of a row.
        room: u32,
    },
    /// Routes become jobs.
    Jobs,
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
    Combine {
        /// Experts per row.
        k: u32,
    },
    /// Gated n-gram embeddings.
    NgramGate,
}

/// How the pieces declare the weights of a product.
const WEIGHTS: &str = "@group(0) @binding(0) var<storage, read> weights: ";
/// Experts in one buffer.
const ONE_SLAB: &str = "fn set_slab(index: u32) {}\n";
/// Experts in an array of buffers.
const SOME_SLABS: &str = "var<private> slab: u32;\nfn set_slab(index: u32) { slab = index; }\n";

impl Kernel {
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
            Self::Norm { chunks } => chunks.unwrap_or(1),
            Self::HyperTurn { chunks } => chunks,
            Self::HyperMix { count } => count,
            Self::Combine { k } => k,
            Self::Conv { kernel } => kernel,
            Self::Attend { share, .. } => share,
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
            Self::Route { room } => vec![("ROOM", room)],
            Self::Query { head } | Self::Append { head } | Self::Pool { head } => {
                vec![("HEAD", head)]
            }
            Self::Attend { head, share } => vec![("HEAD", head), ("SHARE", share)],
            _ => Vec::new(),
        }
    }

    fn extra_parts(self) -> Vec<&'static str> {
        match self {
            Self::Linear { weights, .. }
            | Self::ExpertUp { weights, .. }
            | Self::ExpertDown { weights, .. } => weights.parts().into(),
            Self::Embed(Encoding::Tile16 { .. }) => {
                vec![include_str!("../shaders/rows/embed_tile.wgsl")]
            }
            Self::Embed(Encoding::Bf16) => vec![include_str!("../shaders/rows/embed_bf16.wgsl")],
            Self::Embed(Encoding::F32) => vec![include_str!("../shaders/rows/embed_f32.wgsl")],
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

    /// Quads per lane of a slice of `width` values, where that is possible.
    pub(crate) fn chunks(width: u32) -> Option<u32> {
        let chunks = (width / 4).div_ceil(SUM_LANES);
        (width.is_multiple_of(4) && (1..=CHUNKS_MAX).contains(&chunks)).then_some(chunks)
    }

    /// The kernel that walks delta states of this key width.
    pub(crate) fn delta_scan(key_dim: u32) -> Self {
        Self::DeltaScan { chunk: key_dim.div_ceil(DELTA_PARTS) }
    }
}

/// One of each kernel; for tests.
pub fn samples() -> Vec<Kernel> {
    use Kernel as K;
    let mut all = vec![K::Repeat, K::Gather, K::HyperWrite, K::Keep, K::Recall];
    all.extend([K::DeltaPrepare, K::DeltaFinish, K::Scores, K::Select, K::Join]);
    all.extend([K::Route { room: EXPERTS_MAX }, K::Jobs, K::NgramGate]);
    all.extend([None, Some(1), Some(10)].map(|chunks| K::Norm { chunks }));
    all.extend([1, 3].map(|chunks| K::HyperTurn { chunks }));
    all.extend([1, 4].map(|count| K::HyperMix { count }));
    all.extend([1, 10].map(|k| K::Combine { k }));
    all.extend([1, 4].map(|kernel| K::Conv { kernel }));
    all.extend([8, 32].map(|chunk| K::DeltaScan { chunk }));
    for head in [64, 256] {
        all.extend([K::Query { head }, K::Append { head }, K::Pool { head }]);
        all.extend([1, 2, 3, 4].map(|share| K::Attend { head, share }));
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
