//! Parameters of the kernels, as the kernels declare them.
//!
//! Owns: the host side of every kernel's `struct P`. Never: values.
//! Invariant: field by field the same as in WGSL; a test compares both.

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// `u32`.
    U32,
    /// `f32`.
    F32,
}

/// A value that can be a parameter.
pub(crate) trait Param {
    const SCALAR: Scalar;
}

impl Param for u32 {
    const SCALAR: Scalar = Scalar::U32;
}

impl Param for f32 {
    const SCALAR: Scalar = Scalar::F32;
}

/// Name and type of each field of a kernel's parameters, in order.
pub type Fields = &'static [(&'static str, Scalar)];

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
        pub(crate) struct $name { $(pub $field: $type),* }

        impl $name {
            pub const FIELDS: Fields = &[$((stringify!($field), <$type as Param>::SCALAR)),*];
        }
    )*};
}

params! {
    /// `product/linear.wgsl`
    Linear {
        rows: u32, cols: u32, outs: u32, stride: u32, offset: u32, epilogue: u32, divisor: f32,
    }
    /// `rows/norm.wgsl`
    Norm { width: u32, groups: u32, eps: f32 }
    /// `rows/embed.wgsl`
    Embed { cols: u32, first: u32, count: u32 }
    /// `rows/repeat.wgsl`
    Repeat { width: u32, count: u32, gains: u32 }
    /// `rows/gather.wgsl`
    Gather { width: u32 }
    /// `hyper/mix.wgsl`, `hyper/write.wgsl`
    Streams { width: u32, count: u32 }
    /// `hyper/turn.wgsl`
    Turn { width: u32, count: u32, eps: f32 }
    /// `rows/conv.wgsl`
    Conv {
        width: u32, kernel: u32, dilation: u32, capacity: u32, adds: u32, keeps: u32,
        runs_at: u32, pages_at: u32,
    }
    /// `rows/keep.wgsl`
    Keep {
        width: u32, stride: u32, offset: u32, capacity: u32, runs_at: u32, pages_at: u32,
    }
    /// `rows/recall.wgsl`
    Recall { width: u32, capacity: u32 }
    /// `delta/prepare.wgsl`
    DeltaPrepare {
        key_heads: u32, value_heads: u32, key_dim: u32, channels: u32, stride: u32,
    }
    /// `delta/scan.wgsl`
    DeltaScan {
        key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32, channels: u32,
        stride: u32, log_stride: u32, blocks: u32,
    }
    /// `delta/finish.wgsl`
    DeltaFinish { width: u32, heads: u32, act: u32, eps: f32 }
    /// `attention/query.wgsl`
    Query {
        width: u32, heads: u32, half: u32, row_stride: u32, head_stride: u32, eps: f32,
    }
    /// `attention/append.wgsl`
    Append {
        width: u32, heads: u32, half: u32, page_rows: u32, eps: f32, runs_at: u32, pages_at: u32,
    }
    /// `attention/pool.wgsl`
    Pool {
        width: u32, stride: u32, offset: u32, half: u32, ratio: u32, capacity: u32,
        page_rows: u32, keeps: u32, eps: f32, runs_at: u32, pages_at: u32,
    }
    /// `attention/scores.wgsl`
    Scores {
        width: u32, heads: u32, ratio: u32, page_rows: u32, first: u32, stride: u32,
        runs_at: u32, pages_at: u32,
    }
    /// `attention/select.wgsl`
    Select {
        ratio: u32, budget: u32, first: u32, stride: u32, runs_at: u32, pages_at: u32,
    }
    /// `attention/attend.wgsl`
    Attend {
        heads: u32, kv_heads: u32, ratio: u32, page_rows: u32, budget: u32,
        first: u32, segments: u32, runs_at: u32, pages_at: u32,
    }
    /// `attention/join.wgsl`
    Join {
        width: u32, heads: u32, ratio: u32, budget: u32, first: u32, segments: u32,
        tokens: u32, runs_at: u32, pages_at: u32,
    }
    /// `moe/route.wgsl`
    Route { experts: u32, k: u32, norm: u32 }
    /// `moe/jobs.wgsl`
    Jobs { pairs: u32, k: u32 }
    /// `moe/up.wgsl`
    ExpertUp { cols: u32, outs: u32, k: u32, page: u32, gate_at: u32, up_at: u32, first: u32 }
    /// `moe/down.wgsl`
    ExpertDown { cols: u32, outs: u32, page: u32, down_at: u32, first: u32 }
    /// `moe/combine.wgsl`
    Combine { width: u32, k: u32 }
    /// `ngram/gate.wgsl`
    NgramGate { width: u32, count: u32, eps: f32 }
}
