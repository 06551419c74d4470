//! What a message says: which rule, which card, what was seen, what happens next, what can be done now.

use std::fmt::Write;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Recipient;
use crate::policy::{Action, Card, Deed, Evidence, Next, Person, Target, Verdict};
use crate::snapshot::Truth;
use crate::text::cleaned;
use crate::units::Span;

/// Who speaks, and by which clock.
#[derive(Debug, Clone)]
pub struct Voice {
    pub host: String,
    pub zone: TimeZone,
}

/// A name or a word is cut here, a command line there.
const WORD: usize = 64;
const LINE: usize = 200;
/// More processes than this are only counted.
const LISTED: usize = 16;

/// One message about all that concerns this recipient in this round.
pub fn compose(voice: &Voice, to: &Recipient, about: &[&Verdict]) -> String {
    let mut text = format!("gpuwarden on {}, to {}:\n", clean(&voice.host, WORD), name(to));
    for verdict in about {
        text.push('\n');
        section(&mut text, voice, to, verdict);
    }
    if matches!(to, Recipient::Person(_)) {
        let _ = writeln!(text, "\nQuestions: ask the admins (root) of {}.", clean(&voice.host, WORD));
    }
    text
}

/// A sentence about the agent itself.
pub fn notice(voice: &Voice, sentence: &str) -> String {
    format!("gpuwarden on {}, to the admins:\n\n{}\n", clean(&voice.host, WORD), clean(sentence, 4 * LINE))
}

fn name(to: &Recipient) -> String {
    match to {
        Recipient::Person(person) => clean(&person.name, WORD),
        Recipient::Admins => "the admins".into(),
    }
}

fn section(text: &mut String, voice: &Voice, to: &Recipient, verdict: &Verdict) {
    if matches!(verdict.deed(), Deed::AllClear { .. }) {
        let _ = writeln!(text, "All is well again, the warning is lifted: {}", sentence(verdict));
        return;
    }
    let _ = writeln!(text, "{}", headline(to, verdict));
    for target in verdict.targets().iter().take(LISTED) {
        let _ = writeln!(text, "  {}", process(to, target));
    }
    if verdict.targets().len() > LISTED {
        let _ = writeln!(text, "  and {} more", verdict.targets().len() - LISTED);
    }
    if let (true, Some(gpu)) = (verdict.targets().is_empty(), verdict.gpu()) {
        let _ = writeln!(text, "  {}", card(gpu));
    }
    let _ = writeln!(text, "  Seen: {}.", seen(voice, verdict));
    if let Some(next) = verdict.next().and_then(|next| what_follows(verdict, next)) {
        let _ = writeln!(text, "  Next: {next}");
    }
    if let Some(command) = way_out(to, verdict) {
        let _ = writeln!(text, "  Now: you can end this yourself: {command}");
    }
}

/// The rule's sentence, and to whom it is said.
fn headline(to: &Recipient, verdict: &Verdict) -> String {
    let who = verdict.owner().map(|owner| clean(&owner.name, WORD));
    match (verdict.deed(), to) {
        (Deed::Inform { .. }, _) => format!(
            "A GPU that you have a right to is used by {} against a rule: {}",
            who.as_deref().unwrap_or("somebody"),
            sentence(verdict)
        ),
        (_, Recipient::Admins) => {
            format!("{} breaks a rule: {}", who.as_deref().unwrap_or("Somebody"), sentence(verdict))
        }
        _ => sentence(verdict),
    }
}

fn sentence(verdict: &Verdict) -> String {
    format!("{} [rule {}]", clean(verdict.description(), LINE), verdict.key().rule)
}

fn process(to: &Recipient, target: &Target) -> String {
    let cards: Vec<String> = target.cards.iter().map(card).collect();
    let memory = target.memory.map(|memory| format!(", {memory}")).unwrap_or_default();
    let line = target.command_line.as_deref().filter(|_| is_of(target, to));
    let command = clean(line.unwrap_or(&target.command), LINE);
    format!("{}: pid {}{memory}: {command}", cards.join(", "), target.process.pid)
}

fn card(card: &Card) -> String {
    let model = card.model.as_deref().map(|model| format!(" ({})", clean(model, WORD)));
    format!("GPU {}{}", card.index, model.unwrap_or_default())
}

fn is_of(target: &Target, to: &Recipient) -> bool {
    matches!(to, Recipient::Person(Person { uid, .. }) if target.uid == Some(*uid))
}

fn seen(voice: &Voice, verdict: &Verdict) -> String {
    let evidence: Vec<String> = verdict.evidence().iter().filter(|seen| seen.truth == Truth::True).map(fact).collect();
    let since = format!("since {}", moment(voice, verdict.since()));
    evidence.into_iter().chain([since]).collect::<Vec<_>>().join(", ")
}

fn fact(Evidence { fact, value, asked, .. }: &Evidence) -> String {
    match (*fact, value.as_str()) {
        ("assigned", "false") => return "the GPU is not assigned to its user".into(),
        ("assigned_to_other", "true") => return "the GPU is assigned to somebody else".into(),
        _ => {}
    }
    let (fact, value) = (fact.replace('_', " "), clean(value, WORD));
    if **asked == value { format!("{fact}: {value}") } else { format!("{fact} {value} (rule: {})", clean(asked, WORD)) }
}

fn moment(voice: &Voice, at: Timestamp) -> String {
    at.to_zoned_datetime(voice.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// What comes next, unless its mode keeps it from coming.
fn what_follows(verdict: &Verdict, next: &Next) -> Option<String> {
    if !verdict.mode().carries_out(next.action.is_act()) {
        return None;
    }
    let what = match &next.action {
        Action::Warn(_) => "the next warning".to_owned(),
        Action::Alert(_) => "the admins are told".to_owned(),
        Action::Inform(_) => "whoever has a right to the GPU is told".to_owned(),
        Action::Signal(signal) => format!("{} is sent to {}", signal.as_str(), pids(verdict.targets())),
    };
    Some(format!("if this goes on for {}, {what}.", round(next.after)))
}

fn pids(targets: &[Target]) -> String {
    match targets {
        [] => "the processes concerned".into(),
        [only] => format!("pid {}", only.process.pid),
        several => {
            let pids: Vec<String> = several.iter().take(LISTED).map(|target| target.process.pid.to_string()).collect();
            format!("pids {}{}", pids.join(", "), if several.len() > LISTED { " and others" } else { "" })
        }
    }
}

fn round(after: Duration) -> Span {
    Span(Duration::from_secs(after.as_secs()))
}

/// The command by which the owner ends it.
fn way_out(to: &Recipient, verdict: &Verdict) -> Option<String> {
    if !matches!(verdict.deed(), Deed::Warn { .. }) {
        return None;
    }
    let own = verdict.targets().iter().filter(|target| is_of(target, to));
    let pids: Vec<String> = own.take(LISTED).map(|target| target.process.pid.to_string()).collect();
    if pids.is_empty() { None } else { Some(format!("kill {}", pids.join(" "))) }
}

/// Text of unknown origin as it may appear on a terminal: without control characters, in any direction, at most
/// `width` characters long.
pub fn clean(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        Some((end, _)) => cleaned(&text[..end], '?') + "...",
        None => cleaned(text, '?'),
    }
}

#[cfg(test)]
mod tests;
