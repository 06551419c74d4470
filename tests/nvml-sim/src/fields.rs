//! Field values: numbers of a card by their id, several in a call.

use crate::call::{Device, device_calls};
use crate::device::{clock_event_time, nvlink};
use crate::driver::now;
use crate::pointer::Array;
use crate::record;
use crate::scenario::{ClockEvent, Gpu};
use crate::value::Error;
use nvml_wrapper_sys::bindings::field_id::*;
use nvml_wrapper_sys::bindings::*;
use std::ffi::c_int;

device_calls! {
    nvmlDeviceGetFieldValues(device, count: c_int, values: Array<nvmlFieldValue_t>) {
        let count = usize::try_from(count).map_err(|_| Error::INVALID_ARGUMENT)?;
        let asked = values.values(count)?;
        record::asked(asked.iter().map(|asked| asked.fieldId));
        let answered: Vec<_> = asked.into_iter().map(|asked| answered(device, asked)).collect();
        values.fill(count, &answered)
    }
}

fn answered(device: &Device, asked: nvmlFieldValue_t) -> nvmlFieldValue_t {
    let (nvmlReturn, value) = match value(device, asked.fieldId, asked.scopeId) {
        Ok(value) => (nvmlReturn_enum_NVML_SUCCESS, nvmlValue_t { ullVal: value }),
        Err(error) => (error.0, asked.value),
    };
    nvmlFieldValue_t {
        timestamp: now() as i64,
        latencyUsec: 0,
        valueType: nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
        nvmlReturn,
        value,
        ..asked
    }
}

fn value(device: &Device, id: u32, scope: u32) -> Result<u64, Error> {
    let gpu: &Gpu = device;
    if let Some(written) = gpu.fields.get(&id) {
        return written.get();
    }
    let wide = |value: Result<u32, Error>| value.map(u64::from);
    let links =
        || if gpu.nvlink.links.is_empty() { Err(Error::NOT_SUPPORTED) } else { Ok(gpu.nvlink.links.len() as u64) };
    // A scope is one link; all of them together are the highest number.
    let of_links = |each: Result<u64, Error>| {
        let links = links()?;
        match u64::from(scope) {
            link if link < links => each,
            _ if scope == u32::MAX => each.map(|each| each * links),
            _ => Err(Error::INVALID_ARGUMENT),
        }
    };
    let all_links = |each: Result<u64, Error>| Ok(each? * links()?);
    let clock_event = |event| clock_event_time(gpu, event);
    match canonical(id, device.driver.scenario.driver.version()) {
        NVML_FI_DEV_ECC_CURRENT => wide(gpu.ecc.mode.get()),
        NVML_FI_DEV_ECC_PENDING => wide(gpu.ecc.pending.get()),
        NVML_FI_DEV_ECC_SBE_VOL_TOTAL => gpu.ecc.volatile.corrected.total(),
        NVML_FI_DEV_ECC_DBE_VOL_TOTAL => gpu.ecc.volatile.uncorrected.total(),
        NVML_FI_DEV_ECC_SBE_AGG_TOTAL => gpu.ecc.aggregate.corrected.total(),
        NVML_FI_DEV_ECC_DBE_AGG_TOTAL => gpu.ecc.aggregate.uncorrected.total(),
        NVML_FI_DEV_ECC_SBE_VOL_DEV => gpu.ecc.volatile.corrected.dram.get(),
        NVML_FI_DEV_ECC_DBE_VOL_DEV => gpu.ecc.volatile.uncorrected.dram.get(),
        NVML_FI_DEV_ECC_SBE_AGG_DEV => gpu.ecc.aggregate.corrected.dram.get(),
        NVML_FI_DEV_ECC_DBE_AGG_DEV => gpu.ecc.aggregate.uncorrected.dram.get(),
        NVML_FI_DEV_RETIRED_SBE => gpu.retired_pages.known().map(|pages| pages.single_bit.len() as u64),
        NVML_FI_DEV_RETIRED_DBE => gpu.retired_pages.known().map(|pages| pages.double_bit.len() as u64),
        NVML_FI_DEV_RETIRED_PENDING => gpu.retired_pages.known().map(|pages| pages.pending.into()),
        NVML_FI_DEV_REMAPPED_COR => gpu.remapped_rows.known().map(|rows| rows.corrected.into()),
        NVML_FI_DEV_REMAPPED_UNC => gpu.remapped_rows.known().map(|rows| rows.uncorrected.into()),
        NVML_FI_DEV_REMAPPED_PENDING => gpu.remapped_rows.known().map(|rows| rows.pending.into()),
        NVML_FI_DEV_REMAPPED_FAILURE => gpu.remapped_rows.known().map(|rows| rows.failure.into()),
        NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL => all_links(gpu.nvlink.crc_errors.get()),
        NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL => all_links(gpu.nvlink.replay_errors.get()),
        NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL => all_links(gpu.nvlink.recovery_errors.get()),
        NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY => of_links(gpu.nvlink.replay_errors.get()),
        NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY => of_links(gpu.nvlink.recovery_errors.get()),
        NVML_FI_DEV_NVLINK_ERROR_DL_CRC => of_links(gpu.nvlink.crc_errors.get()),
        // In KiB.
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX => of_links(gpu.nvlink.tx_total.get().map(|bytes: u64| bytes >> 10)),
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => of_links(gpu.nvlink.rx_total.get().map(|bytes: u64| bytes >> 10)),
        NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES => of_links(gpu.nvlink.tx_total.get()),
        NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES => of_links(gpu.nvlink.rx_total.get()),
        NVML_FI_DEV_NVLINK_LINK_COUNT => links(),
        NVML_FI_DEV_NVLINK_GET_STATE => nvlink(gpu, scope)?.get::<bool>().map(u64::from),
        // In nanoseconds.
        NVML_FI_DEV_PERF_POLICY_POWER => clock_event(ClockEvent::SwPowerCap),
        NVML_FI_DEV_PERF_POLICY_THERMAL => clock_event(ClockEvent::SwThermalSlowdown),
        NVML_FI_DEV_PERF_POLICY_SYNC_BOOST => clock_event(ClockEvent::SyncBoost),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN => clock_event(ClockEvent::SwThermalSlowdown),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN => clock_event(ClockEvent::HwThermalSlowdown),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN => clock_event(ClockEvent::HwPowerBrakeSlowdown),
        NVML_FI_DEV_MEMORY_TEMP => wide(gpu.memory_temperature.get()),
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION | NVML_FI_DEV_ENERGY => device.energy(),
        NVML_FI_DEV_PCIE_REPLAY_COUNTER => wide(gpu.pcie.replays.get()),
        NVML_FI_DEV_PCIE_COUNT_TX_BYTES => gpu.pcie.tx_total.get(),
        NVML_FI_DEV_PCIE_COUNT_RX_BYTES => gpu.pcie.rx_total.get(),
        NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT => wide(gpu.power.get()),
        NVML_FI_DEV_POWER_MIN_LIMIT => wide(gpu.power_limits.min.get()),
        NVML_FI_DEV_POWER_MAX_LIMIT => wide(gpu.power_limits.max.get()),
        NVML_FI_DEV_POWER_DEFAULT_LIMIT => wide(gpu.power_limits.default.get()),
        NVML_FI_DEV_POWER_CURRENT_LIMIT => wide(gpu.power_limits.enforced.get()),
        NVML_FI_DEV_POWER_REQUESTED_LIMIT => wide(gpu.power_limits.requested.get()),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => wide(gpu.recovery_action.get()),
        _ => Err(Error::NOT_SUPPORTED),
    }
}

/// Drivers since 580.82 number some fields otherwise: 251 to 255 became 269 to 273, 256 to 273 became 251 to 268.
fn canonical(id: u32, driver: &str) -> u32 {
    let mut parts = driver.split('.').map_while(|part| part.parse::<u32>().ok());
    let renumbered = (parts.next(), parts.next()) >= (Some(580), Some(82));
    match id {
        269..=273 if renumbered => id - 18,
        251..=268 if renumbered => id + 5,
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_renumbered_from_driver_580_82_on() {
        for (driver, id, meant) in
            [("580.65.06", 251, 251), ("580.82.07", 269, 251), ("581.0", 251, 256), ("garbage", 269, 269)]
        {
            assert_eq!(canonical(id, driver), meant, "{id} of {driver}");
        }
    }
}
