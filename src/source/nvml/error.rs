//! What an NVML call can answer besides a value, by the names of `nvml.h`.

use nvml_wrapper::error::NvmlError;

use crate::snapshot::GpuFault;

/// A call that failed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {error}{}", advice(error))]
pub struct Failure {
    pub call: &'static str,
    pub error: &'static str,
}

/// `nvmlReturn_t` by number: the name without `NVML_ERROR_`, and as the label `reason` of a card.
const NAMES: [(u32, &str, &str); 31] = [
    (1, "UNINITIALIZED", "uninitialized"),
    (2, "INVALID_ARGUMENT", "invalid_argument"),
    (3, "NOT_SUPPORTED", "not_supported"),
    (4, "NO_PERMISSION", "no_permission"),
    (5, "ALREADY_INITIALIZED", "already_initialized"),
    (6, "NOT_FOUND", "not_found"),
    (7, "INSUFFICIENT_SIZE", "insufficient_size"),
    (8, "INSUFFICIENT_POWER", "insufficient_power"),
    (9, "DRIVER_NOT_LOADED", "driver_not_loaded"),
    (10, "TIMEOUT", "timeout"),
    (11, "IRQ_ISSUE", "irq_issue"),
    (12, "LIBRARY_NOT_FOUND", "library_not_found"),
    (13, "FUNCTION_NOT_FOUND", "function_not_found"),
    (14, "CORRUPTED_INFOROM", "corrupted_inforom"),
    (15, "GPU_IS_LOST", "lost"),
    (16, "RESET_REQUIRED", "reset_required"),
    (17, "OPERATING_SYSTEM", "operating_system"),
    (18, "LIB_RM_VERSION_MISMATCH", "lib_rm_version_mismatch"),
    (19, "IN_USE", "in_use"),
    (20, "MEMORY", "memory"),
    (21, "NO_DATA", "no_data"),
    (22, "VGPU_ECC_NOT_SUPPORTED", "vgpu_ecc_not_supported"),
    (23, "INSUFFICIENT_RESOURCES", "insufficient_resources"),
    (24, "FREQ_NOT_SUPPORTED", "freq_not_supported"),
    (25, "ARGUMENT_VERSION_MISMATCH", "argument_version_mismatch"),
    (26, "DEPRECATED", "deprecated"),
    (27, "NOT_READY", "not_ready"),
    (28, "GPU_NOT_FOUND", "gpu_not_found"),
    (29, "INVALID_STATE", "invalid_state"),
    (30, "RESET_TYPE_NOT_SUPPORTED", "reset_type_not_supported"),
    (999, "UNKNOWN", "unknown"),
];

/// What the admin can do where the driver as a whole does not work.
fn advice(error: &str) -> &'static str {
    match error {
        "DRIVER_NOT_LOADED" => {
            ": the kernel module of the driver is not loaded: `modprobe nvidia`, or see what nvidia-smi says"
        }
        "LIB_RM_VERSION_MISMATCH" => {
            ": library and kernel module are of different versions, as after an upgrade of the driver: \
             load the module anew, or reboot"
        }
        _ => "",
    }
}

/// Younger than the wrapper.
const ARGUMENT_VERSION_MISMATCH: u32 = 25;
const DEPRECATED: u32 = 26;

/// The driver numbers its cards, and this one it no longer names.
pub const MISSING: GpuFault = GpuFault("missing");

/// The name of an error as `nvml.h` has it, without `NVML_ERROR_`.
pub fn name(error: &NvmlError) -> &'static str {
    match error {
        NvmlError::LibloadingError(_) => "LIBRARY_NOT_FOUND",
        NvmlError::FailedToLoadSymbol(_) => "FUNCTION_NOT_FOUND",
        other => row(other).map_or("UNKNOWN", |(_, name, _)| name),
    }
}

/// Why a card does not answer.
pub fn fault(error: &NvmlError) -> GpuFault {
    GpuFault(row(error).map_or("unknown", |(_, _, reason)| reason))
}

fn row(error: &NvmlError) -> Option<&'static (u32, &'static str, &'static str)> {
    let code = code(error)?;
    NAMES.iter().find(|(number, ..)| *number == code)
}

/// The number behind an error; the wrapper turns one into the other by value only, and its errors cannot be cloned.
#[allow(deprecated)]
fn code(error: &NvmlError) -> Option<u32> {
    Some(match error {
        NvmlError::Uninitialized => 1,
        NvmlError::InvalidArg => 2,
        NvmlError::NotSupported => 3,
        NvmlError::NoPermission => 4,
        NvmlError::AlreadyInitialized => 5,
        NvmlError::NotFound => 6,
        NvmlError::InsufficientSize(_) => 7,
        NvmlError::InsufficientPower => 8,
        NvmlError::DriverNotLoaded => 9,
        NvmlError::Timeout => 10,
        NvmlError::IrqIssue => 11,
        NvmlError::LibraryNotFound => 12,
        NvmlError::FunctionNotFound => 13,
        NvmlError::CorruptedInfoROM => 14,
        NvmlError::GpuLost => 15,
        NvmlError::ResetRequired => 16,
        NvmlError::OperatingSystem => 17,
        NvmlError::LibRmVersionMismatch => 18,
        NvmlError::InUse => 19,
        NvmlError::InsufficientMemory => 20,
        NvmlError::NoData => 21,
        NvmlError::VgpuEccNotSupported => 22,
        NvmlError::UnexpectedVariant(code) => *code,
        NvmlError::Unknown => 999,
        _ => return None,
    })
}

/// NOT_SUPPORTED, and a function that this driver does not have: an answer that stays.
pub fn is_refusal(error: &NvmlError) -> bool {
    matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound)
}

/// The driver does not know this version of the call's struct, or no longer answers the call: it will say so each time.
pub fn is_of_another_version(error: &NvmlError) -> bool {
    matches!(code(error), Some(ARGUMENT_VERSION_MISMATCH | DEPRECATED))
}

/// The library and the driver no longer belong together, or the one was closed: every further call would fail.
pub fn ends_the_session(error: &NvmlError) -> bool {
    matches!(error, NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_bears_the_name_that_nvml_gives_it() {
        for (error, expected) in [
            (NvmlError::from(9), "DRIVER_NOT_LOADED"),
            (NvmlError::from(15), "GPU_IS_LOST"),
            (NvmlError::from(18), "LIB_RM_VERSION_MISMATCH"),
            (NvmlError::from(27), "NOT_READY"),
            (NvmlError::from(4711), "UNKNOWN"),
            (NvmlError::FailedToLoadSymbol(String::new()), "FUNCTION_NOT_FOUND"),
        ] {
            assert_eq!(name(&error), expected);
        }
        assert_eq!(fault(&NvmlError::GpuLost), GpuFault("lost"));
    }

    #[test]
    fn a_driver_that_cannot_work_is_told_with_what_can_be_done() {
        let told = |error| Failure { call: "nvmlInit_v2", error }.to_string();
        assert!(told("DRIVER_NOT_LOADED").starts_with("nvmlInit_v2: DRIVER_NOT_LOADED: the kernel module"));
        assert!(told("LIB_RM_VERSION_MISMATCH").contains("reboot"));
        assert_eq!(told("UNKNOWN"), "nvmlInit_v2: UNKNOWN");
    }

    #[test]
    fn every_number_of_the_table_leads_back_to_its_row() {
        for (number, expected, _) in NAMES {
            assert_eq!(name(&NvmlError::from(number)), expected);
        }
    }
}
