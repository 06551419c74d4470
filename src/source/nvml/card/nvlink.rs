//! The NVLinks of a card, and the fabric that they make.

use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, NVML_FI_DEV_NVLINK_GET_STATE,
    NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
};

use super::fields::Numbers;
use super::raw::fields::Field;
use super::raw::values;
use super::{Asked, Card, Trouble, ask, once};
use crate::snapshot::readings::NvLink;
use crate::units::Bytes;

const LINKS: Field = Field::of_card(NVML_FI_DEV_NVLINK_LINK_COUNT);
/// More than any card has (18): a number beyond is nonsense.
const MOST_LINKS: u32 = 64;

/// A number of all links together: told as a whole, or where the card refuses that, of each link.
struct Count {
    label: &'static str,
    whole: Field,
    each: u32,
}

/// `nvmlNvLinkErrorCounter_t`
const ERRORS: [Count; 3] = [
    Count {
        label: "replay",
        whole: Field::of_card(NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
        each: NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    },
    Count {
        label: "recovery",
        whole: Field::of_card(NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
        each: NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    },
    Count {
        label: "crc",
        whole: Field::of_card(NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
        each: NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    },
];

/// As a whole in KiB, of each link (NVLink 5) in bytes.
const TRAFFIC: [Count; 2] = [
    Count {
        label: "rx",
        whole: Field::of_all_links(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
        each: NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
    },
    Count {
        label: "tx",
        whole: Field::of_all_links(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        each: NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
    },
];

impl Card {
    /// How many it has, whether they are up or not.
    pub fn links(&mut self, asked: &mut Asked) -> Result<u32, Trouble> {
        let links = once!(self.constants.nvlinks, self.number(asked, LINKS)?);
        Ok(links.filter(|links| *links <= MOST_LINKS).unwrap_or_default())
    }

    /// What is asked about so many links.
    pub fn nvlink_fields(&self, links: u32) -> Vec<Field> {
        if links == 0 {
            return Vec::new();
        }
        let mut fields: Vec<Field> = (0..links).map(state).collect();
        for count in ERRORS.iter().chain(&TRAFFIC) {
            if self.refuses(count.whole) {
                fields.extend((0..links).map(|link| Field::of_link(count.each, link)));
            } else {
                fields.push(count.whole);
            }
        }
        fields
    }

    pub fn nvlink(&mut self, asked: &mut Asked, numbers: &Numbers, links: u32) -> Result<NvLink, Trouble> {
        let mut up = Vec::new();
        for link in 0..links {
            let known = if self.refuses(state(link)) {
                ask!(self, asked, "nvmlDeviceGetNvLinkState", link, |d| d.link_wrapper_for(link).is_active())
            } else {
                numbers.of(state(link)).and_then(is_up)
            };
            up.extend(known.map(|up| (link, up)));
        }
        let errors = ERRORS.iter().filter_map(|count| {
            let (number, _) = self.total(count, links, numbers)?;
            Some((count.label, number))
        });
        let bytes = TRAFFIC.iter().filter_map(|count| {
            let (number, whole) = self.total(count, links, numbers)?;
            Some((count.label, Bytes(if whole { number.checked_mul(1024)? } else { number })))
        });
        let (errors, bytes) = (errors.collect(), bytes.collect());
        let nvml = asked.nvml;
        let fabric_state = ask!(self, asked, "nvmlDeviceGetGpuFabricInfoV", |d| values::fabric_state(nvml, d));
        Ok(NvLink { up, errors, bytes, fabric_state })
    }

    /// A number of all links, and whether it was told as a whole. A link that has no such number adds nothing; where none
    /// has, or one could not tell, it is not known.
    fn total(&self, count: &Count, links: u32, numbers: &Numbers) -> Option<(u64, bool)> {
        if !self.refuses(count.whole) {
            return Some((numbers.of(count.whole)?, true));
        }
        let fields = (0..links).map(|link| Field::of_link(count.each, link)).filter(|field| !self.refuses(*field));
        let each: Vec<u64> = fields.map(|field| numbers.of(field)).collect::<Option<_>>()?;
        if each.is_empty() {
            return None;
        }
        let sum = each.into_iter().try_fold(0_u64, u64::checked_add)?;
        Some((sum, false))
    }
}

fn state(link: u32) -> Field {
    Field::of_link(NVML_FI_DEV_NVLINK_GET_STATE, link)
}

/// `NVML_NVLINK_STATE_…`: inactive, active, or asleep to save power, from which it wakes by itself.
fn is_up(state: u32) -> Option<bool> {
    match state {
        0 => Some(false),
        1 | 2 => Some(true),
        _ => None,
    }
}
