//! What each kernel is made of.
//!
//! Owns: per kernel its buffers, parameters, constants and pieces of WGSL, in their order.

use super::{Access, CHOSEN_MAX, HEAD_LANES, JOB_WORDS, Kernel, SUM_LANES};
use crate::params::{self, Fields};
use crate::tables::{ROW_WORDS, RUN_WORDS};
use cherenkov_model::MAX_TENTATIVE;

/// The pieces of one kernel.
pub(super) struct Recipe {
    pub name: &'static str,
    /// One letter per buffer: read or written.
    pub access: &'static [Access],
    pub fields: Fields,
    pub parts: &'static [&'static str],
    pub consts: &'static [(&'static str, u32)],
}

const R: Access = Access::Read;
const W: Access = Access::Write;
const COMMON: &str = include_str!("../shaders/common.wgsl");
const REDUCE: &str = include_str!("../shaders/reduce.wgsl");
const BATCH: &str = include_str!("../shaders/batch.wgsl");
const HEAD: &str = include_str!("../shaders/attention/head.wgsl");
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
            parts: &[$($part,)* include_str!(concat!("../shaders/", $file))],
            consts: &$consts,
        }
    };
}

impl Kernel {
    pub(super) fn recipe(self) -> Recipe {
        const HEADS: [(&str, u32); 1] = [("LANES", HEAD_LANES)];
        const SUM: [(&str, u32); 1] = [("LANES", SUM_LANES)];
        const SCAN: [(&str, u32); 1] = [("LOG_ROWS", MAX_TENTATIVE as u32)];
        match self {
            Self::Linear { .. } => {
                recipe!("linear", Linear, [R, R, W, R], [], [COMMON], "product/linear.wgsl")
            }
            Self::Embed(_) => recipe!("embed", Embed, [R, R, W], TABLE, [], "rows/embed.wgsl"),
            Self::Norm { chunks: None } => {
                recipe!("norm", Norm, [R, R, W], SUM, [REDUCE], "rows/norm.wgsl")
            }
            Self::Norm { .. } => {
                recipe!("norm", Norm, [R, R, W], SUM, [REDUCE], "rows/norm_quads.wgsl")
            }
            Self::Repeat => recipe!("repeat", Repeat, [R, W], [], [], "rows/repeat.wgsl"),
            Self::Gather => recipe!("gather", Gather, [R, R, W], [], [], "rows/gather.wgsl"),
            Self::HyperMix { .. } => {
                recipe!("hyper mix", Streams, [R, R, W], [], [COMMON], "hyper/mix.wgsl")
            }
            Self::HyperWrite => {
                recipe!("hyper write", Streams, [R, R, W], [], [], "hyper/write.wgsl")
            }
            Self::HyperTurn { .. } => {
                recipe!("hyper turn", Turn, [R, R, R, W, W], SUM, [REDUCE], "hyper/turn.wgsl")
            }
            Self::Conv { .. } => {
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
            Self::Route { .. } => {
                recipe!("route", Route, [R, W], ROUTE, [REDUCE], "moe/route.wgsl")
            }
            Self::Jobs => recipe!("jobs", Jobs, [R, R, W], JOBS, [], "moe/jobs.wgsl"),
            Self::ExpertUp { .. } => {
                recipe!("expert up", ExpertUp, [R, R, R, W], JOBS, [COMMON], "moe/up.wgsl")
            }
            Self::ExpertDown { .. } => {
                recipe!("expert down", ExpertDown, [R, R, R, W], JOBS, [], "moe/down.wgsl")
            }
            Self::Combine { .. } => {
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
}
