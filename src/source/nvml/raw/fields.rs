//! Field values: numbers of a card by their id, many in one call. The wrapper's call has no room for a scope, and does not
//! read every type of number.

use std::ffi::c_int;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, FieldIdScheme, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, nvmlReturn_enum_NVML_ERROR_UNKNOWN, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT, nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT,
    nvmlValueType_t,
};

/// The name of one number: an `NVML_FI_…` as drivers before 580.82 number them, and the link that is meant where a number
/// is told of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Field {
    pub id: u32,
    pub scope: u32,
}

impl Field {
    /// The scope of a number that adds up all links ("a link ID of UINT_MAX", `nvml.h`).
    pub const ALL_LINKS: u32 = u32::MAX;

    pub const fn of_card(id: u32) -> Self {
        Self { id, scope: 0 }
    }

    pub const fn of_link(id: u32, link: u32) -> Self {
        Self { id, scope: link }
    }

    pub const fn of_all_links(id: u32) -> Self {
        Self { id, scope: Self::ALL_LINKS }
    }
}

/// Asks for several numbers (`nvmlDeviceGetFieldValues`): each has an error of its own.
pub fn field_values(nvml: &Nvml, device: &Device, fields: &[Field]) -> Result<Vec<Result<u64, NvmlError>>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetFieldValues.as_ref())?;
    let scheme = nvml.field_id_scheme();
    let question = |field: &Field| nvmlFieldValue_t {
        fieldId: driver_id(scheme, field.id),
        scopeId: field.scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
        // What a driver leaves as it is was not answered.
        nvmlReturn: nvmlReturn_enum_NVML_ERROR_UNKNOWN,
        value: nvmlValue_t { ullVal: 0 },
    };
    let mut values: Vec<nvmlFieldValue_t> = fields.iter().map(question).collect();
    // SAFETY: the handle belongs to this library, and the buffer holds as many values as are said.
    nvml_try(unsafe { call(device.handle(), values.len() as c_int, values.as_mut_ptr()) })?;
    Ok(values.iter().map(number).collect())
}

/// Drivers since 580.82 number some fields otherwise (`docs.nvidia.com/deploy/nvml-api/known-issues.html`).
fn driver_id(scheme: FieldIdScheme, id: u32) -> u32 {
    match (scheme, id) {
        (FieldIdScheme::V13Update1, 251..=255) => id + 18,
        (FieldIdScheme::V13Update1, 256..=273) => id - 5,
        (_, id) => id,
    }
}

fn number(value: &nvmlFieldValue_t) -> Result<u64, NvmlError> {
    // That is how a driver answers to a number that it has never heard of, or that a link does not have.
    if value.nvmlReturn == nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT {
        return Err(NvmlError::NotSupported);
    }
    nvml_try(value.nvmlReturn)?;
    count(value.valueType, value.value)
}

/// A number of things; fewer than none is no such number, and all bits set is how NVML says that there is none now.
#[allow(non_upper_case_globals, reason = "NVML's names are kept")]
fn count(kind: nvmlValueType_t, value: nvmlValue_t) -> Result<u64, NvmlError> {
    // SAFETY: each variant is a number of at most eight bytes, all of which were written: here, or by the driver.
    let count = unsafe {
        match kind {
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => {
                Some(value.uiVal).filter(|count| *count != u32::MAX).map(u64::from)
            }
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => {
                Some(value.usVal).filter(|count| *count != u16::MAX).map(u64::from)
            }
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => Some(value.ulVal).filter(|count| *count != u64::MAX),
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
                Some(value.ullVal).filter(|count| *count != u64::MAX)
            }
            nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => u64::try_from(value.siVal).ok(),
            nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => u64::try_from(value.sllVal).ok(),
            _ => return Err(NvmlError::Unknown),
        }
    };
    count.ok_or(NvmlError::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_number_that_the_driver_gives_it() {
        for (id, before, since) in [(74, 74, 74), (251, 251, 269), (253, 253, 271), (256, 256, 251), (273, 273, 268)] {
            assert_eq!(driver_id(FieldIdScheme::V12, id), before);
            assert_eq!(driver_id(FieldIdScheme::V13Update1, id), since);
        }
    }

    #[test]
    fn a_number_is_read_as_its_type_says_and_all_bits_set_is_none() {
        let dirty = 0xffff_ffff_0000_0007;
        for (kind, bits, read) in [
            (nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT, dirty, Some(7)),
            (nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT, u32::MAX.into(), None),
            (nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT, dirty, Some(7)),
            (nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG, 1 << 40, Some(1 << 40)),
            (nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, dirty, Some(dirty)),
            (nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, u64::MAX, None),
            (nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT, 7, Some(7)),
            (nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT, (-3i32) as u32 as u64, None),
            (nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG, (-1i64) as u64, None),
            (0, 0x3ff0_0000_0000_0000, None),
        ] {
            assert_eq!(count(kind, nvmlValue_t { ullVal: bits }).ok(), read, "{kind} {bits:x}");
        }
    }
}
