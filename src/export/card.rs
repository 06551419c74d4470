//! Cards.

use super::activity::Active;
use super::series::{Labels, Sample, Series, Subject, Text, by, counter, gauge, gauges, info, truth};
use crate::cycle::Cycle;
use crate::cycle::usage::{Amount, Part, Usage, listed, usages_of};
use crate::snapshot::readings::Activity;
use crate::snapshot::{Gpu, GpuUuid, Kind, Readings, Truth};
use crate::units::Bytes;

mod clocks;
mod pcie;
mod nvlink;
mod ecc;

/// A card in its cycle.
pub struct Card<'a> {
    cycle: &'a Cycle,
    gpu: &'a Gpu,
    pub usages: Vec<Usage<'a>>,
}

pub fn cards(cycle: &Cycle) -> Vec<Card<'_>> {
    cycle.seen.cards().iter().map(|gpu| Card { cycle, gpu, usages: usages_of(&cycle.seen, gpu) }).collect()
}

/// The labels of every family about a card.
pub const GPU: &[&str] = &["gpu", "uuid"];

pub fn gpu_labels(index: u32, uuid: &GpuUuid) -> Labels {
    vec![("gpu", index.into()), ("uuid", uuid.0.clone().into())]
}

impl Subject for Card<'_> {
    const LABELS: &'static [&'static str] = GPU;

    fn labels(&self) -> Labels {
        gpu_labels(self.gpu.index, &self.gpu.uuid)
    }
}

impl Active for Card<'_> {
    fn activity(&self) -> Option<&Activity> {
        self.gpu.readings.as_ref().ok().map(|told| &told.activity)
    }
}

impl Card<'_> {
    /// What the card told, as long as it answers.
    fn told<T>(&self, of: fn(&Readings) -> Option<T>) -> Option<T> {
        self.gpu.readings.as_ref().ok().and_then(of)
    }

    fn list(&self, of: fn(&Readings) -> Vec<Sample>) -> Vec<Sample> {
        self.gpu.readings.as_ref().map_or_else(|_| Vec::new(), of)
    }

    fn bytes(&self, of: fn(&Readings) -> Option<Bytes>) -> Option<f64> {
        self.told(of).map(|bytes| bytes.0 as f64)
    }

    fn count(&self, of: fn(&Readings) -> Option<u32>) -> Option<f64> {
        self.told(of).map(f64::from)
    }

    fn flag(&self, of: fn(&Readings) -> Option<bool>) -> Option<f64> {
        self.told(of).map(truth)
    }

    fn parts(&self) -> impl Iterator<Item = &Part<'_>> {
        self.usages.iter().flat_map(|usage| &usage.parts)
    }

    /// Used memory that no process accounts for; unknown where a process's memory is.
    fn unattributed(&self) -> Option<f64> {
        let used = self.told(|readings| readings.memory.used)?.0;
        listed(self.gpu)?;
        let attributed = Amount::of(self.parts().map(|part| part.hold.memory)).exact()?;
        Some(used.saturating_sub(attributed.0) as f64)
    }

    fn processes(&self) -> Vec<Sample> {
        let Some(holds) = listed(self.gpu) else { return Vec::new() };
        let of = |kind| holds.iter().filter(|hold| hold.kind == kind).count() as f64;
        by("kind", Kind::ALL.map(|kind| (kind.as_str(), of(kind))))
    }

    fn memory_unknown(&self) -> Option<f64> {
        let holds = listed(self.gpu)?;
        Some(holds.iter().filter(|hold| hold.memory.is_none()).count() as f64)
    }

    /// Distinct owners above the footprint; unknown where it is of one of them.
    fn holders(&self) -> Option<f64> {
        listed(self.gpu)?;
        let footprint = self.cycle.rules().footprint;
        let held: Vec<Truth> = self.usages.iter().map(|usage| usage.memory().exceeds(footprint)).collect();
        let known = !held.contains(&Truth::Unknown);
        known.then(|| held.iter().filter(|held| held.is_true()).count() as f64)
    }
}

/// Every row about a card, in the order of the page.
pub fn card<'a>() -> Vec<Series<Card<'a>>> {
    let groups = [
        identity(),
        utilization(),
        memory(),
        temperature(),
        power(),
        clocks::rows(),
        pcie::rows(),
        nvlink::rows(),
        ecc::rows(),
        modes(),
        holders(),
    ];
    groups.into_iter().flatten().collect()
}

fn identity<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauges(
            "gpu_info",
            &[
                "model",
                "pci_bus_id",
                "minor",
                "serial",
                "brand",
                "architecture",
                "compute_capability",
                "vbios",
                "inforom",
                "board_part",
                "numa_node",
            ],
            "What a card is; 1.",
            |card| {
                let identity = &card.gpu.identity;
                info([
                    ("model", identity.model.clone().map(Text::from)),
                    ("pci_bus_id", identity.pci_bus_id.clone().map(Text::from)),
                    ("minor", identity.minor.map(Text::from)),
                    ("serial", identity.serial.clone().map(Text::from)),
                    ("brand", identity.brand.clone().map(Text::from)),
                    ("architecture", identity.architecture.clone().map(Text::from)),
                    ("compute_capability", identity.compute_capability.clone().map(Text::from)),
                    ("vbios", identity.vbios.clone().map(Text::from)),
                    ("inforom", identity.inforom.clone().map(Text::from)),
                    ("board_part", identity.board_part.clone().map(Text::from)),
                    ("numa_node", identity.numa_node.map(Text::from)),
                ])
            },
        ),
        gauge("gpu_up", "Whether the card answers the driver.", |card| Some(truth(card.gpu.readings.is_ok()))),
        gauges("gpu_fault_info", &["reason"], "Why a card does not answer; 1, only while gpu_up is 0.", |card| {
            by("reason", card.gpu.readings.as_ref().err().map(|fault| (fault.0, 1.0)))
        }),
        gauge(
            "gpu_recovery_action",
            "What the driver advises: 0 nothing, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset.",
            |card| card.count(|told| told.recovery_action),
        ),
    ]
}

fn utilization<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_utilization_ratio", "Share of time since the last cycle in which kernels ran.", |card| {
            card.told(|told| told.utilization).map(|share| share.ratio())
        }),
        gauge(
            "gpu_memory_controller_utilization_ratio",
            "Share of time since the last cycle in which memory was read or written.",
            |card| card.told(|told| told.memory_controller_utilization).map(|share| share.ratio()),
        ),
        gauge(
            "gpu_encoder_utilization_ratio",
            "Share of time since the last cycle in which video was encoded.",
            |card| card.told(|told| told.encoder_utilization).map(|share| share.ratio()),
        ),
        gauge(
            "gpu_decoder_utilization_ratio",
            "Share of time since the last cycle in which video was decoded.",
            |card| card.told(|told| told.decoder_utilization).map(|share| share.ratio()),
        ),
        gauge(
            "gpu_jpeg_utilization_ratio",
            "Share of time since the last cycle in which JPEGs were decoded.",
            |card| card.told(|told| told.jpeg_utilization).map(|share| share.ratio()),
        ),
        gauge(
            "gpu_ofa_utilization_ratio",
            "Share of time since the last cycle in which optical flow was computed.",
            |card| card.told(|told| told.ofa_utilization).map(|share| share.ratio()),
        ),
        counter(
            "gpu_held_seconds_total",
            "Time in which somebody held more memory of the card than the footprint that is configured.",
            |card| card.cycle.tallies.held.get(&card.gpu.uuid).map(|time| time.as_secs_f64()),
        ),
        counter(
            "gpu_busy_seconds_total",
            "Time in which kernels ran, by the driver's own samples; time without samples is neither here nor in gpu_idle_seconds_total.",
            |card| card.told(|told| told.worked).map(|worked| worked.busy.as_secs_f64()),
        ),
        counter("gpu_idle_seconds_total", "Time in which no kernel ran, by the driver's own samples.", |card| {
            card.told(|told| told.worked).map(|worked| worked.idle.as_secs_f64())
        }),
    ]
}

fn memory<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_memory_total_bytes", "Memory of the card.", |card| card.bytes(|told| told.memory.total)),
        gauge("gpu_memory_used_bytes", "Memory in use, without what the driver reserves.", |card| {
            card.bytes(|told| told.memory.used)
        }),
        gauge("gpu_memory_free_bytes", "Memory not in use.", |card| card.bytes(|told| told.memory.free)),
        gauge("gpu_memory_reserved_bytes", "Memory that the driver keeps for itself.", |card| {
            card.bytes(|told| told.memory.reserved)
        }),
        gauge("gpu_memory_unattributed_bytes", "Used memory that no living process accounts for.", Card::unattributed),
    ]
}

fn temperature<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_temperature_celsius", "Temperature of the card.", |card| {
            card.told(|told| told.temperature).map(|celsius| celsius.0)
        }),
        gauge("gpu_memory_temperature_celsius", "Temperature of the memory of the card.", |card| {
            card.told(|told| told.memory_temperature).map(|celsius| celsius.0)
        }),
        gauge("gpu_temperature_margin_celsius", "Degrees left until the card is slowed down.", |card| {
            card.told(|told| told.temperature_margin).map(|celsius| celsius.0)
        }),
        gauges(
            "gpu_temperature_threshold_celsius",
            &["threshold"],
            "Temperature at which the driver slows the card down or shuts it down, and the highest to work at.",
            |card| {
                card.list(|told| {
                    by("threshold", told.temperature_thresholds.iter().map(|(name, value)| (*name, value.0)))
                })
            },
        ),
        gauges("gpu_fan_speed_ratio", &["fan"], "Speed of a fan as a share of its nominal one.", |card| {
            card.list(|told| by("fan", told.fans.iter().map(|(fan, speed)| (*fan, speed.ratio()))))
        }),
    ]
}

fn power<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_power_watts", "Power that the card draws.", |card| {
            card.told(|told| told.power).map(|watts| watts.0)
        }),
        gauges(
            "gpu_power_limit_watts",
            &["limit"],
            "Limit on the power of the card, in effect and possible.",
            |card| card.list(|told| by("limit", told.power_limits.iter().map(|(name, value)| (*name, value.0)))),
        ),
        counter("gpu_energy_joules_total", "Energy that the card has taken since the driver was loaded.", |card| {
            card.told(|told| told.energy).map(|joules| joules.0)
        }),
    ]
}

fn modes<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_persistence_mode", "Whether the driver keeps the card initialised without clients.", |card| {
            card.flag(|told| told.persistence_mode)
        }),
        gauge("gpu_compute_mode", "0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.", |card| {
            card.count(|told| told.compute_mode)
        }),
        gauge("gpu_mig_mode", "Whether the card is split into instances.", |card| card.flag(|told| told.mig_mode)),
    ]
}

fn holders<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauges("gpu_processes", &["kind"], "Processes that the driver lists on the card.", Card::processes),
        gauge("gpu_processes_memory_unknown", "Processes whose memory the driver does not tell.", Card::memory_unknown),
        gauge(
            "gpu_holders",
            "Users who hold more memory of the card than the footprint that is configured; 0 is a free card.",
            Card::holders,
        ),
    ]
}

pub fn node<'a>() -> Vec<Series<&'a Cycle>> {
    vec![
        gauge(
            "gpus_expected",
            "Cards on the PCI bus, or the most that the driver has shown since the agent started.",
            |cycle| cycle.seen.gpus_expected.map(f64::from),
        ),
        gauge("gpus_found", "Cards that answer; 0 while the driver as a whole does not.", |cycle| {
            Some(cycle.seen.cards().iter().filter(|gpu| gpu.readings.is_ok()).count() as f64)
        }),
    ]
}
