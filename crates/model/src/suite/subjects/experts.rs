//! `experts` and `combine`, with records that come and go.

use super::super::random::{Random, wide};
use super::super::rows::{RowId, Rows};
use super::super::subject::{Piece, RowPiece, Scale, Subject, Tried};
use super::shared::Swiglu;
use super::{EIGHT, FOUR, encodings, short};
use crate::checked::Verb;
use crate::device::{Act, Device, Routes};
use crate::error::Result;
use cherenkov_experts::{Bank, Grade, Layouts, Slot, Wave};
use cherenkov_format::record::{Projection, RecordLayout};
use cherenkov_format::{Bits, Encoding, Group};

/// Slots of the bank: fewer than there are experts, so that slots are used again.
const SLOTS: usize = 5;

/// A layer of routed experts.
pub struct Routed {
    h: usize,
    k: usize,
    layouts: Layouts,
    experts: Vec<Swiglu>,
    encodings: [Encoding; 2],
    /// Encodings of the small records, which every second expert is held as.
    low: Option<[Encoding; 2]>,
}

/// Every encoding, mixed ones, and records of two grades side by side.
pub fn cases(random: &mut Random) -> Vec<Routed> {
    let two = Encoding::Tile16 { bits: Bits::B2, group: Group::G64 };
    let mixed = [[two, EIGHT], [FOUR, two], [FOUR, FOUR]];
    let mut cases = Vec::new();
    let single = encodings().into_iter().map(|e| [e; 2]).chain(mixed).map(|pair| (pair, None));
    let [narrow, three] = [(Bits::B2, Group::G32), (Bits::B3, Group::G64)]
        .map(|(bits, group)| Encoding::Tile16 { bits, group });
    let graded =
        [([FOUR; 2], [two; 2]), ([FOUR; 2], [narrow; 2]), ([EIGHT, FOUR], [three, narrow])];
    let graded = graded.into_iter().chain([([Encoding::Bf16; 2], [FOUR; 2])]);
    let all = single.chain(graded.map(|(full, low)| (full, Some(low))));
    for (i, (pair, low)) in all.enumerate() {
        let (h, width) = [(64, 64), (128, 64), (64, 192)][i % 3];
        let (count, k) = [(7, 2), (11, 4), (6, 6)][i % 3];
        cases.push(routed(random, (h, width), (count, k), pair, low));
    }
    cases
}

fn routed(
    random: &mut Random,
    (h, width): (usize, usize),
    (count, k): (usize, usize),
    encodings: [Encoding; 2],
    low: Option<[Encoding; 2]>,
) -> Routed {
    let layout =
        |pair: [Encoding; 2]| RecordLayout::new(h, width, pair[0], pair[1]).expect("widths fit");
    let layouts = Layouts { full: layout(encodings), low: low.map(layout) };
    let pair = |expert: usize| low.filter(|_| expert % 2 == 1).unwrap_or(encodings);
    let experts = (0..count).map(|e| Swiglu::new(random, (h, width), pair(e))).collect();
    Routed { h, k, layouts, experts, encodings, low }
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
    fn grade(&self, expert: u32) -> Grade {
        if self.low.is_some() && expert % 2 == 1 { Grade::Low } else { Grade::Full }
    }

    /// Writes an expert's record into a slot.
    fn land<B: Bank>(&self, bank: &mut B, slot: Slot, expert: u32) {
        let mut landing = bank.land(slot);
        let w = &self.experts[expert as usize];
        let layout = self.layouts.of(self.grade(expert));
        // What an earlier, longer record left behind it is nobody's.
        let record = &mut landing.as_mut()[..layout.bytes()];
        record.fill(0);
        let all =
            [(Projection::Gate, &w.gate), (Projection::Up, &w.up), (Projection::Down, &w.down)];
        for (which, w) in all {
            let (at, len) = layout.span(which);
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

    /// Combines with one expert of each row left out, whose part is anything.
    fn leave_out<D: Device>(
        &self,
        device: &mut D,
        on: &mut Loaded<D>,
        rows: &Rows,
        mut routes: Routes,
    ) -> Result<()> {
        let clean = rows.input(4, self.k * self.h);
        let mut parts = clean.clone();
        for (i, row) in rows.ids.iter().enumerate() {
            let gone = i * self.k + row.random(rows.seed, 10).below(self.k);
            routes.weights[gone] = 0.0;
            let value = if gone.is_multiple_of(2) { f32::NAN } else { f32::INFINITY };
            parts[gone * self.h..][..self.h].fill(value);
        }
        device.put(on.parts, &parts)?;
        device.put(on.shared, &rows.primary(5, self.h, self.h))?;
        device.combine(&routes, on.parts, on.shared, on.out)?;
        // Nothing that is no number is left for the next run.
        device.put(on.parts, &clean)
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
            let grades = experts.iter().map(|e| self.grade(*e)).collect();
            let wave = Wave { layer: 0, experts: experts.to_vec(), slots, grades };
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
        let (count, width) = (self.experts.len(), self.layouts.full.width());
        let low = self.low.map(|pair| pair.map(short));
        let low = low.map_or(String::new(), |[i, o]| format!(", every second {i} / {o}"));
        format!("{} of {count}, hidden {}, width {width}, {inner} / {outer}{low}", self.k, self.h)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        Ok(Loaded {
            x: device.act(self.h),
            parts: device.act(self.k * self.h),
            shared: device.act(self.h),
            out: device.act(self.h),
            bank: device.bank(SLOTS, &self.layouts)?,
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
        let primary = device.fetch(on.out)?;
        self.leave_out(device, on, rows, routes)?;
        Ok(vec![
            Piece::values(Verb::Experts, parts),
            Piece::values(Verb::Combine, own),
            Piece::values(Verb::Combine, primary),
            Piece::values(Verb::Combine, device.fetch(on.out)?),
        ])
    }

    fn scale(&self, seed: u64, row: RowId, piece: usize, _expected: &RowPiece) -> Scale {
        if piece >= 2 {
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
