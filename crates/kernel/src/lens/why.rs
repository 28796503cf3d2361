//! Why calls slept (`LENS_WHY`): the maps of the kernel side.

use crate::error::{ErrorContext as _, Result};
use crate::gate::{KernelSide, LazyMaps};
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

fn shrink_maps(maps: &mut OpenGateMaps) -> Result<()> {
    const SIZING: &str = "shrinking the maps of the causes of sleeps, which are not used";
    maps.why_threads.set_max_entries(1).doing(SIZING)?;
    maps.why_numbers.set_max_entries(1).doing(SIZING)?;
    maps.why_causes.set_max_entries(1).doing(SIZING)
}

/// Makes the maps when they are first needed.
pub struct WhyKernelSide;

impl KernelSide for WhyKernelSide {
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        Some(&LazyMaps { prefixes: &["why_"], bit: wire::LENS_WHY, shrink: shrink_maps, fit: None })
    }
}
