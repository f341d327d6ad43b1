//! AMX int8 tiles: sixteen activation rows times one weight tile.
//!
//! Owns: tile configuration and the tile instructions. Never: small row counts.

use super::vector::LANES;
use super::{Panel, Tiles};

/// Proof that the processor has AMX int8 and that the operating system lets this process use it.
#[derive(Clone, Copy, Debug)]
pub struct AmxTiles(());

impl Tiles for AmxTiles {
    fn detect() -> Option<Self> {
        None
    }

    #[inline(always)]
    fn open(self) {}

    #[inline(always)]
    fn close(self) {}

    #[inline(always)]
    fn panel<const PLANES: usize>(self, _panel: &Panel<'_>, _out: &mut [[f32; LANES]; 16]) -> bool {
        false
    }
}
