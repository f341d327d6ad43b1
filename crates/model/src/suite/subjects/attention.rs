//! `kv_append`, `select`, `attend`.

use super::super::random::Random;
use super::super::rows::Rows;
use super::super::subject::{PAGE_ROWS, Piece, Subject, Tried, Trouble, same_bits};
use crate::batch::Position;
use crate::checked::{Oracle, Verb};
use crate::device::{Act, AttentionWeights, Device, KvLane, Picks, RowLane};
use crate::error::Result;
use crate::reference::Reference;
use cherenkov_format::qwen4_exp::config::Attention;

/// How a case's inputs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Text.
    Text,
    /// Positions with three different coordinates.
    Images,
    /// Half of the blocks have index keys of zeros: their scores are equal.
    Ties,
}

/// An attention layer between its projections.
pub struct Layer {
    spec: Attention,
    kind: Kind,
    /// Norms of q, k, index q, index k.
    norms: [Vec<f32>; 4],
}

fn spec(
    (heads, kv_heads, head_dim): (usize, usize, usize),
    (rope_dims, mrope_section): (usize, [usize; 3]),
    (index_heads, index_dim, index_budget, index_ratio): (usize, usize, usize, usize),
) -> Attention {
    Attention {
        heads,
        kv_heads,
        head_dim,
        rope_dims,
        rope_theta: 1e4,
        mrope_section,
        index_heads,
        index_dim,
        index_budget,
        index_ratio,
    }
}

/// Head sizes 64, 128 and 256, with an index of another size; budgets that rows outgrow.
pub fn cases(random: &mut Random) -> Vec<Layer> {
    let specs = [
        (spec((4, 2, 64), (16, [3, 3, 2]), (2, 32, 16, 4)), Kind::Text),
        (spec((3, 1, 128), (32, [6, 5, 5]), (4, 64, 12, 4)), Kind::Text),
        (spec((2, 2, 256), (64, [11, 11, 10]), (2, 128, 8, 2)), Kind::Text),
        (spec((4, 1, 64), (32, [6, 5, 5]), (1, 64, 16, 8)), Kind::Text),
        (spec((4, 2, 64), (32, [6, 5, 5]), (2, 64, 16, 4)), Kind::Images),
        (spec((2, 1, 64), (16, [3, 3, 2]), (2, 32, 12, 4)), Kind::Ties),
        (spec((2, 1, 64), (16, [3, 3, 2]), (2, 32, 8, 4)), Kind::Ties),
    ];
    let case = |(spec, kind): (Attention, Kind)| {
        assert!(PAGE_ROWS.is_multiple_of(spec.index_ratio));
        let mut norm = |width| random.values(width, 1.0, 0.3);
        let (head, index) = (spec.head_dim, spec.index_dim);
        Layer { norms: [norm(head), norm(head), norm(index), norm(index)], spec, kind }
    };
    specs.into_iter().map(case).collect()
}

/// On a device.
pub struct Loaded<D: Device> {
    lane: KvLane,
    raw: RowLane,
    w: AttentionWeights<D::Vector>,
    q: Act,
    k: Act,
    v: Act,
    index: Act,
    out: Act,
    picks: Picks,
}

impl Layer {
    /// Index queries and keys.
    fn index(&self, rows: &Rows) -> Vec<f32> {
        let width = self.spec.index_width();
        let mut values = rows.input(4, width);
        if self.kind == Kind::Ties {
            for (row, id) in values.chunks_exact_mut(width).zip(&rows.ids) {
                let block = u64::from(id.index) / self.spec.index_ratio as u64;
                if Random::new(rows.seed, &[5, id.sequence as u64, block]).below(2) == 0 {
                    row[width - self.spec.index_dim..].fill(0.0);
                }
            }
        }
        values
    }
}

impl Subject for Layer {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::KvAppend, Verb::Select, Verb::Attend]
    }

    fn name(&self) -> String {
        let s = &self.spec;
        format!(
            "{}/{} heads of {}, index {} of {}, {} of {} blocks, {:?}",
            s.heads,
            s.kv_heads,
            s.head_dim,
            s.index_heads,
            s.index_dim,
            s.budget_blocks(),
            s.index_ratio,
            self.kind
        )
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        let s = &self.spec;
        let kv = s.kv_heads * s.head_dim;
        Ok(Loaded {
            lane: device.kv_lane(s),
            raw: device.row_lane(s.index_dim, s.index_ratio),
            w: AttentionWeights {
                spec: s.clone(),
                q_norm: device.vector(&self.norms[0])?,
                k_norm: device.vector(&self.norms[1])?,
                index_q_norm: device.vector(&self.norms[2])?,
                index_k_norm: device.vector(&self.norms[3])?,
            },
            q: device.act(2 * s.heads * s.head_dim),
            k: device.act(kv),
            v: device.act(kv),
            index: device.act(s.index_width()),
            out: device.act(s.heads * s.head_dim),
            picks: device.picks(s.budget_blocks()),
        })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        let s = &self.spec;
        let kv = s.kv_heads * s.head_dim;
        device.put(on.q, &rows.primary(1, 2 * s.heads * s.head_dim, s.head_dim))?;
        device.put(on.k, &rows.input(2, kv))?;
        device.put(on.v, &rows.input(3, kv))?;
        device.put(on.index, &self.index(rows))?;
        device.kv_append(on.lane, on.raw, &on.w, on.k, on.v, on.index)?;
        device.select(on.lane, &on.w, on.index, on.picks)?;
        let picks = device.fetch_picks(on.picks)?;
        device.attend(on.lane, &on.w, on.q, on.picks, on.out)?;
        let out = device.fetch(on.out)?;
        device.put_picks(on.picks, &picks)?;
        device.attend(on.lane, &on.w, on.q, on.picks, on.out)?;
        if rows.poison.is_none() && !same_bits(&out, &device.fetch(on.out)?) {
            let what = "other bits once its own picks were put back".to_owned();
            return Err(Trouble::Wrong { verb: Verb::Attend, what });
        }
        Ok(vec![Piece::ids(Verb::Select, picks), Piece::values(Verb::Attend, out)])
    }

    fn scores(
        &self,
        reference: &mut Reference,
        on: &Loaded<Reference>,
        _rows: &Rows,
    ) -> Result<Vec<Vec<f64>>> {
        reference.block_scores(on.lane, &on.w, on.index)
    }

    fn position(&self, index: u32) -> Position {
        match self.kind {
            Kind::Images => Position { t: index, h: index / 3 + 2, w: index % 7 },
            Kind::Text | Kind::Ties => Position::text(index),
        }
    }
}
