//! How the cards are wired: asked once in a session, and again when a card joins.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_NVLINK_LINK_COUNT;
use nvml_wrapper::{Device, Nvml};

use super::calls::Calls;
use super::raw::nvlink::{Remote, remote};
use super::session::Seen;
use crate::snapshot::GpuUuid;
use crate::snapshot::topology::{Relation, Topology, Wiring};

/// Linux numbers its NUMA nodes below 1024 (`CONFIG_NODES_SHIFT`), a bit for each.
const NUMA_WORDS: usize = 1024 / std::ffi::c_ulong::BITS as usize;

/// `NVML_AFFINITY_SCOPE_NODE`: the nearest node, not all of the socket.
const NEAREST: u32 = 0;

/// A card that answers.
struct Card<'a> {
    uuid: &'a GpuUuid,
    pci_bus_id: Option<&'a str>,
    device: Device<'a>,
}

/// Where the active NVLinks of a card lead.
#[derive(Debug, Default, PartialEq, Eq)]
struct Links {
    to_cards: BTreeMap<GpuUuid, u32>,
    to_switches: u32,
}

/// What was known before, and what cards that have joined add to it. A card that is lost stays where it is.
pub fn survey(before: &Arc<Topology>, nvml: &Nvml, calls: &mut Calls, seen: &[Seen]) -> Arc<Topology> {
    let here = seen.iter().filter(|card| card.readings.is_ok());
    let known = before.cards.len();
    // One that joined while another was lost is a pair with it only once both are here.
    let complete = before.pairs.len() == known * known.saturating_sub(1) / 2 || here.clone().count() < known;
    if complete && here.clone().all(|card| before.cards.contains_key(&card.uuid)) {
        return before.clone();
    }
    let mut cards = Vec::new();
    for Seen { uuid, identity, .. } in here {
        if let Ok(device) = calls.make("nvmlDeviceGetHandleByUUID", || nvml.device_by_uuid(&*uuid.0)) {
            cards.push(Card { uuid, pci_bus_id: identity.pci_bus_id.as_deref(), device });
        }
    }
    let links: Vec<Option<Links>> = cards.iter().map(|card| links(nvml, calls, card, &cards)).collect();
    let mut topology = Topology::clone(before);
    for (place, (card, own)) in cards.iter().zip(&links).enumerate() {
        let switch_links = own.as_ref().map(|links| links.to_switches);
        topology.cards.insert(card.uuid.clone(), Wiring { numa_nodes: numa_nodes(calls, &card.device), switch_links });
        for (other, theirs) in cards.iter().zip(&links).skip(place + 1) {
            let pcie = pcie(nvml, calls, &card.device, other.uuid);
            let (mut one, mut another) = (card.uuid, other.uuid);
            let nvlinks = between((one, own.as_ref()), (another, theirs.as_ref()));
            if one > another {
                (one, another) = (another, one);
            }
            topology.pairs.insert((one.clone(), another.clone()), Relation { pcie, nvlinks });
        }
    }
    Arc::new(topology)
}

/// Both ends of a link tell of it; what the one does not tell the other does.
fn between(one: (&GpuUuid, Option<&Links>), other: (&GpuUuid, Option<&Links>)) -> Option<u32> {
    let told = |links: Option<&Links>, to| links.map(|links| links.to_cards.get(to).copied().into_iter().sum());
    told(one.1, other.0).max(told(other.1, one.0))
}

/// `None` unless all its links and the other ends of those that are active are told.
fn links(nvml: &Nvml, calls: &mut Calls, card: &Card, cards: &[Card]) -> Option<Links> {
    let mut links = Links::default();
    for number in 0..link_count(calls, &card.device)? {
        let link = card.device.link_wrapper_for(number);
        if !calls.make("nvmlDeviceGetNvLinkState", || link.is_active()).ok()? {
            continue;
        }
        // Drivers before R470 do not say what it is, only where.
        let kind =
            calls.make("nvmlDeviceGetNvLinkRemoteDeviceType", || remote(nvml, &card.device, number)).ok().flatten();
        if kind == Some(Remote::Switch) {
            links.to_switches += 1;
            continue;
        }
        let pci = calls.make("nvmlDeviceGetNvLinkRemotePciInfo_v2", || link.remote_pci_info()).ok();
        let is_there = |other: &&Card| {
            let (here, there) = (other.pci_bus_id, pci.as_ref().map(|pci| pci.bus_id.as_str()));
            here.zip(there).is_some_and(|(here, there)| here.eq_ignore_ascii_case(there))
        };
        match cards.iter().find(is_there) {
            Some(other) => *links.to_cards.entry(other.uuid.clone()).or_default() += 1,
            // A card that is not shown to the agent, or no card at all.
            None if kind.is_some() && pci.is_some() => {}
            None => return None,
        }
    }
    Some(links)
}

fn link_count(calls: &mut Calls, device: &Device) -> Option<u32> {
    let fields = [FieldId(NVML_FI_DEV_NVLINK_LINK_COUNT)];
    let told = calls.make("nvmlDeviceGetFieldValues", || device.field_values_for(&fields)).ok()?;
    match told.into_iter().next()?.ok()?.value.ok()? {
        SampleValue::U32(count) => Some(count),
        SampleValue::U64(count) => u32::try_from(count).ok(),
        _ => None,
    }
}

fn numa_nodes(calls: &mut Calls, device: &Device) -> Vec<u32> {
    let near = || device.memory_affinity(NUMA_WORDS, NEAREST);
    let words = calls.make("nvmlDeviceGetMemoryAffinity", near).unwrap_or_default();
    let bits = words.iter().enumerate().flat_map(|(place, word)| {
        let is_set = move |bit: &u32| word >> bit & 1 == 1;
        (0..std::ffi::c_ulong::BITS).filter(is_set).map(move |bit| place as u32 * std::ffi::c_ulong::BITS + bit)
    });
    bits.collect()
}

fn pcie(nvml: &Nvml, calls: &mut Calls, one: &Device, other: &GpuUuid) -> Option<&'static str> {
    // The call takes a handle away, and handles cannot be copied.
    let level = || one.topology_common_ancestor(nvml.device_by_uuid(&*other.0)?);
    Some(match calls.make("nvmlDeviceGetTopologyCommonAncestor", level).ok()? {
        TopologyLevel::Internal => "internal",
        TopologyLevel::Single => "single",
        TopologyLevel::Multiple => "multiple",
        TopologyLevel::HostBridge => "hostbridge",
        TopologyLevel::Node => "node",
        TopologyLevel::System => "system",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_told_of_by_either_end() {
        let uuid = |name: &str| GpuUuid(name.into());
        let (a, b) = (uuid("a"), uuid("b"));
        let to = |other: &GpuUuid, count| Links { to_cards: [(other.clone(), count)].into(), to_switches: 0 };
        let none = Links::default();
        for (from_a, from_b, expected) in [
            (Some(&to(&b, 4)), Some(&to(&a, 4)), Some(4)),
            (Some(&to(&b, 4)), None, Some(4)),
            (None, Some(&to(&a, 4)), Some(4)),
            (Some(&none), Some(&none), Some(0)),
            (None, Some(&none), Some(0)),
            (None, None, None),
        ] {
            assert_eq!(between((&a, from_a), (&b, from_b)), expected);
        }
    }
}
