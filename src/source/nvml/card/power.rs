//! The power of a card, and its limits.

use super::fields::{ENERGY, Numbers};
use super::{Asked, Card, Trouble, ask, once};
use crate::units::{Joules, Watts};

impl Card {
    pub fn power(&mut self, asked: &mut Asked) -> Result<Option<Watts>, Trouble> {
        let milliwatts = ask!(self, asked, "nvmlDeviceGetPowerUsage", |d| d.power_usage());
        Ok(milliwatts.filter(|milliwatts| *milliwatts != u32::MAX).map(watts))
    }

    /// The one in effect can be set at any time; the others are the card's.
    pub fn power_limits(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Watts)>, Trouble> {
        let enforced = ask!(self, asked, "nvmlDeviceGetEnforcedPowerLimit", |d| d.enforced_power_limit());
        let default = once!(
            self.constants.power_default,
            ask!(self, asked, "nvmlDeviceGetPowerManagementDefaultLimit", |d| d.power_management_limit_default())
        );
        let bounds = once!(
            self.constants.power_bounds,
            ask!(self, asked, "nvmlDeviceGetPowerManagementLimitConstraints", |d| d
                .power_management_limit_constraints())
            .map(|bounds| (bounds.min_limit, bounds.max_limit))
        );
        let table = [
            ("enforced", enforced),
            ("default", default),
            ("min", bounds.map(|(min, _)| min)),
            ("max", bounds.map(|(_, max)| max)),
        ];
        // A card that may draw nothing is one that knows of no limit.
        let known = |limit: Option<u32>| limit.filter(|milliwatts| ![0, u32::MAX].contains(milliwatts));
        Ok(table.into_iter().filter_map(|(label, limit)| Some((label, watts(known(limit)?)))).collect())
    }

    /// Since the driver was loaded.
    pub fn energy(&mut self, asked: &mut Asked, numbers: &Numbers) -> Result<Option<Joules>, Trouble> {
        let millijoules: Option<u64> = if self.refuses(ENERGY) {
            ask!(self, asked, "nvmlDeviceGetTotalEnergyConsumption", |d| d.total_energy_consumption())
        } else {
            numbers.of(ENERGY)
        };
        Ok(millijoules.map(|millijoules| Joules(millijoules as f64 / 1000.0)))
    }
}

fn watts(milliwatts: u32) -> Watts {
    Watts(f64::from(milliwatts) / 1000.0)
}
