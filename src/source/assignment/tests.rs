use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::super::directory::{Answer as Told, Question};
use super::*;
use crate::snapshot::gpu::Identity;
use crate::snapshot::{Fault, GpuUuid};
use crate::units::{Gid, Uid};

/// Cards with these UUIDs, numbered in this order.
pub fn gpus(uuids: &str) -> Vec<Gpu> {
    let gpu = |(index, uuid): (usize, &str)| Gpu {
        identity: Arc::new(Identity {
            model: Some("NVIDIA A100-SXM4-80GB".into()),
            pci_bus_id: Some(format!("00000000:{index:02X}:00.0")),
            ..Identity::default()
        }),
        ..Gpu::named(GpuUuid(uuid.into()), index as u32)
    };
    uuids.split_whitespace().enumerate().map(gpu).collect()
}

fn directory() -> Directory {
    Directory::with(|question| {
        Ok(match question {
            Question::UserNamed(name) if name == "alice" => Some(Told::Uid(Uid(1000))),
            Question::GroupNamed(name) if name == "vision" => Some(Told::Gid(Gid(7))),
            _ => None,
        })
    })
    .unwrap()
}

const AT: Moment = Moment { wall: Timestamp::UNIX_EPOCH, boot: Duration::from_secs(60) };

#[test]
fn how_long_an_answer_took_is_of_the_last_one() {
    let state = tempfile::tempdir().unwrap();
    let settings = Settings { fixed: Some(Vec::new()), files: None };
    let mut sources = Sources::new(settings, Pins::load(state.path()));
    let hour = Duration::from_secs(3600);
    sources.fixed.as_mut().unwrap().said().1.took = Some(hour);
    let (_, health) = sources.answer(&Ok(Vec::new()), &mut directory(), AT);
    assert!(health[0].took.is_some_and(|took| took < hour));
}

/// What a list of rights means on these cards once the directory has answered: `grantee: known | unresolved`.
fn check(entries: &str, cards: &Reading<Vec<Gpu>>, expected: &str) {
    let state = tempfile::tempdir().unwrap();
    let entries = files::parse(Path::new("test"), entries).unwrap();
    let settings = Settings { fixed: Some(entries), files: None };
    let mut sources = Sources::new(settings, Pins::load(state.path()));
    let mut directory = directory();
    sources.see(cards, None);
    sources.answer(cards, &mut directory, AT);
    let mut health = Vec::new();
    let mut assignments = Assignments::default();
    // Bounded: the injected directory answers at once.
    for _ in 0..1000 {
        directory.take_answers();
        (assignments, health) = sources.answer(cards, &mut directory, AT);
        if !directory.is_asked() {
            break;
        }
        std::thread::yield_now();
    }
    let answer = assignments.sources[0].answer.as_ref().unwrap();
    assert_eq!((answer.at, health[0].last_success), (AT.boot, Some(AT.wall)));
    let mut seen = String::new();
    for right in &answer.rights {
        let to = match &right.to {
            Grantee::Everyone => "everyone".to_owned(),
            Grantee::User { uid, name } => format!("{name}={uid}"),
            Grantee::Group { gid, name } => format!("{name}={gid}"),
            Grantee::Unresolved(name) => format!("?{name}"),
        };
        let known: Vec<&str> = right.gpus.known.iter().map(|uuid| &*uuid.0).collect();
        seen += &format!("{to}: {} | {}\n", known.join(" "), right.gpus.unresolved.join(" "));
    }
    seen += &format!("unresolved {}", health[0].unresolved.as_ref().unwrap().len());
    assert_eq!(seen, expected);
}

const CARDS: &str = "GPU-aa11 GPU-aa22 GPU-bb33";

#[test]
fn a_card_whose_model_is_not_known_may_be_of_any() {
    let mut cards = gpus(CARDS);
    Arc::make_mut(&mut cards[2].identity).model = None;
    Arc::make_mut(&mut cards[1].identity).pci_bus_id = None;
    let entries = "
- {to: everyone, gpus: [\"model:*A100*\"]}
- {to: everyone, gpus: [\"00:00.0\"]}
- {to: everyone, gpus: [\"01:00.0\"]}
";
    let expected = "everyone: GPU-aa11 GPU-aa22 | model:*A100*
everyone: GPU-aa11 |
everyone:  | 00000000:01:00.0
unresolved 2";
    check(entries, &Ok(cards), &expected.replace("|\n", "| \n"));
}

#[test]
fn names_of_people_and_cards_are_resolved() {
    let entries = "
- {to: {user: alice}, gpus: [0, 1-2]}
- {to: {group: vision}, gpus: [GPU-bb, '00:01:00.0']}
- {to: everyone, gpus: ['model:*A100*']}
";
    check(
        entries,
        &Ok(gpus(CARDS)),
        "alice=1000: GPU-aa11 GPU-aa22 GPU-bb33 | \n\
         vision=7: GPU-aa22 GPU-bb33 | \n\
         everyone: GPU-aa11 GPU-aa22 GPU-bb33 | \n\
         unresolved 0",
    );
}

#[test]
fn a_name_that_nobody_knows_stays_unresolved() {
    let entries = "
- {to: {user: mallory}, gpus: [GPU-aa]}
- {to: {group: nobody-knows}, gpus: [2-3, 'model:*H100*', GPU-cc]}
- {to: {user: mallory}, gpus: [3]}
";
    check(
        entries,
        &Ok(gpus(CARDS)),
        "?user mallory:  | GPU-aa\n\
         ?group nobody-knows: GPU-bb33 | 3 model:*H100* GPU-cc\n\
         ?user mallory:  | 3\n\
         unresolved 6",
    );
}

#[test]
fn while_the_driver_is_silent_no_card_is_known_by_any_name() {
    let silent = Err(Fault::new(Source::Nvml, "nvmlInit_v2: DRIVER_NOT_LOADED"));
    let entries = "- {to: everyone, gpus: [0, 1-2, GPU-aa11, 'model:*']}";
    check(entries, &silent, "everyone:  | 0 1-2 GPU-aa11 model:*\nunresolved 0");
}

#[test]
fn other_rights_hold_from_the_next_answer_on() {
    let state = tempfile::tempdir().unwrap();
    let parse = |text: &str| Some(files::parse(Path::new("test"), text).unwrap());
    let cards = Ok(gpus(CARDS));
    let mut directory = directory();
    let mut sources = Sources::new(Settings { fixed: parse("[]"), files: None }, Pins::load(state.path()));
    sources.see(&cards, None);
    let mut rights = |sources: &mut Sources| {
        let (assignments, _) = sources.answer(&cards, &mut directory, AT);
        assignments.sources.first().map(|source| source.answer.as_ref().unwrap().rights.len())
    };
    assert_eq!(rights(&mut sources), Some(0));
    sources.reconfigure(Settings { fixed: parse("- {to: everyone, gpus: [0]}"), files: None });
    assert_eq!(rights(&mut sources), Some(1));
    sources.reconfigure(Settings::default());
    assert_eq!(rights(&mut sources), None);
}

#[test]
fn a_silent_source_is_known_to_be_silent() {
    let state = tempfile::tempdir().unwrap();
    let settings = Settings { fixed: None, files: Some(vec![state.path().join("*.yaml")]) };
    let mut sources = Sources::new(settings, Pins::load(&state.path().join("state")));
    sources.read();
    let (assignments, health) = sources.answer(&Ok(gpus(CARDS)), &mut directory(), AT);
    assert!(assignments.sources[0].answer.is_err());
    assert!(health[0].fault.as_ref().unwrap().ends_with("no such file"));
    assert_eq!((health[0].errors, health[0].last_success, &health[0].unresolved), (1, None, &None));
}
