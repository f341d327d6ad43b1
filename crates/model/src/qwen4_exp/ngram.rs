//! N-gram embeddings (PLE): rows of a mapped table, hashed from the token ids alone.

use super::forward::Pass;
use super::weights::Loader;
use crate::device::{Device, PleWeights, RowLane};
use crate::error::Result;
use cherenkov_format::NgramTable;
use cherenkov_format::qwen4_exp::hash::HashTable;

/// Weights, table and lane of one PLE layer.
pub struct NgramLayer<D: Device> {
    table: NgramTable,
    hash: HashTable,
    key: D::Matrix,
    value: D::Matrix,
    weights: PleWeights<D::Vector>,
    history: RowLane,
}

impl<D: Device> NgramLayer<D> {
    /// Loads the layer whose tensors start with `at`, with the `index`-th table.
    pub fn load(load: &mut Loader<'_, D>, at: &str, index: usize) -> Result<Self> {
        let config = load.store.config().clone();
        let ple = config.ple.as_ref().expect("a PLE layer has a configuration");
        Ok(Self {
            table: load.store.ngram(index)?,
            hash: load.store.hash_tables()[index].clone(),
            key: load.matrix(&format!("{at}.key_proj"))?,
            value: load.matrix(&format!("{at}.value_proj"))?,
            history: load.device.row_lane(config.wide(), ple.history()),
            weights: PleWeights {
                count: config.hyper.count,
                norm_key: load.vector(&format!("{at}.norm_key"))?,
                norm_query: load.vector(&format!("{at}.norm_query"))?,
                norm_conv: load.vector(&format!("{at}.norm_conv"))?,
                taps: load.vector(&format!("{at}.conv1d"))?,
                kernel: ple.conv_kernel,
                dilation: ple.ngram,
            },
        })
    }

    /// The concatenated table rows of every row of the pass, `[rows, embed_dim]`.
    pub fn gather(&self, windows: &[u32]) -> Vec<f32> {
        let ngram = self.hash.multipliers.len();
        let (heads, width) = (self.hash.sizes.len(), self.table.width());
        let mut ids = Vec::with_capacity(windows.len() / ngram * heads);
        for window in windows.chunks_exact(ngram) {
            self.hash.rows_of(window, &mut ids);
        }
        let mut values = vec![0.0; ids.len() * width];
        for (&id, row) in ids.iter().zip(values.chunks_exact_mut(width)) {
            self.table.read_row(id, row);
        }
        values
    }

    /// Adds the embeddings to the residual.
    pub fn run(&self, p: &mut Pass<'_, D>) -> Result<()> {
        let a = p.acts;
        let [rows, key, value] = a.ngram;
        p.device.put(rows, &self.gather(p.windows))?;
        p.device.linear(&self.key, rows, key)?;
        p.device.linear(&self.value, rows, value)?;
        p.device.ngram_add(self.history, &self.weights, key, value, a.stream)
    }
}
