//! What the parts of a card were doing, where the driver measures it (GPM).

use super::card::Card;
use super::mig::GpuInstance;
use super::series::{Series, gauge};
use crate::snapshot::readings::Activity;

const SM_ACTIVE: &str =
    "Share of time since the last cycle in which a multiprocessor had work (at least one warp), mean of all of them.";
const OCCUPANCY: &str =
    "Warps on the multiprocessors as a share of those that they can hold, mean since the last cycle.";

/// A card, or a GPU instance of one.
pub trait Active {
    fn activity(&self) -> Option<&Activity>;
}

fn active(it: &impl Active, part: &str) -> Option<f64> {
    it.activity()?.active.get(part).map(|share| share.ratio())
}

fn occupancy(it: &impl Active) -> Option<f64> {
    it.activity()?.sm_occupancy.map(|share| share.ratio())
}

pub fn card<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_graphics_active_ratio", "Share of time since the last cycle in which any unit was busy.", |card| {
            active(card, "graphics")
        }),
        gauge("gpu_sm_active_ratio", SM_ACTIVE, |card| active(card, "sm")),
        gauge("gpu_tensor_active_ratio", "Share of time in which tensor cores were busy.", |card| {
            active(card, "tensor")
        }),
        gauge("gpu_dram_active_ratio", "Share of the memory's bandwidth in use.", |card| active(card, "dram")),
        gauge("gpu_fp64_active_ratio", "Share of time in which the FP64 units were busy.", |card| active(card, "fp64")),
        gauge("gpu_fp32_active_ratio", "Share of time in which the FP32 units were busy.", |card| active(card, "fp32")),
        gauge("gpu_fp16_active_ratio", "Share of time in which the FP16 units were busy.", |card| active(card, "fp16")),
        gauge("gpu_integer_active_ratio", "Share of time in which the integer units were busy.", |card| {
            active(card, "integer")
        }),
        gauge("gpu_sm_occupancy_ratio", OCCUPANCY, occupancy),
    ]
}

pub fn gpu_instance<'a>() -> Vec<Series<GpuInstance<'a>>> {
    vec![
        gauge("mig_graphics_active_ratio", "Share of time since the last cycle in which any unit was busy.", |one| {
            active(one, "graphics")
        }),
        gauge("mig_sm_active_ratio", SM_ACTIVE, |one| active(one, "sm")),
        gauge("mig_tensor_active_ratio", "Share of time in which tensor cores were busy.", |one| active(one, "tensor")),
        gauge("mig_dram_active_ratio", "Share of the instance's memory bandwidth in use.", |one| active(one, "dram")),
        gauge("mig_sm_occupancy_ratio", OCCUPANCY, occupancy),
    ]
}
