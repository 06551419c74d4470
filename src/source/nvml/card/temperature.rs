//! How hot a card is, how hot it may be, and its fans.

use nvml_wrapper::enum_wrappers::device::{TemperatureSensor, TemperatureThreshold};

use super::fields::{MEMORY_TEMPERATURE, Numbers};
use super::raw::values;
use super::{Asked, Card, Trouble, ask, once};
use crate::units::{Celsius, Percent};

const THRESHOLDS: [(&str, TemperatureThreshold); 4] = [
    ("slowdown", TemperatureThreshold::Slowdown),
    ("shutdown", TemperatureThreshold::Shutdown),
    ("gpu_max", TemperatureThreshold::GpuMax),
    ("memory_max", TemperatureThreshold::MemoryMax),
];

impl Card {
    pub fn temperature(&mut self, asked: &mut Asked) -> Result<Option<Celsius>, Trouble> {
        let degrees = ask!(self, asked, "nvmlDeviceGetTemperature", |d| d.temperature(TemperatureSensor::Gpu));
        Ok(degrees.and_then(celsius))
    }

    /// Degrees left to slowdown; below 0 it is slowed down.
    pub fn temperature_margin(&mut self, asked: &mut Asked) -> Result<Option<Celsius>, Trouble> {
        let nvml = asked.nvml;
        let degrees = ask!(self, asked, "nvmlDeviceGetMarginTemperature", |d| values::temperature_margin(nvml, d));
        Ok(degrees.map(|degrees| Celsius(f64::from(degrees))))
    }

    pub fn temperature_thresholds(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Celsius)>, Trouble> {
        let mut thresholds = Vec::new();
        for (at, (label, threshold)) in THRESHOLDS.into_iter().enumerate() {
            let degrees = once!(
                self.constants.temperature_thresholds[at],
                ask!(self, asked, "nvmlDeviceGetTemperatureThreshold", at, |d| d.temperature_threshold(threshold))
            );
            thresholds.extend(degrees.and_then(celsius).map(|degrees| (label, degrees)));
        }
        Ok(thresholds)
    }

    /// The speed of each fan as a share of its nominal one, which it may be told to exceed.
    pub fn fans(&mut self, asked: &mut Asked) -> Result<Vec<(u32, Percent)>, Trouble> {
        let count = once!(self.constants.fans, ask!(self, asked, "nvmlDeviceGetNumFans", |d| d.num_fans()));
        let mut fans = Vec::new();
        for fan in 0..count.filter(|count| *count <= MOST_FANS).unwrap_or_default() {
            let speed = ask!(self, asked, "nvmlDeviceGetFanSpeed_v2", fan, |d| d.fan_speed(fan));
            fans.extend(speed.filter(|speed| *speed < UNTOLD).map(|speed| (fan, Percent(f64::from(speed)))));
        }
        Ok(fans)
    }
}

/// More than any card has: a number beyond is nonsense.
const MOST_FANS: u32 = 64;

/// More than any temperature or share can be; some drivers answer with all bits set.
const UNTOLD: u32 = 1000;

/// Memory without a sensor is told to have 0 degrees, which no card in use has.
pub fn of_memory(numbers: &Numbers) -> Option<Celsius> {
    numbers.of(MEMORY_TEMPERATURE).filter(|degrees| *degrees != 0).and_then(celsius)
}

fn celsius(degrees: u32) -> Option<Celsius> {
    (degrees < UNTOLD).then(|| Celsius(f64::from(degrees)))
}
