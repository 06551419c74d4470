//! The errors of a card's memory, and how much of the memory they have cost.

use nvml_wrapper::enum_wrappers::device::{EccCounter, GpuVirtualizationMode, MemoryError, MemoryLocation};
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_ECC_CURRENT, NVML_FI_DEV_ECC_DBE_AGG_DEV, NVML_FI_DEV_ECC_DBE_VOL_DEV, NVML_FI_DEV_ECC_SBE_AGG_DEV,
    NVML_FI_DEV_ECC_SBE_VOL_DEV, NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
    NVML_FI_DEV_REMAPPED_UNC, NVML_FI_DEV_RETIRED_DBE, NVML_FI_DEV_RETIRED_PENDING, NVML_FI_DEV_RETIRED_SBE,
};

use super::fields::Numbers;
use super::raw::fields::Field;
use super::raw::values;
use super::{Asked, Card, Trouble, ask, once};
use crate::snapshot::readings::Ecc;

const MODE: Field = Field::of_card(NVML_FI_DEV_ECC_CURRENT);
const RETIRED_CORRECTED: Field = Field::of_card(NVML_FI_DEV_RETIRED_SBE);
const RETIRED_UNCORRECTED: Field = Field::of_card(NVML_FI_DEV_RETIRED_DBE);
const RETIREMENT_PENDING: Field = Field::of_card(NVML_FI_DEV_RETIRED_PENDING);
const REMAPPED_CORRECTED: Field = Field::of_card(NVML_FI_DEV_REMAPPED_COR);
const REMAPPED_UNCORRECTED: Field = Field::of_card(NVML_FI_DEV_REMAPPED_UNC);
const REMAP_PENDING: Field = Field::of_card(NVML_FI_DEV_REMAPPED_PENDING);
const REMAP_FAILURE: Field = Field::of_card(NVML_FI_DEV_REMAPPED_FAILURE);

/// Errors of the DRAM by kind, since the driver was loaded and in the life of the card. Of the SRAM there are no fields.
const DRAM: [(&str, MemoryError, Field, Field); 2] = [
    (
        "corrected",
        MemoryError::Corrected,
        Field::of_card(NVML_FI_DEV_ECC_SBE_VOL_DEV),
        Field::of_card(NVML_FI_DEV_ECC_SBE_AGG_DEV),
    ),
    (
        "uncorrected",
        MemoryError::Uncorrected,
        Field::of_card(NVML_FI_DEV_ECC_DBE_VOL_DEV),
        Field::of_card(NVML_FI_DEV_ECC_DBE_AGG_DEV),
    ),
];

pub const FIELDS: [Field; 8] =
    [MODE, DRAM[0].2, DRAM[0].3, DRAM[1].2, DRAM[1].3, RETIRED_CORRECTED, RETIRED_UNCORRECTED, RETIREMENT_PENDING];

pub const ROWS: [Field; 4] = [REMAPPED_CORRECTED, REMAPPED_UNCORRECTED, REMAP_PENDING, REMAP_FAILURE];

impl Card {
    /// A vGPU guest may not ask for remapped rows: the driver answers, and each time complains in the kernel's log.
    pub fn may_tell_of_rows(&mut self, asked: &mut Asked) -> Result<bool, Trouble> {
        let vgpu = once!(
            self.constants.vgpu,
            ask!(self, asked, "nvmlDeviceGetVirtualizationMode", |d| d.virtualization_mode())
                .map(|mode| mode == GpuVirtualizationMode::Vgpu)
        );
        // What cannot tell is no vGPU; what could not tell this time may be one.
        Ok(vgpu == Some(false) || self.refused.contains(&("nvmlDeviceGetVirtualizationMode", 0)))
    }

    pub fn ecc(&mut self, asked: &mut Asked, numbers: &Numbers, rows: bool) -> Result<Ecc, Trouble> {
        let mode = if self.refuses(MODE) {
            ask!(self, asked, "nvmlDeviceGetEccMode", |d| d.is_ecc_enabled()).map(|mode| mode.currently_enabled)
        } else {
            numbers.flag(MODE)
        };
        let mut ecc = Ecc { mode, ..Ecc::default() };
        // A memory that is not watched has no errors that anybody knows of.
        if mode == Some(true) {
            self.dram_errors(asked, numbers, &mut ecc)?;
            self.sram_errors(asked, &mut ecc)?;
        }
        ecc.retired_pages = told(numbers, [("corrected", RETIRED_CORRECTED), ("uncorrected", RETIRED_UNCORRECTED)]);
        ecc.retired_pages_pending = numbers.flag(RETIREMENT_PENDING);
        ecc.remapped_rows = told(numbers, [("corrected", REMAPPED_CORRECTED), ("uncorrected", REMAPPED_UNCORRECTED)]);
        ecc.row_remap_pending = numbers.flag(REMAP_PENDING);
        ecc.row_remap_failure = numbers.flag(REMAP_FAILURE);
        if rows {
            ecc.row_remap_banks = self.row_remap_banks(asked)?;
        }
        Ok(ecc)
    }

    fn dram_errors(&mut self, asked: &mut Asked, numbers: &Numbers, ecc: &mut Ecc) -> Result<(), Trouble> {
        for (kind, error, since_load, in_life) in DRAM {
            for (counter, field, counts) in [
                (EccCounter::Volatile, since_load, &mut ecc.errors),
                (EccCounter::Aggregate, in_life, &mut ecc.lifetime_errors),
            ] {
                let count = if self.refuses(field) {
                    self.errors(asked, error, counter, MemoryLocation::Device)?
                } else {
                    numbers.of(field)
                };
                counts.extend(count.map(|count| ((kind, "dram"), count)));
            }
        }
        Ok(())
    }

    /// In one call, which cards before Ampere do not have.
    fn sram_errors(&mut self, asked: &mut Asked, ecc: &mut Ecc) -> Result<(), Trouble> {
        let nvml = asked.nvml;
        let status = ask!(self, asked, "nvmlDeviceGetSramEccErrorStatus", |d| values::sram_errors(nvml, d));
        if let Some(status) = status {
            let since_load = [[status.volatileCor, 0], [status.volatileUncParity, status.volatileUncSecDed]];
            let in_life = [[status.aggregateCor, 0], [status.aggregateUncParity, status.aggregateUncSecDed]];
            for (counts, told) in [(&mut ecc.errors, since_load), (&mut ecc.lifetime_errors, in_life)] {
                let kinds = ["corrected", "uncorrected"].into_iter().zip(told);
                counts.extend(kinds.filter_map(|(kind, parts)| Some(((kind, "sram"), sum(parts)?))));
            }
            ecc.sram_threshold_exceeded = Some(status.bThresholdExceeded != 0);
        } else if self.refused.contains(&("nvmlDeviceGetSramEccErrorStatus", 0)) {
            for (kind, error) in [("corrected", MemoryError::Corrected), ("uncorrected", MemoryError::Uncorrected)] {
                for (counter, counts) in
                    [(EccCounter::Volatile, &mut ecc.errors), (EccCounter::Aggregate, &mut ecc.lifetime_errors)]
                {
                    let count = self.errors(asked, error, counter, MemoryLocation::SRAM)?;
                    counts.extend(count.map(|count| ((kind, "sram"), count)));
                }
            }
        }
        Ok(())
    }

    fn errors(
        &mut self,
        asked: &mut Asked,
        error: MemoryError,
        counter: EccCounter,
        location: MemoryLocation,
    ) -> Result<Option<u64>, Trouble> {
        let variant = error.as_c() << 16 | counter.as_c() << 8 | location.as_c();
        let count = ask!(self, asked, "nvmlDeviceGetMemoryErrorCounter", variant, |d| d
            .memory_error_counter(error, counter, location));
        Ok(count.filter(|count| *count != u64::MAX))
    }

    /// By the label `availability`.
    fn row_remap_banks(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, u64)>, Trouble> {
        let nvml = asked.nvml;
        let banks = ask!(self, asked, "nvmlDeviceGetRowRemapperHistogram", |d| values::row_remap_banks(nvml, d));
        Ok(banks.map_or_else(Vec::new, |banks| {
            [
                ("max", banks.max),
                ("high", banks.high),
                ("partial", banks.partial),
                ("low", banks.low),
                ("none", banks.none),
            ]
            .map(|(availability, count)| (availability, u64::from(count)))
            .into()
        }))
    }
}

/// `None` where a part has all bits set, as NVML says that there is no number, or the sum is none that could be.
fn sum(parts: [u64; 2]) -> Option<u64> {
    parts.into_iter().try_fold(0_u64, |sum, part| sum.checked_add(Some(part).filter(|part| *part != u64::MAX)?))
}

fn told(numbers: &Numbers, table: [(&'static str, Field); 2]) -> Vec<(&'static str, u64)> {
    table.into_iter().filter_map(|(label, field)| Some((label, numbers.of(field)?))).collect()
}
