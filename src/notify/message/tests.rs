use super::*;
use crate::policy::forged::target;
use crate::policy::{ChannelName, Mode, Signal};
use crate::snapshot::GpuUuid;
use crate::units::{Bytes, Uid};
use expect_test::{Expect, expect};

const BOB: Uid = Uid(1001);

fn voice() -> Voice {
    Voice { host: "gpu01".into(), zone: TimeZone::UTC }
}

fn person(name: &str, uid: Uid) -> Person {
    Person { uid, name: name.into() }
}

fn gpu(index: u32) -> Card {
    Card { uuid: GpuUuid(format!("GPU-{index}").into()), index, model: Some("NVIDIA A100-SXM4-80GB".into()) }
}

fn python(pid: i32, on: u32, memory: u64) -> Target {
    Target {
        cards: vec![gpu(on)],
        command_line: Some("python train.py --token=***".into()),
        memory: Some(Bytes(memory << 30)),
        ..target(pid, 1, BOB)
    }
}

fn to(people: &[Person]) -> Deed {
    Deed::Warn { to: people.to_vec(), channels: terminal() }
}

fn terminal() -> Vec<ChannelName> {
    vec![ChannelName("terminal".into())]
}

fn evidence() -> Vec<Evidence> {
    vec![
        Evidence { fact: "assigned", value: "false".into(), asked: "false".into(), truth: Truth::True },
        Evidence { fact: "memory", value: "6GiB".into(), asked: "> 300MiB".into(), truth: Truth::True },
        Evidence { fact: "age", value: "2m".into(), asked: "< 1m".into(), truth: Truth::False },
    ]
}

fn since() -> Timestamp {
    "2026-11-30T09:00:00Z".parse().unwrap()
}

fn verdict(mode: Mode, deed: Deed) -> Verdict {
    Verdict::forged("unassigned-gpu", BOB, mode, deed)
        .at(vec![python(4242, 2, 6)])
        .on(gpu(2))
        .seen(evidence(), since())
        .then(Next { action: Action::Signal(Signal::Term), after: Duration::from_secs(600) })
}

fn check(to: &Recipient, about: &[Verdict], expect: Expect) {
    let about: Vec<&Verdict> = about.iter().collect();
    expect.assert_eq(&compose(&voice(), to, &about));
}

#[test]
fn a_warning_says_what_was_seen_what_follows_and_what_can_be_done() {
    let bob = person("bob", BOB);
    check(
        &Recipient::Person(bob.clone()),
        &[verdict(Mode::Enforce, to(&[bob]))],
        expect![[r#"
            gpuwarden on gpu01, to bob:

            Use only the GPUs that are assigned to you. [rule unassigned-gpu]
              GPU 2 (NVIDIA A100-SXM4-80GB): pid 4242, 6GiB: python train.py --token=***
              Seen: the GPU is not assigned to its user, memory 6GiB (rule: > 300MiB), since 2026-11-30 09:00:00 UTC.
              Next: if this goes on for 10m, TERM is sent to pid 4242.
              Now: you can end this yourself: kill 4242

            Questions: ask the admins (root) of gpu01.
        "#]],
    );
}

#[test]
fn several_cards_are_one_message() {
    let bob = person("bob", BOB);
    let other = verdict(Mode::Enforce, to(std::slice::from_ref(&bob))).at(vec![python(4242, 3, 2), python(4243, 3, 1)]);
    check(
        &Recipient::Person(bob.clone()),
        &[verdict(Mode::Enforce, to(&[bob])), other],
        expect![[r#"
            gpuwarden on gpu01, to bob:

            Use only the GPUs that are assigned to you. [rule unassigned-gpu]
              GPU 2 (NVIDIA A100-SXM4-80GB): pid 4242, 6GiB: python train.py --token=***
              Seen: the GPU is not assigned to its user, memory 6GiB (rule: > 300MiB), since 2026-11-30 09:00:00 UTC.
              Next: if this goes on for 10m, TERM is sent to pid 4242.
              Now: you can end this yourself: kill 4242

            Use only the GPUs that are assigned to you. [rule unassigned-gpu]
              GPU 3 (NVIDIA A100-SXM4-80GB): pid 4242, 2GiB: python train.py --token=***
              GPU 3 (NVIDIA A100-SXM4-80GB): pid 4243, 1GiB: python train.py --token=***
              Seen: the GPU is not assigned to its user, memory 6GiB (rule: > 300MiB), since 2026-11-30 09:00:00 UTC.
              Next: if this goes on for 10m, TERM is sent to pids 4242, 4243.
              Now: you can end this yourself: kill 4242 4243

            Questions: ask the admins (root) of gpu01.
        "#]],
    );
}

#[test]
fn a_rule_that_only_warns_does_not_threaten() {
    let bob = person("bob", BOB);
    check(
        &Recipient::Person(bob.clone()),
        &[verdict(Mode::Warn, to(&[bob]))],
        expect![[r#"
            gpuwarden on gpu01, to bob:

            Use only the GPUs that are assigned to you. [rule unassigned-gpu]
              GPU 2 (NVIDIA A100-SXM4-80GB): pid 4242, 6GiB: python train.py --token=***
              Seen: the GPU is not assigned to its user, memory 6GiB (rule: > 300MiB), since 2026-11-30 09:00:00 UTC.
              Now: you can end this yourself: kill 4242

            Questions: ask the admins (root) of gpu01.
        "#]],
    );
}

#[test]
fn others_see_the_command_and_not_its_line() {
    let alice = person("alice", Uid(1002));
    let inform = Deed::Inform { to: vec![alice.clone()], channels: terminal() };
    check(
        &Recipient::Person(alice),
        &[verdict(Mode::Enforce, inform)],
        expect![[r#"
            gpuwarden on gpu01, to alice:

            A GPU that you have a right to is used by user1001 against a rule: Use only the GPUs that are assigned to you. [rule unassigned-gpu]
              GPU 2 (NVIDIA A100-SXM4-80GB): pid 4242, 6GiB: python
              Seen: the GPU is not assigned to its user, memory 6GiB (rule: > 300MiB), since 2026-11-30 09:00:00 UTC.
              Next: if this goes on for 10m, TERM is sent to pid 4242.

            Questions: ask the admins (root) of gpu01.
        "#]],
    );
    check(
        &Recipient::Admins,
        &[verdict(Mode::Enforce, Deed::Alert { channels: terminal() })],
        expect![[r#"
            gpuwarden on gpu01, to the admins:

            user1001 breaks a rule: Use only the GPUs that are assigned to you. [rule unassigned-gpu]
              GPU 2 (NVIDIA A100-SXM4-80GB): pid 4242, 6GiB: python
              Seen: the GPU is not assigned to its user, memory 6GiB (rule: > 300MiB), since 2026-11-30 09:00:00 UTC.
              Next: if this goes on for 10m, TERM is sent to pid 4242.
        "#]],
    );
}

#[test]
fn all_clear_is_one_line() {
    let bob = person("bob", BOB);
    let clear = Deed::AllClear { to: vec![bob.clone()], channels: terminal() };
    check(
        &Recipient::Person(bob),
        &[verdict(Mode::Warn, clear)],
        expect![[r#"
        gpuwarden on gpu01, to bob:

        All is well again, the warning is lifted: Use only the GPUs that are assigned to you. [rule unassigned-gpu]

        Questions: ask the admins (root) of gpu01.
    "#]],
    );
}

#[test]
fn a_card_without_processes_is_named() {
    let bob = person("bob", BOB);
    check(
        &Recipient::Person(bob.clone()),
        &[verdict(Mode::Warn, to(&[bob])).at(vec![])],
        expect![[r#"
            gpuwarden on gpu01, to bob:

            Use only the GPUs that are assigned to you. [rule unassigned-gpu]
              GPU 2 (NVIDIA A100-SXM4-80GB)
              Seen: the GPU is not assigned to its user, memory 6GiB (rule: > 300MiB), since 2026-11-30 09:00:00 UTC.

            Questions: ask the admins (root) of gpu01.
        "#]],
    );
}

#[test]
fn a_name_commands_no_terminal_and_turns_no_text_around() {
    for (name, cleaned) in [
        ("python", "python"),
        ("训练模型", "训练模型"),
        ("a\u{1b}]0;owned\u{7}b", "a?]0;owned?b"),
        ("a\nkill 1", "a?kill 1"),
        ("\u{9b}31m", "?31m"),
        ("x\u{202e}yz\u{2066}", "x?yz?"),
        ("zero\u{200b}width\u{feff}", "zero?width?"),
        ("\u{7f}\u{0}", "??"),
        ("12345678901234567890", "1234567890123456..."),
    ] {
        assert_eq!(clean(name, 16), cleaned);
    }
}

#[test]
fn what_a_process_calls_itself_reaches_nobody_unclean() {
    let bob = person("\u{1b}[2Jbob", BOB);
    let mut target = python(4242, 2, 6);
    target.command_line = Some("a\u{1b}[31m\r\nb\u{2028}c".into());
    target.cards[0].model = Some("\u{1b}c".into());
    let verdict = verdict(Mode::Enforce, to(std::slice::from_ref(&bob))).at(vec![target]);
    let text = compose(&voice(), &Recipient::Person(bob), &[&verdict]);
    assert!(text.lines().all(|line| !line.chars().any(crate::text::misleads)), "{text:?}");
}
