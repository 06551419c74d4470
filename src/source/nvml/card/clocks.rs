//! The clocks of a card, and what holds them down.

use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST,
};
use nvml_wrapper_sys::bindings::{
    nvmlClocksEventReasonApplicationsClocksSetting, nvmlClocksEventReasonDisplayClockSetting,
    nvmlClocksEventReasonGpuIdle, nvmlClocksEventReasonSwPowerCap, nvmlClocksEventReasonSwThermalSlowdown,
    nvmlClocksEventReasonSyncBoost, nvmlClocksThrottleReasonHwPowerBrakeSlowdown, nvmlClocksThrottleReasonHwSlowdown,
    nvmlClocksThrottleReasonHwThermalSlowdown,
};

use super::fields::Numbers;
use super::raw::fields::Field;
use super::raw::values;
use super::{Asked, Card, Trouble, ask, once};
use crate::units::Hertz;

const CLOCKS: [(&str, Clock); 4] =
    [("graphics", Clock::Graphics), ("sm", Clock::SM), ("memory", Clock::Memory), ("video", Clock::Video)];

/// By their names in `nvml.h`.
const EVENTS: [(&str, u32); 11] = [
    ("gpu_idle", nvmlClocksEventReasonGpuIdle),
    ("applications_clocks_setting", nvmlClocksEventReasonApplicationsClocksSetting),
    ("sw_power_cap", nvmlClocksEventReasonSwPowerCap),
    ("hw_slowdown", nvmlClocksThrottleReasonHwSlowdown),
    ("sync_boost", nvmlClocksEventReasonSyncBoost),
    ("sw_thermal_slowdown", nvmlClocksEventReasonSwThermalSlowdown),
    ("hw_thermal_slowdown", nvmlClocksThrottleReasonHwThermalSlowdown),
    ("hw_power_brake_slowdown", nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
    ("display_clock_setting", nvmlClocksEventReasonDisplayClockSetting),
    // Younger than the bindings: nvmlClocksThrottleReasonBoardLimit and …Reliability of nvidia-ml-py 13.615.
    ("board_limit", 0x200),
    ("reliability", 0x400),
];

/// How long each has held the clocks down since the driver was loaded, in nanoseconds. The driver times no others.
pub const TIMES: [(&str, Field); 5] = [
    ("sw_power_cap", Field::of_card(NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP)),
    ("sync_boost", Field::of_card(NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST)),
    ("sw_thermal_slowdown", Field::of_card(NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN)),
    ("hw_thermal_slowdown", Field::of_card(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN)),
    ("hw_power_brake_slowdown", Field::of_card(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN)),
];

impl Card {
    pub fn clocks(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Hertz)>, Trouble> {
        let mut clocks = Vec::new();
        for (at, (label, clock)) in CLOCKS.into_iter().enumerate() {
            let megahertz = ask!(self, asked, "nvmlDeviceGetClockInfo", at, |d| d.clock_info(clock));
            clocks.extend(megahertz.and_then(hertz).map(|hertz| (label, hertz)));
        }
        Ok(clocks)
    }

    pub fn clocks_max(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Hertz)>, Trouble> {
        let mut clocks = Vec::new();
        for (at, (label, clock)) in CLOCKS.into_iter().enumerate() {
            let megahertz = once!(
                self.constants.clocks_max[at],
                ask!(self, asked, "nvmlDeviceGetMaxClockInfo", at, |d| d.max_clock_info(clock))
            );
            clocks.extend(megahertz.and_then(hertz).map(|hertz| (label, hertz)));
        }
        Ok(clocks)
    }

    /// 0 (fastest) to 15; 32 is a state that the driver does not know.
    pub fn performance_state(&mut self, asked: &mut Asked) -> Result<Option<u32>, Trouble> {
        let state = ask!(self, asked, "nvmlDeviceGetPerformanceState", |d| d.performance_state());
        Ok(state.map(|state| state.as_c()).filter(|number| *number <= 15))
    }

    /// Every reason that the card knows, and whether it holds now.
    pub fn clock_events(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, bool)>, Trouble> {
        let nvml = asked.nvml;
        let supported = once!(
            self.constants.clock_events,
            ask!(self, asked, "nvmlDeviceGetSupportedClocksEventReasons", |d| values::supported_clock_events(nvml, d))
        );
        let active = ask!(self, asked, "nvmlDeviceGetCurrentClocksEventReasons", |d| values::clock_events(nvml, d));
        // Where the card does not say which it knows (as in a vGPU guest), those that it does not name do not hold.
        let known = supported.or(self.refused.contains(&("nvmlDeviceGetSupportedClocksEventReasons", 0)).then_some(!0));
        Ok(known.zip(active).map_or_else(Vec::new, |(known, active)| events(known, active)))
    }
}

fn events(known: u64, active: u64) -> Vec<(&'static str, bool)> {
    let has = |bits: u64, bit: u32| bits & u64::from(bit) != 0;
    // One that holds is one that the card knows, whatever it says.
    let known = EVENTS.into_iter().filter(|(_, bit)| has(known | active, *bit));
    known.map(|(label, bit)| (label, has(active, bit))).collect()
}

pub fn event_times(numbers: &Numbers) -> Vec<(&'static str, Duration)> {
    TIMES.iter().filter_map(|(label, field)| Some((*label, Duration::from_nanos(numbers.of(*field)?)))).collect()
}

fn hertz(megahertz: u32) -> Option<Hertz> {
    (megahertz != u32::MAX).then(|| Hertz(f64::from(megahertz) * 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_that_the_card_knows_holds_or_does_not() {
        assert_eq!(events(0b1101, 0b0100), [("gpu_idle", false), ("sw_power_cap", true), ("hw_slowdown", false)]);
        assert_eq!(events(0b0001, 0b0100), [("gpu_idle", false), ("sw_power_cap", true)]);
        assert_eq!(events(1 << 40, 1 << 41), []);
    }
}
