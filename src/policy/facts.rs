//! What a condition sees: the facts of a process on a card, of a user, of a card, each known or not.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::Person;
use super::condition::{Compare, Comparison, Condition, MemoryAmount, ToOther, Words};
use crate::snapshot::assignment::Asker;
use crate::snapshot::selector::wildcard;
use crate::snapshot::{Gpu, GpuUuid, Hold, Kind, Lookup, Process, Snapshot, Truth, User};
use crate::units::{Bytes, Percent, Span};

/// What a condition asked, and what it saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    pub fact: &'static str,
    /// The value that was seen, as people write it; `unknown` where there was none.
    pub value: String,
    /// What the rule says about it, such as `> 40GiB`.
    pub asked: Arc<str>,
    pub truth: Truth,
}

/// One process on one card, and whose it is.
pub(super) struct Seen<'a> {
    pub gpu: &'a Gpu,
    pub hold: &'a Hold,
    pub process: &'a Process,
    /// `None` where nobody can be named.
    user: Option<Cow<'a, User>>,
}

impl<'a> Seen<'a> {
    fn new(now: &'a Snapshot, gpu: &'a Gpu, hold: &'a Hold, process: &'a Process) -> Self {
        let unheard = |uid| User { uid, name: Lookup::Pending, groups: Lookup::Pending };
        let user = process.uid.map(|uid| now.users.get(&uid).map_or_else(|| Cow::Owned(unheard(uid)), Cow::Borrowed));
        Self { gpu, hold, process, user }
    }

    pub fn user(&self) -> Option<&User> {
        self.user.as_deref()
    }

    pub fn person(&self) -> Option<Person> {
        self.user().map(|user| Person { uid: user.uid, name: user.label() })
    }

    pub fn asker(&self, came: Option<Duration>) -> Asker<'_> {
        Asker { user: self.user(), came }
    }
}

/// Each identified process on each card.
pub(super) fn seen(now: &Snapshot) -> impl Iterator<Item = Seen<'_>> {
    now.holds().map(|(gpu, hold, process)| Seen::new(now, gpu, hold, process))
}

/// A user with what he holds, on the node or on one card.
pub(super) struct Holder<'a> {
    pub user: Option<&'a User>,
    /// The card, where the rule is about each.
    pub gpu: Option<&'a Gpu>,
    /// All that is certainly his.
    pub holds: Vec<&'a Seen<'a>>,
    /// Those of them that count.
    pub counted: Vec<&'a Seen<'a>>,
    /// There may be more than was counted.
    pub open: bool,
    pub footprint: Bytes,
}

/// The subject of a condition.
pub(super) enum View<'a> {
    Process(&'a Seen<'a>),
    User(&'a Holder<'a>),
    Gpu(&'a Occupied<'a>),
}

/// A card with the number of processes on it that count; `None` where its list could not be read.
pub(super) struct Occupied<'a> {
    pub gpu: &'a Gpu,
    pub processes: Option<usize>,
}

/// A number of which perhaps only a part is known. Absent parts can only add, so it can prove "more", never "less".
#[derive(Debug, Clone, Copy, PartialEq)]
struct Extent {
    at_least: f64,
    exact: bool,
}

impl Extent {
    const UNKNOWN: Self = Self { at_least: 0.0, exact: false };

    fn known(value: Option<f64>) -> Self {
        value.map_or(Self::UNKNOWN, |value| Self { at_least: value, exact: true })
    }

    /// The sum or the greatest of parts, some of which may be unknown, and of others that may not even be listed.
    fn fold(parts: impl Iterator<Item = Option<f64>>, open: bool, fold: fn(f64, f64) -> f64) -> Self {
        parts.fold(Self { at_least: 0.0, exact: !open }, |so_far, part| match part {
            Some(part) => Self { at_least: fold(so_far.at_least, part), ..so_far },
            None => Self { exact: false, ..so_far },
        })
    }

    fn compare(self, how: Comparison, limit: f64) -> Truth {
        let Self { at_least, exact } = self;
        let (proved, refuted) = match how {
            Comparison::Above => (at_least > limit, exact),
            Comparison::AtLeast => (at_least >= limit, exact),
            Comparison::Below => (exact && at_least < limit, at_least >= limit),
            Comparison::AtMost => (exact && at_least <= limit, at_least > limit),
            Comparison::Equal => (exact && at_least == limit, exact || at_least > limit),
        };
        match (proved, refuted) {
            (true, _) => Truth::True,
            (false, true) => Truth::False,
            (false, false) => Truth::Unknown,
        }
    }
}

/// What a condition saw, before it is put into words.
enum Value {
    /// Whether it is so.
    Is(Truth),
    /// A number of such things; `None` where the fact does not apply.
    Number(Option<Extent>, fn(f64) -> String),
    /// `None` where it is not known; none at all where the fact does not apply.
    Words(Option<Vec<Arc<str>>>),
    Kind(Option<Kind>),
    Index(Option<u32>),
    Time(Timestamp),
}

impl Value {
    /// As people write it.
    fn in_words(self) -> String {
        match self {
            Self::Is(truth) => truth.as_str().to_owned(),
            Self::Number(None, _) => "nothing".to_owned(),
            Self::Number(Some(Extent { at_least, exact: true }), quantity) => quantity(at_least),
            Self::Number(Some(Extent { at_least, exact: false }), quantity) if at_least > 0.0 => {
                format!("at least {}", quantity(at_least))
            }
            Self::Words(Some(words)) => words.join(", "),
            Self::Kind(Some(kind)) => kind.as_str().to_owned(),
            Self::Index(Some(index)) => index.to_string(),
            Self::Time(at) => at.to_string(),
            Self::Number(..) | Self::Words(None) | Self::Kind(None) | Self::Index(None) => "unknown".to_owned(),
        }
    }
}

/// What the condition comes to for the subject.
pub(super) fn truth(condition: &Condition, view: &View, now: &Snapshot) -> Truth {
    see(condition, view, now).1
}

/// The same of one condition that asks for a fact, with what it saw in words; `asked` is what it asks, in words.
pub(super) fn look(leaf: &Condition, asked: Arc<str>, view: &View, now: &Snapshot) -> Evidence {
    let (value, truth) = see(leaf, view, now);
    Evidence { fact: leaf.fact(), value: value.in_words(), asked, truth }
}

fn see(condition: &Condition, view: &View, now: &Snapshot) -> (Value, Truth) {
    match condition {
        Condition::Any(parts) => whole(Truth::any(parts.iter().map(|part| truth(part, view, now)))),
        Condition::All(parts) => whole(Truth::all(parts.iter().map(|part| truth(part, view, now)))),
        Condition::Not(part) => whole(!truth(part, view, now)),
        Condition::Assigned(wanted) => right(view.right(*wanted, |seen| assigned(seen, now)), *wanted),
        Condition::AssignedToOther(ToOther::Now(wanted)) => {
            right(view.right(*wanted, |seen| assigned_to_other(seen, now, Duration::ZERO)), *wanted)
        }
        Condition::AssignedToOther(ToOther::Within(span)) => {
            right(view.right(true, |seen| assigned_to_other(seen, now, span.0)), true)
        }
        Condition::Memory(compare) => {
            let limit = match compare.with {
                MemoryAmount::Bytes(bytes) => Some(bytes.0 as f64),
                MemoryAmount::Share(share) => view.memory_total().map(|total| total.0 as f64 * share.ratio()),
            };
            number(Some(view.memory()), compare.how, limit, |bytes| Bytes(bytes as u64).to_string())
        }
        Condition::Utilization(compare) => {
            number(view.utilization(), compare.how, Some(compare.with.0), |percent| Percent(percent).to_string())
        }
        Condition::Gpus(Compare { how, with }) => number(Some(view.gpus()), *how, Some(with.0 as f64), count),
        Condition::Processes(Compare { how, with }) => number(Some(view.processes()), *how, Some(with.0 as f64), count),
        Condition::Age(compare) => {
            let age = Extent::known(view.age(now).map(|age| age.as_secs_f64()));
            let seconds = |seconds| Span(Duration::from_secs(seconds as u64)).to_string();
            number(Some(age), compare.how, Some(compare.with.0.as_secs_f64()), seconds)
        }
        Condition::User(words) => word(view.user_name(), words),
        Condition::Group(words) => word(view.groups(), words),
        Condition::Uid(words) => word(view.user().map(|user| vec![user.uid.to_string().into()]), words),
        Condition::Command(words) => word(view.seen().map(|seen| vec![seen.process.command.clone()]), words),
        Condition::Executable(words) => {
            word(view.seen().and_then(|seen| seen.process.executable.clone()).map(|it| vec![it]), words)
        }
        Condition::GpuName(words) => {
            word(view.card().and_then(|gpu| gpu.identity.model.clone()).map(|it| vec![it]), words)
        }
        Condition::Kind(kinds) => {
            let kind = view.seen().map(|seen| seen.hold.kind);
            let fits =
                |kind| kinds.0.iter().any(|asked| *asked == kind || (kind == Kind::Both && *asked != Kind::Both));
            (Value::Kind(kind), Truth::from(kind.map(fits)))
        }
        Condition::Gpu(selectors) => {
            let fits = |gpu: &Gpu| Truth::any(selectors.0.iter().map(|selector| selector.matches(gpu)));
            (Value::Index(view.card().map(|gpu| gpu.index)), view.card().map_or(Truth::Unknown, fits))
        }
        Condition::Time(windows) => {
            let at = now.at.wall;
            (Value::Time(at), Truth::from(windows.0.iter().any(|window| window.contains(at))))
        }
    }
}

fn whole(truth: Truth) -> (Value, Truth) {
    (Value::Is(truth), truth)
}

/// `truth` is about "is it as wanted?", the value is the fact behind that.
fn right(truth: Truth, wanted: bool) -> (Value, Truth) {
    (Value::Is(if wanted { truth } else { !truth }), truth)
}

/// Without a limit nothing can be said; without a value the fact does not apply, and equals nothing.
fn number(value: Option<Extent>, how: Comparison, limit: Option<f64>, quantity: fn(f64) -> String) -> (Value, Truth) {
    let truth = match (value, limit) {
        (None, _) => Truth::False,
        (Some(_), None) => Truth::Unknown,
        (Some(value), Some(limit)) => value.compare(how, limit),
    };
    (Value::Number(value, quantity), truth)
}

fn count(number: f64) -> String {
    number.to_string()
}

/// Whether one of the values is as one of the words says. No values: the fact does not apply, and equals nothing.
fn word(values: Option<Vec<Arc<str>>>, words: &Words) -> (Value, Truth) {
    let fits = |values: &Vec<Arc<str>>| words.iter().any(|word| values.iter().any(|value| wildcard(word, value)));
    let truth = Truth::from(values.as_ref().map(fits));
    (Value::Words(values), truth)
}

fn assigned(seen: &Seen, now: &Snapshot) -> Truth {
    now.assignments.assigned(seen.asker(Some(seen.hold.since)), &seen.gpu.uuid, now.at.wall)
}

/// Whether somebody else holds a right and the owner does not, at some time from now to `within` later.
fn assigned_to_other(seen: &Seen, now: &Snapshot, within: Duration) -> Truth {
    let asker = seen.asker(Some(seen.hold.since));
    Truth::any(times(now, within).map(|at| now.assignments.assigned_to_other(asker, &seen.gpu.uuid, at)))
}

/// The times from now to `within` later at which a right may begin.
pub(super) fn times(now: &Snapshot, within: Duration) -> impl Iterator<Item = Timestamp> {
    // Windows open on a minute, dated rights on a second of their own.
    let minutes = (0..=within.as_secs() / 60).map(|minute| Duration::from_secs(minute * 60));
    let end = now.at.wall + within;
    let dated =
        now.assignments.sources.iter().flat_map(|source| source.answer.iter().flat_map(|answer| &answer.rights));
    let dated = dated.filter_map(|right| right.when.from).filter(move |from| *from > now.at.wall && *from <= end);
    minutes.map(|later| now.at.wall + later).chain(dated).chain([end])
}

impl<'a> View<'a> {
    fn seen(&self) -> Option<&'a Seen<'a>> {
        match self {
            Self::Process(seen) => Some(seen),
            Self::User(_) | Self::Gpu(_) => None,
        }
    }

    fn card(&self) -> Option<&'a Gpu> {
        match self {
            Self::Process(seen) => Some(seen.gpu),
            Self::User(holder) => holder.gpu,
            Self::Gpu(occupied) => Some(occupied.gpu),
        }
    }

    fn user(&self) -> Option<&User> {
        match self {
            Self::Process(seen) => seen.user(),
            Self::User(holder) => holder.user,
            Self::Gpu(_) => None,
        }
    }

    /// Of several processes, whether it is so of one.
    fn right(&self, wanted: bool, of: impl Fn(&Seen) -> Truth) -> Truth {
        let as_wanted = |seen: &Seen| if wanted { of(seen) } else { !of(seen) };
        match self {
            Self::Process(seen) => as_wanted(seen),
            Self::User(holder) => Truth::any(holder.holds.iter().map(|seen| as_wanted(seen))),
            Self::Gpu(_) => Truth::Unknown,
        }
    }

    fn memory(&self) -> Extent {
        let bytes = |bytes: Bytes| bytes.0 as f64;
        match self {
            Self::Process(seen) => Extent::known(seen.hold.memory.map(bytes)),
            Self::User(holder) => {
                Extent::fold(holder.counted.iter().map(|seen| seen.hold.memory.map(bytes)), holder.open, |sum, part| {
                    sum + part
                })
            }
            Self::Gpu(Occupied { gpu, .. }) => {
                Extent::known(gpu.readings.as_ref().ok().and_then(|readings| readings.memory.used).map(bytes))
            }
        }
    }

    /// The total of one card; of several, if all have the same.
    fn memory_total(&self) -> Option<Bytes> {
        let total = |gpu: &Gpu| gpu.readings.as_ref().ok().and_then(|readings| readings.memory.total);
        match (self, self.card()) {
            (_, Some(gpu)) => total(gpu),
            (Self::User(holder), None) => {
                let totals: BTreeSet<Option<Bytes>> = holder.holds.iter().map(|seen| total(seen.gpu)).collect();
                if totals.len() == 1 { totals.into_iter().next().flatten() } else { None }
            }
            (Self::Process(_) | Self::Gpu(_), None) => None,
        }
    }

    /// `None` where it does not apply, for nothing counts: that is not idle either.
    fn utilization(&self) -> Option<Extent> {
        let percent = |percent: Percent| percent.0;
        let utilization = match self {
            Self::Process(seen) => Extent::known(seen.hold.utilization.map(percent)),
            Self::User(holder) if holder.counted.is_empty() && !holder.open => return None,
            Self::User(holder) => Extent::fold(
                holder.counted.iter().map(|seen| seen.hold.utilization.map(percent)),
                holder.open,
                f64::max,
            ),
            Self::Gpu(Occupied { gpu, .. }) => {
                Extent::known(gpu.readings.as_ref().ok().and_then(|readings| readings.utilization).map(percent))
            }
        };
        Some(utilization)
    }

    /// Cards on which the user has more than the footprint.
    fn gpus(&self) -> Extent {
        let Self::User(holder) = self else { return Extent::UNKNOWN };
        let mut cards: BTreeMap<&GpuUuid, Vec<Option<f64>>> = BTreeMap::new();
        for seen in &holder.counted {
            cards.entry(&seen.gpu.uuid).or_default().push(seen.hold.memory.map(|bytes| bytes.0 as f64));
        }
        let above = cards.values().map(|parts| {
            let held = Extent::fold(parts.iter().copied(), false, |sum, part| sum + part);
            match held.compare(Comparison::Above, holder.footprint.0 as f64) {
                Truth::True => Some(1.0),
                Truth::False => Some(0.0),
                Truth::Unknown => None,
            }
        });
        Extent::fold(above, holder.open, |sum, part| sum + part)
    }

    fn processes(&self) -> Extent {
        match self {
            Self::Process(_) => Extent::UNKNOWN,
            Self::User(holder) => {
                let count = holder.counted.iter().map(|seen| seen.process.id).collect::<BTreeSet<_>>().len();
                Extent { at_least: count as f64, exact: !holder.open }
            }
            Self::Gpu(occupied) => Extent::known(occupied.processes.map(|count| count as f64)),
        }
    }

    fn age(&self, now: &Snapshot) -> Option<Duration> {
        self.seen().map(|seen| now.at.boot.saturating_sub(seen.process.id.start()))
    }

    /// The name, or the uid in digits where the directory has none.
    fn user_name(&self) -> Option<Vec<Arc<str>>> {
        let user = self.user()?;
        match &user.name {
            Lookup::Known(name) => Some(vec![name.clone()]),
            Lookup::Absent => Some(vec![user.uid.to_string().into()]),
            Lookup::Pending => None,
        }
    }

    fn groups(&self) -> Option<Vec<Arc<str>>> {
        match &self.user()?.groups {
            Lookup::Known(groups) => Some(groups.iter().map(|group| group.name.clone()).collect()),
            Lookup::Absent => Some(Vec::new()),
            Lookup::Pending => None,
        }
    }
}
