//! The PCIe link of a card.

use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES, NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_REPLAY_COUNTER,
};

use super::fields::Numbers;
use super::raw::fields::Field;
use super::{Asked, Card, Trouble, ask, once};
use crate::snapshot::readings::Pcie;
use crate::units::Bytes;

const REPLAYS: Field = Field::of_card(NVML_FI_DEV_PCIE_REPLAY_COUNTER);
const RECEIVED: Field = Field::of_card(NVML_FI_DEV_PCIE_COUNT_RX_BYTES);
const SENT: Field = Field::of_card(NVML_FI_DEV_PCIE_COUNT_TX_BYTES);

pub const FIELDS: [Field; 3] = [REPLAYS, RECEIVED, SENT];

impl Card {
    pub fn pcie(&mut self, asked: &mut Asked, numbers: &Numbers) -> Result<Pcie, Trouble> {
        let replays = if self.refuses(REPLAYS) {
            ask!(self, asked, "nvmlDeviceGetPcieReplayCounter", |d| d.pcie_replay_counter()).map(u64::from)
        } else {
            numbers.of(REPLAYS)
        };
        Ok(Pcie {
            generation: ask!(self, asked, "nvmlDeviceGetCurrPcieLinkGeneration", |d| d.current_pcie_link_gen()),
            generation_max: once!(
                self.constants.pcie_generation_max,
                ask!(self, asked, "nvmlDeviceGetMaxPcieLinkGeneration", |d| d.max_pcie_link_gen())
            ),
            width: ask!(self, asked, "nvmlDeviceGetCurrPcieLinkWidth", |d| d.current_pcie_link_width()),
            width_max: once!(
                self.constants.pcie_width_max,
                ask!(self, asked, "nvmlDeviceGetMaxPcieLinkWidth", |d| d.max_pcie_link_width())
            ),
            replays,
            bytes: self.pcie_bytes.advance(numbers),
        })
    }

    /// Bytes a second over the 20 ms that each of these two calls takes.
    pub fn pcie_throughput(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Bytes)>, Trouble> {
        let mut throughput = Vec::new();
        for (at, (label, counter)) in
            [("rx", PcieUtilCounter::Receive), ("tx", PcieUtilCounter::Send)].into_iter().enumerate()
        {
            let kibibytes = ask!(self, asked, "nvmlDeviceGetPcieThroughput", at, |d| d.pcie_throughput(counter));
            throughput.extend(kibibytes.map(|kibibytes| (label, Bytes(u64::from(kibibytes) << 10))));
        }
        Ok(throughput)
    }
}

/// How far each direction has come since the agent first looked.
#[derive(Debug, Clone, Default)]
pub struct Odometers {
    received: Odometer,
    sent: Odometer,
}

impl Odometers {
    /// By the label `direction`.
    fn advance(&mut self, numbers: &Numbers) -> Vec<(&'static str, Bytes)> {
        let table = [("rx", &mut self.received, RECEIVED), ("tx", &mut self.sent, SENT)];
        let told = table.into_iter().filter_map(|(label, meter, field)| Some((label, meter, numbers.of(field)?)));
        told.map(|(label, meter, now)| (label, Bytes(meter.advance(now)))).collect()
    }

    pub fn forget_the_session(&mut self) {
        self.received.last = None;
        self.sent.last = None;
    }
}

/// A counter that never falls, made of one of the driver that does: "Value can be wrapped" (`nvml.h`). As nothing says how
/// often it had begun again before, this one counts from the agent's first look: one that went on from the driver's number
/// would fall to it when the agent restarts, and Prometheus would add that number again.
#[derive(Debug, Clone, Default)]
struct Odometer {
    last: Option<u64>,
    counted: u64,
}

impl Odometer {
    fn advance(&mut self, now: u64) -> u64 {
        const FULL: u64 = 1 << 32;
        let passed = match self.last {
            None => 0,
            Some(last) if now >= last => now - last,
            // It is full after 32 bits. If that happened more than once, nobody saw it, and this is too little.
            Some(last) if last < FULL => FULL - last + now,
            // A counter that is wider is never full: it has begun again.
            Some(_) => now,
        };
        self.last = Some(now);
        self.counted = self.counted.saturating_add(passed);
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odometer_goes_on_when_the_counter_of_the_driver_begins_again() {
        let full = 1 << 32;
        for (told, expected) in [
            (vec![100, 100, 150], vec![0, 0, 50]),
            (vec![full - 10, 20, 30], vec![0, 30, 40]),
            (vec![full + 5, full + 9, 7], vec![0, 4, 11]),
        ] {
            let mut odometer = Odometer::default();
            let counted: Vec<u64> = told.iter().map(|now| odometer.advance(*now)).collect();
            assert_eq!(counted, expected, "{told:?}");
        }
    }

    #[test]
    fn another_driver_counts_on_from_what_was_counted() {
        let mut meters = Odometers::default();
        assert_eq!([5, 9].map(|now| meters.sent.advance(now)), [0, 4]);
        meters.forget_the_session();
        assert_eq!([2, 3].map(|now| meters.sent.advance(now)), [4, 5]);
    }
}
