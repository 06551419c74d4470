//! The numbers that a card tells by their id. All that are wanted go into one call a cycle: each call takes its way into
//! the driver, and often to the card.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
};

use super::raw::fields::{Field, field_values};
use super::{Asked, Card, Trouble, Wanted, ask, clocks, ecc, pcie};

const CALL: &str = "nvmlDeviceGetFieldValues";

/// `nvmlDeviceGpuRecoveryAction_t`
pub const RECOVERY_ACTION: Field = Field::of_card(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
/// In degrees Celsius.
pub const MEMORY_TEMPERATURE: Field = Field::of_card(NVML_FI_DEV_MEMORY_TEMP);
/// In millijoules, since the driver was loaded.
pub const ENERGY: Field = Field::of_card(NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION);

/// What was asked for in a cycle, and what was told of it.
#[derive(Debug, Default)]
pub struct Numbers(BTreeMap<Field, Option<u64>>);

impl Numbers {
    pub fn of<N: TryFrom<u64>>(&self, field: Field) -> Option<N> {
        let told = *self.0.get(&field)?;
        told.and_then(|number| N::try_from(number).ok())
    }

    /// What is 1 or 0; anything else is nonsense.
    pub fn flag(&self, field: Field) -> Option<bool> {
        match self.of(field)? {
            0u64 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Card {
    /// All numbers of a cycle, in one call, those of so many links and of remapped rows among them; after a refusal, in a
    /// second one, what may serve instead.
    pub fn numbers(&mut self, asked: &mut Asked, wanted: Wanted, links: u32, rows: bool) -> Result<Numbers, Trouble> {
        let mut numbers = Numbers::default();
        loop {
            let fields = self.fields(wanted, links, rows).into_iter();
            let fields: Vec<Field> = fields.filter(|field| !numbers.0.contains_key(field)).collect();
            if fields.is_empty() {
                return Ok(numbers);
            }
            self.tell(asked, &fields, &mut numbers)?;
        }
    }

    /// One number by itself.
    pub fn number<N: TryFrom<u64>>(&mut self, asked: &mut Asked, field: Field) -> Result<Option<N>, Trouble> {
        let mut numbers = Numbers::default();
        if !self.refuses(field) {
            self.tell(asked, &[field], &mut numbers)?;
        }
        Ok(numbers.of(field))
    }

    pub fn refuses(&self, field: Field) -> bool {
        self.refused.contains(&(CALL, variant(field))) || self.refused.contains(&WHOLE)
    }

    fn fields(&self, wanted: Wanted, links: u32, rows: bool) -> Vec<Field> {
        let mut fields = vec![RECOVERY_ACTION, MEMORY_TEMPERATURE, ENERGY];
        if wanted.clocks {
            fields.extend(clocks::TIMES.map(|(_, field)| field));
        }
        if wanted.pcie {
            fields.extend(pcie::FIELDS);
        }
        fields.extend(self.nvlink_fields(links));
        if wanted.ecc {
            fields.extend(ecc::FIELDS);
        }
        if rows {
            fields.extend(ecc::ROWS);
        }
        fields.retain(|field| !self.refuses(*field));
        fields
    }

    fn tell(&mut self, asked: &mut Asked, fields: &[Field], numbers: &mut Numbers) -> Result<(), Trouble> {
        let nvml = asked.nvml;
        let answers = asked.value(&mut self.refused, WHOLE, |d| field_values(nvml, d, fields))?;
        let Some(answers) = answers else {
            numbers.0.extend(fields.iter().map(|field| (*field, None)));
            return Ok(());
        };
        for (field, answer) in fields.iter().zip(answers) {
            let number = ask!(self, asked, "nvmlDeviceGetFieldValues", variant(*field), |_| answer);
            numbers.0.insert(*field, number);
        }
        Ok(())
    }
}

/// The call itself, as far as it can be refused. No field has the number 0.
const WHOLE: (&str, u32) = (CALL, 0);

/// Fields have numbers below 1000, and links below 100.
fn variant(field: Field) -> u32 {
    field.scope << 16 | field.id
}
