//! The cases: every verb, on shapes like those of real models but small.
//!
//! Owns: the list.

mod attention;
mod conv;
mod delta;
mod experts;
mod hyper;
mod linear;
mod recall;
mod route;
mod shared;
mod streams;

use super::random::Random;
use super::{Failure, Suite};
use crate::device::Device;
use cherenkov_format::{Bits, Encoding, Group};

/// Every encoding of a matrix.
fn encodings() -> Vec<Encoding> {
    let tiles = Bits::ALL
        .into_iter()
        .flat_map(|bits| [Group::G32, Group::G64].map(|group| Encoding::Tile16 { bits, group }));
    [Encoding::F32, Encoding::Bf16].into_iter().chain(tiles).collect()
}

/// A short name of an encoding.
fn short(encoding: Encoding) -> String {
    match encoding {
        Encoding::F32 => "f32".to_owned(),
        Encoding::Bf16 => "bf16".to_owned(),
        Encoding::Tile16 { bits, group } => format!("{} bits by {}", bits.get(), group.get()),
    }
}

/// 4 bits in groups of 64.
const FOUR: Encoding = Encoding::Tile16 { bits: Bits::B4, group: Group::G64 };
/// 8 bits in groups of 32.
const EIGHT: Encoding = Encoding::Tile16 { bits: Bits::B8, group: Group::G32 };

/// Runs every case in scope.
pub fn all<D: Device>(suite: &mut Suite<'_, D>) -> Result<(), Failure> {
    let seed = suite.plan.seed;
    let random = |purpose: u64| Random::new(seed, &[1000 + purpose]);
    streams::cases(&mut random(0)).iter().try_for_each(|s| suite.case(s))?;
    linear::embeds(&mut random(1)).iter().try_for_each(|s| suite.case(s))?;
    linear::cases(&mut random(2)).iter().try_for_each(|s| suite.case(s))?;
    hyper::cases(&mut random(3)).iter().try_for_each(|s| suite.case(s))?;
    conv::convs(&mut random(4)).iter().try_for_each(|s| suite.case(s))?;
    conv::ngrams(&mut random(5)).iter().try_for_each(|s| suite.case(s))?;
    delta::cases(&mut random(6)).iter().try_for_each(|s| suite.case(s))?;
    attention::cases(&mut random(7)).iter().try_for_each(|s| suite.case(s))?;
    route::cases(&mut random(8)).iter().try_for_each(|s| suite.case(s))?;
    experts::cases(&mut random(9)).iter().try_for_each(|s| suite.case(s))?;
    shared::cases(&mut random(10)).iter().try_for_each(|s| suite.case(s))?;
    recall::cases().iter().try_for_each(|s| suite.case(s))
}
