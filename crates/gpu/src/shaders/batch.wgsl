// The tables of a batch: rows, then runs at p.runs_at, then pages at p.pages_at.

@group(0) @binding(0) var<storage, read> batch: array<u32>;

fn row_run(row: u32) -> u32 {
  return p.runs_at + batch[row * ROW_WORDS + 1u] * RUN_WORDS;
}

// Index of a row within its sequence.
fn row_index(row: u32) -> u32 {
  return batch[row * ROW_WORDS + 2u];
}

// Index of a row within its run.
fn row_at(row: u32) -> u32 {
  return batch[row * ROW_WORDS + 3u];
}

fn run_slot(run: u32) -> u32 {
  return batch[run];
}

fn run_rows(run: u32) -> u32 {
  return batch[run + 3u];
}

// Row of the page arena that holds row `index` of the run's sequence.
fn page_row(run: u32, index: u32, page_rows: u32) -> u32 {
  return batch[p.pages_at + batch[run + 5u] + index / page_rows] * page_rows + index % page_rows;
}
