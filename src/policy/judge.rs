//! Whether a rule is broken, in three values, for each of its subjects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::condition::Condition;
use super::facts::{self, Evidence, Holder, Occupied, Seen, View};
use super::rule::{About, Rule, Rules};
use super::state::State;
use super::{Card, Guard, Person, Subject, Target};
use crate::snapshot::{Confidence, Gpu, GpuUuid, Grantee, ProcessId, Protection, Snapshot, Truth, Unseen};
use crate::units::{Bytes, Uid};

/// A rule's view of one subject.
pub(super) struct Judged {
    pub subject: Subject,
    pub truth: Truth,
    /// Whether the subject is there at all, and not only remembered.
    pub present: bool,
    pub exempt: bool,
    pub owner: Option<Person>,
    pub gpu: Option<Arc<Card>>,
    /// Whether the owner has a right on the card, where that is known and the rule asks.
    pub right: Option<bool>,
    pub evidence: Vec<Evidence>,
    /// The processes that count and offend, and that may be hit where nothing objects; none unless it is true.
    pub targets: Vec<Target>,
    /// Whom the rights on the card name, other than the owner.
    pub entitled: Vec<Person>,
}

/// The cards of a snapshot as people name them.
pub(super) type Cards<'a> = BTreeMap<&'a GpuUuid, Arc<Card>>;

pub(super) fn cards(now: &Snapshot) -> Cards<'_> {
    now.cards().iter().map(|gpu| (&gpu.uuid, Arc::new(card(gpu)))).collect()
}

/// Judges every subject that the rule has now, and every one that is remembered.
pub(super) fn subjects<'a>(
    rule: &'a Rule,
    rules: &'a Rules,
    now: &'a Snapshot,
    seen: &[Seen<'a>],
    cards: &'a Cards<'a>,
    before: &State,
) -> Vec<Judged> {
    let asked = rule.when.iter().flat_map(Condition::leaves).map(|leaf| (leaf, leaf.asked().into())).collect();
    let rights = asked_of_each(&rule.when, true).chain(asked_of_each(&rule.unless, false)).collect();
    let asks_for_rights = rule.asks_for_rights();
    let bench = Bench { rule, rules, now, asked, rights, asks_for_rights, cards };
    let mut judged: Vec<Judged> = match rule.about {
        About::Process => seen.iter().filter_map(|seen| bench.process(seen)).collect(),
        About::User => bench.users(seen),
        About::Gpu => now.cards().iter().map(|gpu| bench.gpu(gpu, seen)).collect(),
    };
    let present: BTreeSet<&Subject> = judged.iter().map(|judged| &judged.subject).collect();
    let remembered = before.episodes.keys().filter(|key| key.rule == rule.name && !present.contains(&key.subject));
    let absent: Vec<Judged> = remembered.map(|key| bench.absent(&key.subject, seen)).collect();
    judged.extend(absent);
    judged
}

/// The processes that no rule judges.
pub(super) fn exempt_processes(rules: &Rules, now: &Snapshot, seen: &[Seen]) -> BTreeSet<ProcessId> {
    let for_all: Vec<_> = rules.exempt.iter().filter(|exemption| exemption.rules.is_empty()).collect();
    seen.iter()
        .filter(|seen| Truth::any(for_all.iter().map(|exemption| exempted_by(exemption, seen, now))).is_true())
        .map(|seen| seen.process.id)
        .collect()
}

fn exempted_by(exemption: &super::rule::Exemption, seen: &Seen, now: &Snapshot) -> Truth {
    let at = now.at.wall;
    let valid = exemption.from.is_none_or(|from| from.0 <= at) && exemption.until.is_none_or(|until| at < until.0);
    let of = exemption.of.iter().map(|condition| facts::truth(condition, &View::Process(seen), now));
    if valid { Truth::all(of) } else { Truth::False }
}

/// A process on a card, and whether an exemption covers it.
type Held<'s, 'a> = (&'s Seen<'a>, Truth);

/// Where one rule is applied to one snapshot.
struct Bench<'a> {
    rule: &'a Rule,
    rules: &'a Rules,
    now: &'a Snapshot,
    /// Each leaf of `when`, and what it asks in words.
    asked: Vec<(&'a Condition, Arc<str>)>,
    /// The questions about a right that every process of a subject must answer for itself, and the answer that is wanted.
    rights: Vec<(&'a Condition, bool)>,
    asks_for_rights: bool,
    cards: &'a Cards<'a>,
}

impl<'a> Bench<'a> {
    /// `None` for a process that an exemption covers: it is not judged.
    fn process(&self, seen: &Seen) -> Option<Judged> {
        let exempt = self.exempt(seen);
        if exempt.is_true() {
            return None;
        }
        let view = View::Process(seen);
        let truth = self.truth(&view);
        Some(Judged {
            subject: Subject::Process { id: seen.process.id, gpu: seen.gpu.uuid.clone() },
            truth,
            present: true,
            exempt: false,
            owner: seen.person(),
            gpu: self.card(seen.gpu),
            right: self.right(seen),
            evidence: self.evidence(&view),
            targets: targets(Some((seen, exempt)).filter(|_| truth.is_true())),
            entitled: self.entitled(&seen.gpu.uuid, seen.process.uid),
        })
    }

    fn users(&self, seen: &[Seen<'a>]) -> Vec<Judged> {
        let mut holders: BTreeMap<(Uid, Option<&GpuUuid>), Vec<Held>> = BTreeMap::new();
        for seen in seen {
            let exempt = self.exempt(seen);
            // Only a certain owner is a subject; whoever is not certain makes the sums of others uncertain.
            let (Some(uid), Confidence::High) = (seen.process.uid, seen.process.confidence) else { continue };
            if !exempt.is_true() {
                let gpu = self.rule.per_gpu.then_some(&seen.gpu.uuid);
                holders.entry((uid, gpu)).or_default().push((seen, exempt));
            }
        }
        holders.into_iter().map(|((uid, gpu), mine)| self.user(uid, gpu, &mine, seen)).collect()
    }

    fn user(&self, uid: Uid, gpu: Option<&GpuUuid>, mine: &[Held<'_, 'a>], all: &[Seen<'a>]) -> Judged {
        let counts: Vec<Truth> = mine.iter().map(|(seen, _)| self.counts(seen)).collect();
        let counted: Vec<Held> =
            mine.iter().zip(&counts).filter(|(_, counts)| counts.is_true()).map(|(mine, _)| *mine).collect();
        let holder = Holder {
            user: mine[0].0.user(),
            gpu: gpu.and_then(|uuid| self.now.gpu(uuid)),
            holds: mine.iter().map(|(seen, _)| *seen).collect(),
            counted: counted.iter().map(|(seen, _)| *seen).collect(),
            open: counts.contains(&Truth::Unknown) || self.may_hold_more(uid, gpu, all),
            footprint: self.rules.footprint,
        };
        let view = View::User(&holder);
        let truth = self.truth(&view);
        Judged {
            subject: Subject::User { uid, gpu: gpu.cloned() },
            truth,
            present: true,
            exempt: false,
            owner: mine[0].0.person(),
            gpu: holder.gpu.and_then(|gpu| self.card(gpu)),
            right: gpu.and_then(|_| self.right(mine[0].0)),
            evidence: self.evidence(&view),
            targets: targets(counted.into_iter().filter(|_| truth.is_true())),
            entitled: gpu.map(|gpu| self.entitled(gpu, Some(uid))).into_iter().flatten().collect(),
        }
    }

    fn gpu(&self, gpu: &Gpu, all: &[Seen]) -> Judged {
        let exempt = all.iter().filter(|seen| seen.gpu.uuid == gpu.uuid && self.exempt(seen).is_true()).count();
        let processes = gpu.holds.as_ref().ok().map(|holds| holds.len().saturating_sub(exempt));
        let occupied = Occupied { gpu, processes };
        let view = View::Gpu(&occupied);
        Judged {
            subject: Subject::Gpu { uuid: gpu.uuid.clone() },
            truth: self.truth(&view),
            present: true,
            exempt: false,
            owner: None,
            gpu: self.card(gpu),
            right: None,
            evidence: self.evidence(&view),
            targets: Vec::new(),
            entitled: self.entitled(&gpu.uuid, None),
        }
    }

    /// A subject that is remembered and not seen: gone if the driver can tell, which counts as false.
    fn absent(&self, subject: &Subject, seen: &[Seen]) -> Judged {
        let gone = self.is_gone(subject);
        Judged {
            subject: subject.clone(),
            truth: if gone { Truth::False } else { Truth::Unknown },
            present: false,
            exempt: seen.iter().any(|seen| belongs(seen, subject) && self.exempt(seen).is_true()),
            owner: None,
            gpu: subject.gpu().and_then(|uuid| self.cards.get(uuid)).cloned(),
            right: None,
            evidence: Vec::new(),
            targets: Vec::new(),
            entitled: Vec::new(),
        }
    }

    fn is_gone(&self, subject: &Subject) -> bool {
        let Ok(gpus) = &self.now.gpus else { return false };
        let mut relevant = gpus.iter().filter(|gpu| subject.gpu().is_none_or(|uuid| gpu.uuid == *uuid)).peekable();
        // A card that is not listed at all may come back with the subject on it.
        relevant.peek().is_some()
            && relevant.all(|gpu| match (subject, &gpu.holds) {
                (Subject::Gpu { .. }, _) | (_, Err(_)) => false,
                (Subject::Process { id, .. }, Ok(holds)) => holds.iter().all(|hold| {
                    hold.pid != id.pid || !matches!(hold.process, Err(Unseen::Hidden)) && hold.process != Ok(*id)
                }),
                (Subject::User { uid, .. }, Ok(holds)) => {
                    holds.iter().all(|hold| self.owner_is_known(hold) && self.owner(hold) != Some(*uid))
                }
            })
    }

    fn owner(&self, hold: &crate::snapshot::Hold) -> Option<Uid> {
        self.now.processes.get(hold.process.as_ref().ok()?)?.uid
    }

    fn owner_is_known(&self, hold: &crate::snapshot::Hold) -> bool {
        match &hold.process {
            Ok(_) => self.owner(hold).is_some(),
            Err(Unseen::Exited) => true,
            Err(Unseen::Hidden) => false,
        }
    }

    /// Whether the user may hold more than was counted: a list that could not be read, a process whose owner is unknown,
    /// or one of his whose owner is not certain.
    fn may_hold_more(&self, uid: Uid, gpu: Option<&GpuUuid>, all: &[Seen]) -> bool {
        let mut relevant = self.now.cards().iter().filter(|card| gpu.is_none_or(|uuid| card.uuid == *uuid));
        let unread = relevant.any(|card| match &card.holds {
            Err(_) => true,
            Ok(holds) => holds.iter().any(|hold| !self.owner_is_known(hold)),
        });
        unread
            || all.iter().any(|seen| {
                gpu.is_none_or(|uuid| seen.gpu.uuid == *uuid)
                    && seen.process.uid == Some(uid)
                    && seen.process.confidence < Confidence::High
            })
    }

    fn truth(&self, view: &View) -> Truth {
        let when = self.rule.when.iter().map(|condition| facts::truth(condition, view, self.now));
        let unless = self.rule.unless.iter().map(|condition| !facts::truth(condition, view, self.now));
        Truth::all(when.chain(unless))
    }

    fn evidence(&self, view: &View) -> Vec<Evidence> {
        // As many as there are, in one piece: there is one of these for every subject of every rule.
        let mut evidence = Vec::with_capacity(self.asked.len());
        evidence.extend(self.asked.iter().map(|(leaf, asked)| facts::look(leaf, asked.clone(), view, self.now)));
        evidence
    }

    fn card(&self, gpu: &Gpu) -> Option<Arc<Card>> {
        self.cards.get(&gpu.uuid).cloned()
    }

    fn exempt(&self, seen: &Seen) -> Truth {
        let concerned = self.rules.exempt.iter().filter(|it| it.rules.is_empty() || it.rules.contains(&self.rule.name));
        Truth::any(concerned.map(|exemption| exempted_by(exemption, seen, self.now)))
    }

    /// Whether a process of the subject counts: `among` says so, and so does the right that the rule asks for.
    fn counts(&self, seen: &Seen) -> Truth {
        let view = View::Process(seen);
        let among = self.rule.among.iter().map(|condition| facts::truth(condition, &view, self.now));
        let rights = self.rights.iter().map(|(condition, wanted)| {
            let truth = facts::truth(condition, &view, self.now);
            if *wanted { truth } else { !truth }
        });
        Truth::all(among.chain(rights))
    }

    fn right(&self, seen: &Seen) -> Option<bool> {
        if !self.asks_for_rights {
            return None;
        }
        self.now.assignments.assigned(seen.asker(None), &seen.gpu.uuid, self.now.at.wall).known()
    }

    /// Whom the rights on the card name, now or as soon as the rule looks ahead.
    fn entitled(&self, gpu: &GpuUuid, owner: Option<Uid>) -> Vec<Person> {
        if !self.rule.informs() {
            return Vec::new();
        }
        let times = facts::times(self.now, self.rule.looks_ahead());
        let rights =
            times.flat_map(|at| self.now.assignments.holding(at)).filter(|(_, right)| right.gpus.known.contains(gpu));
        let people = rights.filter_map(|(_, right)| match &right.to {
            Grantee::User { uid, name } if Some(*uid) != owner => {
                Some(Person { uid: *uid, name: name.as_str().into() })
            }
            _ => None,
        });
        people.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The questions about a right that every process of a subject must answer for itself: those which `conditions` ask
/// without an alternative.
fn asked_of_each(conditions: &[Condition], wanted: bool) -> impl Iterator<Item = (&Condition, bool)> {
    conditions.iter().flat_map(move |condition| asked_by(condition, wanted))
}

fn asked_by(condition: &Condition, wanted: bool) -> Vec<(&Condition, bool)> {
    match condition {
        Condition::Assigned(_) | Condition::AssignedToOther(_) => vec![(condition, wanted)],
        Condition::Not(inner) => asked_by(inner, !wanted),
        // "All" is broken up where it must hold, and so is "any" where it must not.
        Condition::All(parts) if wanted => asked_of_each(parts, wanted).collect(),
        Condition::Any(parts) if !wanted => asked_of_each(parts, wanted).collect(),
        _ => Vec::new(),
    }
}

fn belongs(seen: &Seen, subject: &Subject) -> bool {
    match subject {
        Subject::Process { id, gpu } => seen.process.id == *id && seen.gpu.uuid == *gpu,
        Subject::User { uid, gpu } => {
            seen.process.uid == Some(*uid) && gpu.as_ref().is_none_or(|gpu| seen.gpu.uuid == *gpu)
        }
        Subject::Gpu { .. } => false,
    }
}

fn card(gpu: &Gpu) -> Card {
    Card { uuid: gpu.uuid.clone(), index: gpu.index, model: gpu.identity.model.clone() }
}

/// The processes behind the holds, each once with all its cards.
fn targets<'s, 'a: 's>(holds: impl IntoIterator<Item = Held<'s, 'a>>) -> Vec<Target> {
    let mut targets: BTreeMap<ProcessId, Target> = BTreeMap::new();
    for (seen, exempt) in holds {
        let process = seen.process;
        let target = targets.entry(process.id).or_insert_with(|| Target {
            process: process.id,
            uid: process.uid,
            confidence: process.confidence,
            cards: Vec::new(),
            command: process.command.clone(),
            command_line: process.command_line.clone(),
            memory: Some(Bytes(0)),
            objection: objection(seen, exempt),
            overdue: Duration::ZERO,
        });
        target.cards.push(card(seen.gpu));
        target.memory = target.memory.zip(seen.hold.memory).map(|(sum, more)| Bytes(sum.0.saturating_add(more.0)));
    }
    targets.into_values().collect()
}

/// Why no act may be done to this process. What is not known forbids.
fn objection(seen: &Seen, exempt: Truth) -> Option<Guard> {
    if seen.process.protection != Some(Protection::None) {
        Some(Guard::Protected)
    } else if exempt != Truth::False {
        Some(Guard::Exempt)
    } else if seen.process.confidence < Confidence::High || seen.process.uid.is_none() {
        Some(Guard::Confidence)
    } else {
        None
    }
}
