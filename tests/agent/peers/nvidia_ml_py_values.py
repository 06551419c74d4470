"""Numbers of the first card as nvidia-ml-py is told them, under the names of the agent's page, as JSON."""

import json
import sys

import pynvml as nvml

ALL_LINKS = 0xFFFFFFFF

FIELDS = {
    'recovery_action': nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    'memory_temperature_celsius': nvml.NVML_FI_DEV_MEMORY_TEMP,
    'clock_event_seconds_total{reason="sw_power_cap"}': nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
    'clock_event_seconds_total{reason="sync_boost"}': nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST,
    'clock_event_seconds_total{reason="sw_thermal_slowdown"}': nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    'clock_event_seconds_total{reason="hw_thermal_slowdown"}': nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    'clock_event_seconds_total{reason="hw_power_brake_slowdown"}':
        nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
    'pcie_replays_total': nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    'nvlink_bytes_total{direction="rx"}': (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
    'nvlink_bytes_total{direction="tx"}': (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    'retired_pages_pending': nvml.NVML_FI_DEV_RETIRED_PENDING,
}


def fields(card):
    values = nvml.nvmlDeviceGetFieldValues(card, list(FIELDS.values()))
    told = {}
    for name, value in zip(FIELDS, values):
        assert value.nvmlReturn == nvml.NVML_SUCCESS, name
        assert value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, name
        unit = 1e-9 if "seconds" in name else 1024 if "nvlink" in name else 1
        told[name] = value.value.ullVal * unit
    return told


def clock_events(card):
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(card)
    names = {
        "gpu_idle": nvml.nvmlClocksEventReasonGpuIdle,
        "applications_clocks_setting": nvml.nvmlClocksEventReasonApplicationsClocksSetting,
        "sw_power_cap": nvml.nvmlClocksEventReasonSwPowerCap,
        "hw_slowdown": nvml.nvmlClocksThrottleReasonHwSlowdown,
        "sync_boost": nvml.nvmlClocksEventReasonSyncBoost,
        "sw_thermal_slowdown": nvml.nvmlClocksEventReasonSwThermalSlowdown,
        "hw_thermal_slowdown": nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "hw_power_brake_slowdown": nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        "display_clock_setting": nvml.nvmlClocksEventReasonDisplayClockSetting,
    }
    return {f'clock_event_active{{reason="{name}"}}': int(reasons & bit != 0) for name, bit in names.items()}


def nvlink(card):
    links = range(nvml.nvmlDeviceGetFieldValues(card, [nvml.NVML_FI_DEV_NVLINK_LINK_COUNT])[0].value.ullVal)
    counters = {
        "replay": nvml.NVML_NVLINK_ERROR_DL_REPLAY,
        "recovery": nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        "crc": nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    }
    told = {f'nvlink_up{{link="{link}"}}': nvml.nvmlDeviceGetNvLinkState(card, link) for link in links}
    for name, counter in counters.items():
        errors = sum(nvml.nvmlDeviceGetNvLinkErrorCounter(card, link, counter) for link in links)
        told[f'nvlink_errors_total{{type="{name}"}}'] = errors
    return told


def memory_errors(card):
    told = {"ecc_mode": nvml.nvmlDeviceGetEccMode(card)[0]}
    for family, counter in (("ecc_errors", nvml.NVML_VOLATILE_ECC), ("ecc_lifetime_errors", nvml.NVML_AGGREGATE_ECC)):
        for kind, error in (("corrected", 0), ("uncorrected", 1)):
            for place, location in (
                ("dram", nvml.NVML_MEMORY_LOCATION_DRAM),
                ("sram", nvml.NVML_MEMORY_LOCATION_SRAM),
            ):
                count = nvml.nvmlDeviceGetMemoryErrorCounter(card, error, counter, location)
                told[f'{family}_total{{type="{kind}",location="{place}"}}'] = count
    for kind, cause in (
        ("corrected", nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS),
        ("uncorrected", nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
    ):
        told[f'retired_pages{{cause="{kind}"}}'] = len(nvml.nvmlDeviceGetRetiredPages(card, cause))
    corrected, uncorrected, pending, failure = nvml.nvmlDeviceGetRemappedRows(card)
    told |= {'remapped_rows{cause="corrected"}': corrected, 'remapped_rows{cause="uncorrected"}': uncorrected}
    told |= {"row_remap_pending": pending, "row_remap_failure": failure}
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(card)
    for availability in ("max", "high", "partial", "low", "none"):
        told[f'row_remap_banks{{availability="{availability}"}}'] = getattr(banks, availability)
    sram = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(card, nvml.byref(sram))
    told["ecc_sram_threshold_exceeded"] = sram.bThresholdExceeded
    return told


def others(card):
    fabric = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(card, nvml.byref(fabric))
    return {
        "temperature_margin_celsius": nvml.nvmlDeviceGetMarginTemperature(card),
        "energy_joules_total": nvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000,
        "fabric_state": fabric.state,
    }


nvml.nvmlInit()
first = nvml.nvmlDeviceGetHandleByIndex(0)
told = fields(first) | clock_events(first) | nvlink(first) | memory_errors(first) | others(first)
json.dump(told, sys.stdout)
nvml.nvmlShutdown()
