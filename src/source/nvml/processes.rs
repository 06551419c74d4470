//! The driver's lists of processes, made one: each pid once a card. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::raw::{List, Record, Records};
use crate::snapshot::Kind;
use crate::snapshot::hold::Place;
use crate::units::{Bytes, Percent};

/// What the driver listed for a card, before anybody looked whether it can be true.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lists {
    pub compute: Vec<Record>,
    pub graphics: Vec<Record>,
    pub mps: Vec<Record>,
    /// The driver wrote records of another size than the ones it was asked for.
    pub overrun: bool,
}

impl Lists {
    pub fn add(&mut self, list: List, records: Records) {
        self.overrun |= records.overrun;
        let place = match list {
            List::Compute => &mut self.compute,
            List::Graphics => &mut self.graphics,
            List::Mps => &mut self.mps,
        };
        *place = records.records;
    }
}

/// The number of no instance, and of one that whoever asks may not know (`nvmlProcessInfo_t`).
pub const NO_INSTANCE: u32 = u32::MAX;

/// A process on a card: the records of its pid, made one.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub kind: Kind,
    pub memory: Option<Bytes>,
    /// Its memory on each MIG instance that the driver names.
    pub instances: BTreeMap<Place, Option<Bytes>>,
    pub mps: bool,
}

/// A list that cannot be true, and so none of it is believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Suspect {
    #[error("the driver lists the impossible pid {0}: its records are of another size, update the driver")]
    Pid(u32),
    #[error("the driver writes process records of another size than this library's, update the driver")]
    Size,
}

/// Each pid once. One that stands in several lists holds its memory once, so the largest amount counts, not the sum;
/// over the instances of a MIG card it is the sum.
pub fn merge(lists: &Lists, pid_max: u32) -> Result<BTreeMap<i32, Listed>, Suspect> {
    if lists.overrun {
        return Err(Suspect::Size);
    }
    let all = || lists.compute.iter().chain(&lists.graphics).chain(&lists.mps);
    if let Some(record) = all().find(|record| record.pid == 0 || record.pid > pid_max) {
        return Err(Suspect::Pid(record.pid));
    }

    let mut held: BTreeMap<u32, BTreeMap<(u32, u32), Option<u64>>> = BTreeMap::new();
    for record in all() {
        let memory = held.entry(record.pid).or_default().entry(record.instance).or_insert(record.memory);
        // What one list does not tell the other may.
        *memory = (*memory).max(record.memory);
    }

    let pids = |list: &[Record]| list.iter().map(|record| record.pid).collect::<BTreeSet<u32>>();
    let (compute, graphics, mps) = (pids(&lists.compute), pids(&lists.graphics), pids(&lists.mps));
    Ok(held
        .into_iter()
        .map(|(pid, parts)| {
            let computes = compute.contains(&pid) || mps.contains(&pid);
            let kind = match (computes, graphics.contains(&pid)) {
                (true, true) => Kind::Both,
                (false, true) => Kind::Graphics,
                (_, false) => Kind::Compute,
            };
            let (memory, instances) = spread(parts);
            (pid as i32, Listed { kind, memory, instances, mps: mps.contains(&pid) })
        })
        .collect())
}

/// The memory of a process on the whole card, and on each instance that has a number. The card itself may tell of a
/// process without its instances, and the instances tell of it as well: that is the same memory, and the larger amount
/// counts. So with a GPU instance that is told of beside its compute instances.
fn spread(mut parts: BTreeMap<(u32, u32), Option<u64>>) -> (Option<Bytes>, BTreeMap<Place, Option<Bytes>>) {
    let elsewhere: Vec<_> = parts.extract_if(.., |(gpu_instance, _), _| *gpu_instance == NO_INSTANCE).collect();
    let precise: BTreeSet<u32> = parts.keys().filter(|(_, ci)| *ci != NO_INSTANCE).map(|(gi, _)| *gi).collect();
    parts.retain(|(gi, ci), _| *ci != NO_INSTANCE || !precise.contains(gi));
    let sum = parts.values().try_fold(0_u64, |sum, part| Some(sum.saturating_add((*part)?)));
    let on_card = elsewhere.into_iter().filter_map(|(_, memory)| memory).max();
    let memory = if parts.is_empty() { on_card } else { sum.max(on_card) };
    let place = |(gpu_instance, ci): (u32, u32)| Place {
        gpu_instance,
        compute_instance: Some(ci).filter(|ci| *ci != NO_INSTANCE),
    };
    (memory.map(Bytes), parts.into_iter().map(|(instance, memory)| (place(instance), memory.map(Bytes))).collect())
}

/// What a process did since the last cycle, as the driver sampled it: shares of time, each `None` where the driver told
/// nonsense.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub pid: u32,
    pub gpu: Option<Percent>,
    pub memory_controller: Option<Percent>,
    pub encoder: Option<Percent>,
    pub decoder: Option<Percent>,
}

/// The share of time in which a process kept an engine of the card busy. The driver samples only processes that did
/// something: one without samples did nothing if the engine did nothing, or if others account for what it did; otherwise
/// nobody knows.
pub fn share(
    pid: i32,
    samples: Option<&[Sample]>,
    engine: fn(&Sample) -> Option<Percent>,
    card: Option<Percent>,
) -> Option<Percent> {
    let samples = samples?;
    let own: Vec<&Sample> = samples.iter().filter(|sample| i64::from(sample.pid) == i64::from(pid)).collect();
    if !own.is_empty() {
        let shares: Option<Vec<f64>> = own.iter().map(|sample| engine(sample).map(|share| share.0)).collect();
        let shares = shares?;
        return Some(Percent(shares.iter().sum::<f64>() / shares.len() as f64));
    }
    let others = samples.iter().any(|sample| engine(sample).is_some_and(|share| share.0 > 0.0));
    let idle = card?.0 == 0.0;
    (idle || others).then_some(Percent(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: (u32, u32) = (u32::MAX, u32::MAX);
    const PID_MAX: u32 = 4_194_304;

    fn records(records: &[(u32, Option<u64>)]) -> Vec<Record> {
        records.iter().map(|(pid, memory)| Record { pid: *pid, memory: *memory, instance: WHOLE }).collect()
    }

    fn check(lists: Lists, expected: &[(i32, Kind, Option<u64>)]) {
        let merged = merge(&lists, PID_MAX).unwrap();
        let seen: Vec<_> = merged.iter().map(|(pid, l)| (*pid, l.kind, l.memory.map(|bytes| bytes.0))).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_pid_in_two_lists_is_one_process_with_its_memory_once() {
        let list = records(&[(900, Some(500))]);
        check(Lists { compute: list.clone(), graphics: list, ..Lists::default() }, &[(900, Kind::Both, Some(500))]);
        check(
            Lists {
                compute: records(&[(900, None), (7, None)]),
                graphics: records(&[(900, Some(3)), (8, Some(1))]),
                ..Lists::default()
            },
            &[(7, Kind::Compute, None), (8, Kind::Graphics, Some(1)), (900, Kind::Both, Some(3))],
        );
    }

    #[test]
    fn a_process_holds_the_sum_of_its_instances_each_counted_once() {
        const NOWHERE: (u32, u32) = (NO_INSTANCE, NO_INSTANCE);
        let place = |gpu_instance, compute_instance| Place { gpu_instance, compute_instance };
        for (case, told, sum, instances) in [
            (
                "two GPU instances",
                vec![((1, 0), Some(5)), ((2, 0), Some(6))],
                Some(11),
                vec![(1, Some(0), Some(5)), (2, Some(0), Some(6))],
            ),
            (
                "one unknown",
                vec![((1, 0), Some(5)), ((2, 0), None)],
                None,
                vec![(1, Some(0), Some(5)), (2, Some(0), None)],
            ),
            (
                "two compute instances of one",
                vec![((1, 0), Some(5)), ((1, 1), Some(6))],
                Some(11),
                vec![(1, Some(0), Some(5)), (1, Some(1), Some(6))],
            ),
            (
                "told by the card and by the instance",
                vec![((1, 0), Some(5)), ((1, 0), Some(7))],
                Some(7),
                vec![(1, Some(0), Some(7))],
            ),
            (
                "the card does not tell how much",
                vec![((1, 0), None), ((1, 0), Some(7))],
                Some(7),
                vec![(1, Some(0), Some(7))],
            ),
            (
                "the card does not tell where",
                vec![(NOWHERE, Some(12)), ((1, 0), Some(5)), ((2, 0), Some(6))],
                Some(12),
                vec![(1, Some(0), Some(5)), (2, Some(0), Some(6))],
            ),
            ("the card tells less", vec![(NOWHERE, Some(3)), ((1, 0), Some(5))], Some(5), vec![(1, Some(0), Some(5))]),
            (
                "the card makes up for one unknown",
                vec![(NOWHERE, Some(9)), ((1, 0), None)],
                Some(9),
                vec![(1, Some(0), None)],
            ),
            ("nobody tells where", vec![(NOWHERE, Some(9))], Some(9), vec![]),
            ("the GPU instance only", vec![((1, NO_INSTANCE), Some(5))], Some(5), vec![(1, None, Some(5))]),
            (
                "the GPU instance beside its part",
                vec![((1, NO_INSTANCE), Some(5)), ((1, 0), Some(5))],
                Some(5),
                vec![(1, Some(0), Some(5))],
            ),
        ] {
            let records = told.into_iter().map(|(instance, memory)| Record { pid: 7, memory, instance });
            let merged = merge(&Lists { compute: records.collect(), ..Lists::default() }, PID_MAX).unwrap();
            let expected = instances.into_iter().map(|(gi, ci, memory)| (place(gi, ci), memory.map(Bytes)));
            assert_eq!(merged[&7].memory, sum.map(Bytes), "{case}");
            assert_eq!(merged[&7].instances, expected.collect(), "{case}");
        }
    }

    #[test]
    fn a_client_of_an_mps_server_is_known_as_one() {
        let lists = Lists { compute: records(&[(5, Some(1))]), mps: records(&[(6, Some(2))]), ..Lists::default() };
        let merged = merge(&lists, PID_MAX).unwrap();
        assert_eq!((merged[&5].mps, merged[&6].mps), (false, true));
        assert_eq!(merged[&6].kind, Kind::Compute);
    }

    #[test]
    fn one_impossible_pid_spoils_the_whole_list() {
        for pid in [0, u32::MAX, PID_MAX + 1] {
            let lists = Lists { graphics: records(&[(4242, Some(1)), (pid, Some(10_121))]), ..Lists::default() };
            assert_eq!(merge(&lists, PID_MAX), Err(Suspect::Pid(pid)));
        }
        assert_eq!(merge(&Lists { overrun: true, ..Lists::default() }, PID_MAX), Err(Suspect::Size));
    }

    #[test]
    fn a_process_without_samples_is_idle_only_where_the_card_or_others_say_so() {
        let sample = |pid, busy: Option<f64>| Sample {
            pid,
            gpu: busy.map(Percent),
            memory_controller: None,
            encoder: None,
            decoder: None,
        };
        let share = |samples: Option<&[Sample]>, card: Option<f64>| {
            share(7, samples, |sample| sample.gpu, card.map(Percent)).map(|share| share.0)
        };
        for (case, samples, card, expected) in [
            ("its own samples", Some(vec![sample(7, Some(30.0)), sample(7, Some(50.0))]), Some(90.0), Some(40.0)),
            ("a value over 100 was discarded", Some(vec![sample(7, None), sample(8, Some(9.0))]), Some(9.0), None),
            ("no samples, and the card is idle", Some(vec![]), Some(0.0), Some(0.0)),
            ("no samples, and the card is busy", Some(vec![]), Some(80.0), None),
            ("others account for it", Some(vec![sample(8, Some(80.0))]), Some(80.0), Some(0.0)),
            ("others had nonsense", Some(vec![sample(8, None)]), Some(80.0), None),
            ("the card's own share is unknown", Some(vec![]), None, None),
            ("others busy, the card's own share unknown", Some(vec![sample(8, Some(80.0))]), None, None),
            ("the samples could not be read", None, Some(0.0), None),
        ] {
            assert_eq!(share(samples.as_deref(), card), expected, "{case}");
        }
    }
}
