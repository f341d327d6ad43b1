//! The seam between the wiring and the hardware: about twenty verbs.
//!
//! Owns: the meaning of each verb (its equation). Never: layer order (see the families), kernels
//! (see the devices).
//!
//! Every verb works on the rows of the batch given to [`Device::begin`]. Activations are handles to
//! f32 arrays `[rows, width]` of the device; weights and vectors are the device's own types. A verb's
//! result for a row depends on that row, its sequence's state and the weights only: never on the
//! other rows, on how rows were cut into batches, or on threads.

mod types;

pub use types::*;

use crate::batch::Batch;
use crate::error::Result;
use cherenkov_experts::{Bank, Layouts, Wave};
use cherenkov_format::Matrix;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};

/// Hardware that can run the verbs.
///
/// Loading: create weights, activations and lanes, then call [`Self::allocate`] once. Running:
/// [`Self::begin`], then verbs.
pub trait Device {
    /// A projection `[out, in]` on the device.
    type Matrix;
    /// A small f32 vector (or taps) on the device.
    type Vector;
    /// Where expert records land.
    type Bank: Bank;

    /// Short name for messages.
    fn name(&self) -> &'static str;

    /// What keys and values are kept as, by the name that users know: part of a saved sequence.
    fn kv_numbers(&self) -> &'static str {
        "f32"
    }

    // ---- loading ----

    /// Moves a projection to the device.
    ///
    /// # Errors
    /// When the device has no room or cannot use the encoding.
    fn matrix(&mut self, matrix: Matrix) -> Result<Self::Matrix>;

    /// Moves a vector to the device.
    ///
    /// # Errors
    /// When the device has no room.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector>;

    /// Declares an activation. Ids count up from 0.
    fn act(&mut self, width: usize) -> Act;

    /// Declares a selection buffer of at most `blocks` blocks per row. Ids count up from 0.
    fn picks(&mut self, blocks: usize) -> Picks;

    /// Declares a ring that remembers at least `history` rows of `width` values before any row that
    /// can still be reached, whatever is taken back. Ids count up from 0.
    fn row_lane(&mut self, width: usize, history: usize) -> RowLane;

    /// Declares the recurrent state of a DeltaNet layer. Ids count up from 0.
    fn delta_lane(&mut self, spec: &Delta) -> DeltaLane;

    /// Declares the pages of an attention layer. Ids count up from 0.
    fn kv_lane(&mut self, spec: &Attention) -> KvLane;

    /// Makes room for everything declared.
    ///
    /// # Errors
    /// When the device has no room.
    fn allocate(&mut self, limits: Limits) -> Result<()>;

    /// A bank of `slots` records, each of any of these layouts and at most as long as the full one.
    ///
    /// # Errors
    /// When the device has no room.
    fn bank(&mut self, slots: usize, layouts: &Layouts) -> Result<Self::Bank>;

    /// Memory held, by purpose, in bytes.
    fn memory(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    // ---- state of sequences ----

    /// Sets the recurrent state of a sequence to that of an empty one.
    ///
    /// # Errors
    /// When the device fails.
    fn reset_slot(&mut self, slot: SlotId) -> Result<()>;

    /// Copies the recurrent state of a settled sequence.
    ///
    /// # Errors
    /// When the device fails.
    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()>;

    /// Appends the recurrent state of a settled sequence to `out`, as bytes.
    ///
    /// # Errors
    /// When the device fails.
    fn save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()>;

    /// Sets a recurrent state from bytes of [`Self::save_slot`].
    ///
    /// # Errors
    /// When the bytes have another length than this device writes.
    fn load_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()>;

    /// Copies a page, all attention layers of it.
    ///
    /// # Errors
    /// When the device fails.
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<()>;

    /// Appends a page to `out`, as bytes.
    ///
    /// # Errors
    /// When the device fails.
    fn save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()>;

    /// Sets a page from bytes of [`Self::save_page`].
    ///
    /// # Errors
    /// When the bytes have another length than this device writes.
    fn load_page(&mut self, page: PageId, bytes: &[u8]) -> Result<()>;

    /// Says that the first `rows` rows of the sequence's tentative run stay and the others never
    /// happened. Required before the sequence's next run, and for nothing else.
    ///
    /// # Errors
    /// When the device fails.
    fn settle(&mut self, slot: SlotId, rows: usize) -> Result<()>;

    // ---- a pass ----

    /// Starts a pass over these rows.
    ///
    /// # Errors
    /// When there are more rows than [`Limits::rows`].
    fn begin(&mut self, batch: &Batch) -> Result<()>;

    /// Says where the following verbs belong.
    fn enter(&mut self, _place: Place) {}

    /// Writes host values `[rows, width]`.
    ///
    /// # Errors
    /// When the device fails.
    fn put(&mut self, x: Act, values: &[f32]) -> Result<()>;

    /// Reads an activation back, `[rows, width]`.
    ///
    /// # Errors
    /// When the device fails.
    fn fetch(&mut self, x: Act) -> Result<Vec<f32>>;

    /// Reads a selection back: per row the chosen blocks, ascending.
    ///
    /// # Errors
    /// When the device fails.
    fn fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>>;

    /// Overwrites a selection; for decorators that keep two devices in step.
    ///
    /// # Errors
    /// When the device fails.
    fn put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()>;

    // ---- verbs ----

    /// `out = table[token]` for the batch's tokens.
    ///
    /// # Errors
    /// When the device fails.
    fn embed(&mut self, table: &Self::Matrix, out: Act) -> Result<()>;

    /// Every stream of `out` becomes `x`.
    ///
    /// # Errors
    /// When the device fails.
    fn repeat(&mut self, x: Act, out: Act) -> Result<()>;

    /// Every stream of `stream` gains `x`.
    ///
    /// # Errors
    /// When the device fails.
    fn add_repeat(&mut self, x: Act, stream: Act) -> Result<()>;

    /// RMS norm of each of `groups` equal slices of a row by itself: `x * rsqrt(mean(x^2) + eps) * w`,
    /// `w` as wide as the row. The epsilon is the model's, given to the device's constructor.
    ///
    /// # Errors
    /// When the device fails.
    fn norm(&mut self, w: &Self::Vector, groups: usize, x: Act, out: Act) -> Result<()>;

    /// `out = W x`.
    ///
    /// # Errors
    /// When the device fails.
    fn linear(&mut self, w: &Self::Matrix, x: Act, out: Act) -> Result<()>;

    /// `out_c = W x_c` for every stream c; `x` and `out` hold the same number of streams.
    ///
    /// # Errors
    /// When the device fails.
    fn linear_streams(&mut self, w: &Self::Matrix, x: Act, out: Act) -> Result<()>;

    /// Hyper-connection read: `n = grouped_norm(stream)`, `g = sigmoid(up(silu(down(n) / C)))`,
    /// `out = mean_c g_c * n_c`; with injection weights also `gate = 2 sigmoid(inject(n) / C)`.
    ///
    /// # Errors
    /// When the device fails.
    fn hyper_read(
        &mut self,
        w: &Hyper<Self::Matrix, Self::Vector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()>;

    /// `stream_c += gate_c * y`.
    ///
    /// # Errors
    /// When the device fails.
    fn hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()>;

    /// Fusion point: write, then read the next hyper-connection.
    ///
    /// # Errors
    /// When the device fails.
    fn hyper_turn(
        &mut self,
        y: Act,
        w: &Hyper<Self::Matrix, Self::Vector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        self.hyper_write(y, gate, stream)?;
        self.hyper_read(w, stream, out, gate)
    }

    /// Causal depthwise convolution over the sequence's rows, then SiLU. `taps` is
    /// `[width, kernel]`, last tap on the current row; the lane remembers the inputs.
    ///
    /// # Errors
    /// When the device fails.
    fn conv_silu(
        &mut self,
        lane: RowLane,
        taps: &Self::Vector,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()>;

    /// Gated delta rule and its gated output norm (MODEL "Gated DeltaNet"), row by row in sequence.
    ///
    /// # Errors
    /// When the device fails.
    fn delta(&mut self, lane: DeltaLane, w: &DeltaWeights<Self::Vector>, io: DeltaIo)
    -> Result<()>;

    /// Norms and rotates the keys, stores keys and values; stores the raw index keys (the last
    /// `index_dim` values of `index`), and the pooled, normed, rotated key of every block that
    /// becomes complete. `raw` is the ring of raw index keys.
    ///
    /// # Errors
    /// When the device fails.
    fn kv_append(
        &mut self,
        lane: KvLane,
        raw: RowLane,
        w: &AttentionWeights<Self::Vector>,
        k: Act,
        v: Act,
        index: Act,
    ) -> Result<()>;

    /// Chooses the visible complete blocks of each row: the `budget_blocks` best by
    /// `sum_heads relu(q . key) / sqrt(index_dim)`, lowest block first among equals; all of them while
    /// they are at most that many.
    ///
    /// # Errors
    /// When the device fails.
    fn select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Self::Vector>,
        index: Act,
        picks: Picks,
    ) -> Result<()>;

    /// Softmax attention over the picked blocks and the incomplete tail, times the sigmoid of the
    /// gate. `q` holds `[q | gate]` per head; `out` `[heads * head_dim]`.
    ///
    /// # Errors
    /// When the device fails.
    fn attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Self::Vector>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()>;

    /// Softmax over the router's logits, the `k` largest (lowest id among equals), their weights
    /// divided by their sum when `norm` says so. The host waits for the result.
    ///
    /// # Errors
    /// When the device fails.
    fn route(&mut self, w: &Self::Matrix, k: usize, norm: TopkNorm, x: Act) -> Result<Routes>;

    /// A guess at the experts that the router `w` of a coming layer will choose, from the present `x`;
    /// each one once, the likeliest first. It decides when experts are read and no number, so it need
    /// not be exact.
    ///
    /// # Errors
    /// When the device fails.
    fn foresee(&mut self, w: &Self::Matrix, k: usize, x: Act) -> Result<Vec<u32>> {
        Ok(self.route(w, k, TopkNorm::None, x)?.likeliest())
    }

    /// For every (row, rank) routed to an expert of the wave:
    /// `parts[row, rank] = down(silu(gate(x)) * up(x))`. The wave says which of its records each is.
    ///
    /// # Errors
    /// When the device fails.
    fn experts(
        &mut self,
        bank: &Self::Bank,
        wave: &Wave,
        routes: &Routes,
        x: Act,
        parts: Act,
    ) -> Result<<Self::Bank as Bank>::Ticket>;

    /// `out = sigmoid(gate x) * down(silu(gate_proj x) * up_proj x)`.
    ///
    /// # Errors
    /// When the device fails.
    fn shared_expert(&mut self, w: &Shared<Self::Matrix>, x: Act, out: Act) -> Result<()>;

    /// `out = sum over ranks, ascending, of weight * parts`, then `+ shared`. The part of a weight of 0
    /// counts as 0, whatever it holds.
    ///
    /// # Errors
    /// When the device fails.
    fn combine(&mut self, routes: &Routes, parts: Act, shared: Act, out: Act) -> Result<()>;

    /// PLE: per stream `a = (norm(key)_c . norm(stream)_c) / sqrt(h)`,
    /// `a = sign(a) sqrt(max(|a|, 1e-6))`, `G_c = sigmoid(a) * val`;
    /// `stream += G + silu(conv(norm(G)))`. The lane remembers `norm(G)`.
    ///
    /// # Errors
    /// When the device fails.
    fn ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<Self::Vector>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()>;

    /// Remembers the last rows of `x` of each sequence.
    ///
    /// # Errors
    /// When the device fails.
    fn keep(&mut self, lane: RowLane, x: Act) -> Result<()>;

    /// `out[i]` becomes a row of `x` (of the batch before, or of this one) or a kept row.
    ///
    /// # Errors
    /// When the device fails.
    fn recall(&mut self, lane: RowLane, x: Act, from: &[Recall], out: Act) -> Result<()>;

    /// `W x` of the chosen rows, on the host: `[chosen, out]`.
    ///
    /// # Errors
    /// When the device fails.
    fn logits(&mut self, w: &Self::Matrix, x: Act, rows: &[u32]) -> Result<Vec<f32>>;
}
