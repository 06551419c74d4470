//! The MIG instances of cards. They have families of their own, for a card must not be counted twice.

use std::collections::BTreeMap;

use super::activity::Active;
use super::card::gpu_labels;
use super::series::{Labels, Series, Subject, Text, gauge, gauges, info};
use crate::cycle::Cycle;
use crate::snapshot::Gpu;
use crate::snapshot::gpu::Instance;
use crate::snapshot::hold::Place;
use crate::snapshot::readings::{Activity, Memory};
use crate::units::Bytes;

/// The labels that tell where on a card under MIG something is.
pub const PLACE: &[&str] = &["gpu_instance", "compute_instance"];

pub fn place_labels(place: Place) -> Labels {
    let Place { gpu_instance, compute_instance } = place;
    let compute_instance = compute_instance.map(|id| ("compute_instance", id.into()));
    std::iter::once(("gpu_instance", gpu_instance.into())).chain(compute_instance).collect()
}

/// A compute instance.
pub struct ComputeInstance<'a> {
    gpu: &'a Gpu,
    instance: &'a Instance,
}

impl Subject for ComputeInstance<'_> {
    const LABELS: &'static [&'static str] = &["gpu", "uuid", "gpu_instance", "compute_instance"];

    fn labels(&self) -> Labels {
        let mut labels = gpu_labels(self.gpu.index, &self.gpu.uuid);
        labels.extend(place_labels(self.instance.place));
        labels
    }
}

/// The instances of the cards that answer.
pub fn compute_instances(cycle: &Cycle) -> Vec<ComputeInstance<'_>> {
    let answering = cycle.seen.cards().iter().filter(|gpu| gpu.readings.is_ok());
    answering.flat_map(|gpu| gpu.instances.iter().map(move |instance| ComputeInstance { gpu, instance })).collect()
}

pub fn compute_instance<'a>() -> Vec<Series<ComputeInstance<'a>>> {
    vec![gauges("mig_info", &["mig_uuid", "profile"], "A MIG instance; 1.", |one| {
        info([
            ("mig_uuid", Some(one.instance.uuid.clone().into())),
            ("profile", one.instance.profile.clone().map(Text::from)),
        ])
    })]
}

/// A GPU instance: what its compute instances share.
pub struct GpuInstance<'a> {
    gpu: &'a Gpu,
    id: u32,
    memory: Memory,
    activity: &'a Activity,
}

impl Subject for GpuInstance<'_> {
    const LABELS: &'static [&'static str] = &["gpu", "uuid", "gpu_instance"];

    fn labels(&self) -> Labels {
        let mut labels = gpu_labels(self.gpu.index, &self.gpu.uuid);
        labels.push(("gpu_instance", self.id.into()));
        labels
    }
}

impl Active for GpuInstance<'_> {
    fn activity(&self) -> Option<&Activity> {
        Some(self.activity)
    }
}

pub fn gpu_instances<'a>(instances: &[ComputeInstance<'a>]) -> Vec<GpuInstance<'a>> {
    let mut by_id = BTreeMap::new();
    for ComputeInstance { gpu, instance } in instances {
        let (id, memory, activity) = (instance.place.gpu_instance, instance.memory, &instance.activity);
        by_id.entry((gpu.index, &gpu.uuid, id)).or_insert(GpuInstance { gpu, id, memory, activity });
    }
    by_id.into_values().collect()
}

pub fn gpu_instance<'a>() -> Vec<Series<GpuInstance<'a>>> {
    vec![
        gauge("mig_memory_total_bytes", "Memory of a GPU instance; its compute instances share it.", |one| {
            of(one.memory.total)
        }),
        gauge("mig_memory_used_bytes", "Memory in use, without what the driver reserves.", |one| of(one.memory.used)),
        gauge("mig_memory_free_bytes", "Memory not in use.", |one| of(one.memory.free)),
        gauge("mig_memory_reserved_bytes", "Memory that the driver keeps for itself.", |one| of(one.memory.reserved)),
    ]
}

fn of(bytes: Option<Bytes>) -> Option<f64> {
    bytes.map(|bytes| bytes.0 as f64)
}
