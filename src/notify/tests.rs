use super::*;
use crate::policy::{Mode, Signal};
use crate::source::procfs::Procfs;
use crate::units::Uid;
use terminal::tests::Desk;

fn person(desk: &Desk) -> Person {
    Person { uid: desk.owner(), name: "bob".into() }
}

fn channels_of(desk: &Desk) -> Channels {
    let voice = Voice { host: "gpu01".into(), zone: jiff::tz::TimeZone::UTC };
    Channels::new(voice, Terminal::new(Procfs::new(desk.proc()), "/dev"))
}

fn names(names: &[&str]) -> Vec<ChannelName> {
    names.iter().map(|name| ChannelName((*name).into())).collect()
}

fn warn(rule: &str, to: &[Person], over: &[&str]) -> Verdict {
    Verdict::forged(rule, to[0].uid, Mode::Warn, Deed::Warn { to: to.to_vec(), channels: names(over) })
}

fn absent() -> Person {
    Person { uid: Uid(77777), name: "absent".into() }
}

fn fates(told: Vec<Told>) -> Vec<Fate> {
    told.into_iter().map(|told| told.fate).collect()
}

#[test]
fn one_person_gets_one_message_a_round() {
    let desk = Desk::new();
    let bob = person(&desk);
    let (one, two) = (warn("one", std::slice::from_ref(&bob), &["terminal"]), warn("two", &[bob], &["terminal"]));
    assert_eq!(fates(channels_of(&desk).tell(&[&one, &two])), [Fate::Done, Fate::Done]);
    let screen = desk.screen();
    assert_eq!(screen.matches("gpuwarden on gpu01").count(), 1);
    assert!(screen.contains("[rule one]") && screen.contains("[rule two]"));
}

#[test]
fn one_channel_that_delivers_is_enough() {
    let desk = Desk::new();
    let mut channels = channels_of(&desk);
    let verdict = warn("idle", &[person(&desk)], &["mail", "terminal"]);
    assert_eq!(fates(channels.tell(&[&verdict])), [Fate::Done]);
    let counted = channels.tally().iter().filter(|(_, count)| **count > 0);
    let tally: Vec<_> = counted.map(|((name, came), count)| (name.0.as_str(), *came, *count)).collect();
    assert_eq!(tally, [("mail", "failed", 1), ("terminal", "delivered", 1)]);
}

#[test]
fn who_is_not_reached_is_unreachable_and_a_broken_channel_has_failed() {
    let desk = Desk::new();
    let mut channels = channels_of(&desk);
    let tell = |channels: &mut Channels, verdict: Verdict| fates(channels.tell(&[&verdict])).remove(0);
    assert_eq!(tell(&mut channels, warn("idle", &[absent()], &["terminal"])), Fate::Refused(Guard::Unreachable));
    let failed = Fate::Failed("there is no channel `mail`; no terminal".into());
    assert_eq!(tell(&mut channels, warn("idle", &[absent()], &["mail", "terminal"])), failed);
    let nobody = Deed::Warn { to: vec![], channels: names(&["terminal"]) };
    let verdict = Verdict::forged("idle", Uid(1), Mode::Warn, nobody);
    assert_eq!(tell(&mut channels, verdict), Fate::Refused(Guard::Unreachable));
    let nobody = Deed::Inform { to: vec![], channels: names(&["terminal"]) };
    assert_eq!(tell(&mut channels, Verdict::forged("idle", Uid(1), Mode::Warn, nobody)), Fate::Done);
}

#[test]
fn admins_who_are_not_reached_are_a_failure() {
    let desk = Desk::new();
    let mut channels = channels_of(&desk);
    let alert = Verdict::forged("idle", Uid(1), Mode::Warn, Deed::Alert { channels: names(&["terminal"]) });
    assert_eq!(fates(channels.tell(&[&alert])), [Fate::Failed("no terminal".into())]);
    assert!(matches!(channels.alert("a fuse has blown"), Delivery::Undeliverable(_)));
}

#[test]
fn who_was_reached_is_not_told_again_while_another_is_sought() {
    let desk = Desk::new();
    let mut channels = channels_of(&desk);
    let verdict = warn("idle", &[person(&desk), absent()], &["terminal"]);
    assert_eq!(fates(channels.tell(&[&verdict])), [Fate::Refused(Guard::Unreachable)]);
    assert!(desk.screen().contains("to bob"));
    assert_eq!(fates(channels.tell(&[&verdict])), [Fate::Refused(Guard::Unreachable)]);
    assert_eq!(desk.screen(), "");
    // A round without it ends it: what comes later is another message.
    channels.tell(&[]);
    channels.tell(&[&verdict]);
    assert!(desk.screen().contains("to bob"));
}

#[test]
fn a_signal_is_no_message() {
    let signal = Verdict::forged("idle", Uid(1), Mode::Warn, Deed::Signal(Signal::Term));
    assert!(letters(&[&signal]).is_empty());
}
