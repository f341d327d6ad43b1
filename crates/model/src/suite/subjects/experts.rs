//! `experts` and `combine`, with records that come and go.

use super::super::random::{Random, wide};
use super::super::rows::{RowId, Rows};
use super::super::subject::{Piece, RowPiece, Scale, Subject, Tried};
use super::shared::Swiglu;
use super::{EIGHT, FOUR, encodings, short};
use crate::checked::Verb;
use crate::device::{Act, Device, Routes};
use crate::error::Result;
use cherenkov_experts::{Bank, Slot, Wave};
use cherenkov_format::record::{Projection, RecordLayout};
use cherenkov_format::{Bits, Encoding, Group};

/// Slots of the bank: fewer than there are experts, so that slots are used again.
const SLOTS: usize = 5;

/// A layer of routed experts.
pub struct Routed {
    h: usize,
    k: usize,
    layout: RecordLayout,
    experts: Vec<Swiglu>,
    encodings: [Encoding; 2],
}

/// Every encoding, and mixed ones.
pub fn cases(random: &mut Random) -> Vec<Routed> {
    let two = Encoding::Tile16 { bits: Bits::B2, group: Group::G64 };
    let mixed = [[two, EIGHT], [FOUR, two], [FOUR, FOUR]];
    let mut cases = Vec::new();
    for (i, pair) in encodings().into_iter().map(|e| [e; 2]).chain(mixed).enumerate() {
        let (h, width) = [(64, 64), (128, 64), (64, 192)][i % 3];
        let (count, k) = [(7, 2), (11, 4), (6, 6)][i % 3];
        cases.push(routed(random, (h, width), (count, k), pair));
    }
    cases
}

fn routed(
    random: &mut Random,
    (h, width): (usize, usize),
    (count, k): (usize, usize),
    encodings: [Encoding; 2],
) -> Routed {
    let layout = RecordLayout::new(h, width, encodings[0], encodings[1]).expect("widths fit");
    let experts = (0..count).map(|_| Swiglu::new(random, (h, width), encodings)).collect();
    Routed { h, k, layout, experts, encodings }
}

/// On a device.
pub struct Loaded<D: Device> {
    bank: D::Bank,
    x: Act,
    parts: Act,
    shared: Act,
    out: Act,
}

impl Routed {
    /// Writes an expert's record into a slot.
    fn land<B: Bank>(&self, bank: &mut B, slot: Slot, expert: u32) {
        let mut landing = bank.land(slot);
        let w = &self.experts[expert as usize];
        let record = &mut landing.as_mut()[..self.layout.bytes()];
        record.fill(0);
        let all =
            [(Projection::Gate, &w.gate), (Projection::Up, &w.up), (Projection::Down, &w.down)];
        for (which, w) in all {
            let (at, len) = self.layout.span(which);
            record[at..at + len].copy_from_slice(w.matrix.view().bytes());
        }
        bank.publish(slot, landing);
    }

    /// The experts of one row and their weights.
    fn route(&self, seed: u64, row: RowId) -> (Vec<u32>, Vec<f32>) {
        let mut random = row.random(seed, 9);
        let ids = random.subset(self.experts.len(), self.k);
        let weights = (0..self.k).map(|_| random.unit().abs()).collect();
        (ids, weights)
    }

    fn routes(&self, rows: &Rows) -> Routes {
        let mut routes = Routes { k: self.k, ..Routes::default() };
        for &row in &rows.ids {
            let (ids, weights) = self.route(rows.seed, row);
            routes.ids.extend(ids);
            routes.weights.extend(weights);
        }
        routes
    }

    /// Presents every expert once, in waves that the salt chooses.
    fn waves<D: Device>(
        &self,
        device: &mut D,
        on: &mut Loaded<D>,
        rows: &Rows,
        routes: &Routes,
    ) -> Result<()> {
        let mut random = rows.free();
        let mut wanted = routes.distinct();
        random.shuffle(&mut wanted);
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let (experts, left) = rest.split_at((1 + random.below(SLOTS)).min(rest.len()));
            rest = left;
            let mut slots: Vec<Slot> = (0..SLOTS as u32).map(Slot).collect();
            random.shuffle(&mut slots);
            slots.truncate(experts.len());
            for (&slot, &expert) in slots.iter().zip(experts) {
                self.land(&mut on.bank, slot, expert);
            }
            let wave = Wave { layer: 0, experts: experts.to_vec(), slots };
            let ticket = device.experts(&on.bank, &wave, routes, on.x, on.parts)?;
            on.bank.wait(ticket);
        }
        Ok(())
    }
}

impl Subject for Routed {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::Experts, Verb::Combine]
    }

    fn name(&self) -> String {
        let [inner, outer] = self.encodings.map(short);
        let (count, width) = (self.experts.len(), self.layout.width());
        format!("{} of {count}, hidden {}, width {width}, {inner} / {outer}", self.k, self.h)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        Ok(Loaded {
            x: device.act(self.h),
            parts: device.act(self.k * self.h),
            shared: device.act(self.h),
            out: device.act(self.h),
            bank: device.bank(SLOTS, &self.layout)?,
        })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        let routes = self.routes(rows);
        device.put(on.x, &rows.primary(1, self.h, self.h))?;
        device.put(on.shared, &rows.input(2, self.h))?;
        self.waves(device, on, rows, &routes)?;
        let parts = device.fetch(on.parts)?;
        device.combine(&routes, on.parts, on.shared, on.out)?;
        let own = device.fetch(on.out)?;
        let wide = self.k * self.h;
        device.put(on.parts, &rows.primary(3, wide, wide))?;
        device.combine(&routes, on.parts, on.shared, on.out)?;
        Ok(vec![
            Piece::values(Verb::Experts, parts),
            Piece::values(Verb::Combine, own),
            Piece::values(Verb::Combine, device.fetch(on.out)?),
        ])
    }

    fn scale(&self, seed: u64, row: RowId, piece: usize, _expected: &RowPiece) -> Scale {
        if piece == 2 {
            return Scale::Row(Verb::Combine);
        }
        let (ids, weights) = self.route(seed, row);
        let x = row.input(seed, 1, self.h);
        let parts = ids.iter().map(|&id| self.experts[id as usize].scale(&x));
        if piece == 0 {
            return Scale::Product(parts.flatten().collect());
        }
        let mut sums: Vec<f64> =
            wide(&row.input(seed, 2, self.h)).iter().map(|s| s.abs()).collect();
        for (part, &weight) in parts.zip(&weights) {
            sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(weight) * part);
        }
        Scale::Product(sums)
    }
}
