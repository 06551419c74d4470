//! The PCIe link.

use super::Card;
use crate::export::series::{Series, by, counter, counters, gauge, gauges};

pub fn rows<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_pcie_link_generation", "Generation of the PCIe link; it falls while the card is idle.", |card| {
            card.count(|told| told.pcie.generation)
        }),
        gauge("gpu_pcie_link_generation_max", "Highest PCIe generation that card and slot allow.", |card| {
            card.count(|told| told.pcie.generation_max)
        }),
        gauge("gpu_pcie_link_width", "Lanes of the PCIe link in use.", |card| card.count(|told| told.pcie.width)),
        gauge("gpu_pcie_link_width_max", "Lanes that card and slot allow.", |card| {
            card.count(|told| told.pcie.width_max)
        }),
        counter("gpu_pcie_replays_total", "PCIe packets that were sent again since the driver was loaded.", |card| {
            card.told(|told| told.pcie.replays).map(|replays| replays as f64)
        }),
        counters(
            "gpu_pcie_bytes_total",
            &["direction"],
            "Bytes over the PCIe link since the agent began; at least so many where the driver counts in 32 bits.",
            |card| {
                card.list(|told| by("direction", told.pcie.bytes.iter().map(|(name, bytes)| (*name, bytes.0 as f64))))
            },
        ),
        gauges(
            "gpu_pcie_throughput_bytes_per_second",
            &["direction"],
            "Bytes over the PCIe link, as measured for 20 ms in this cycle.",
            |card| {
                card.list(|told| {
                    by("direction", told.pcie_throughput.iter().map(|(name, bytes)| (*name, bytes.0 as f64)))
                })
            },
        ),
    ]
}
