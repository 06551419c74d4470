//! Who is told what over which channel; one message per person and round, however many cards.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::{ChannelName, Deed, EpisodeKey, Fate, Guard, Person, Verdict};

pub mod message;
pub mod terminal;

pub use message::Voice;
use terminal::Places;
pub use terminal::Terminal;

/// The channels by name, and what became of what they were given.
#[derive(Debug)]
pub struct Channels {
    voice: Voice,
    terminal: Terminal,
    tally: BTreeMap<(ChannelName, &'static str), u64>,
    /// Who has had a message that did not reach all.
    reached: BTreeSet<Copy>,
}

/// What one recipient got of a verdict: its episode and rung, and who he is.
type Copy = (EpisodeKey, usize, Recipient);

fn copy(verdict: &Verdict, to: &Recipient) -> Copy {
    (verdict.key().clone(), verdict.rung(), to.clone())
}

/// Whom a message is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipient {
    Person(Person),
    Admins,
}

/// What became of a message on one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    Delivered,
    /// The channel works, but does not reach this recipient.
    Undeliverable(String),
    /// The channel does not work.
    Failed(String),
}

impl Delivery {
    /// The label `outcome` of `notifications_total`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Undeliverable(_) => "undeliverable",
            Self::Failed(_) => "failed",
        }
    }
}

/// What a message can come to.
const OUTCOMES: [&str; 3] = ["delivered", "undeliverable", "failed"];

/// What came of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub fate: Fate,
    /// Why it did not reach somebody, or not over some channel.
    pub why: Vec<String>,
}

impl Channels {
    pub fn new(voice: Voice, terminal: Terminal) -> Self {
        // There from the first page, so that the first message is an increase.
        let tally = OUTCOMES.map(|outcome| ((ChannelName(ChannelName::TERMINAL.into()), outcome), 0)).into();
        Self { voice, terminal, tally, reached: BTreeSet::new() }
    }

    /// Delivers the messages of one round and tells what came of each verdict. Who was reached in the round before, while
    /// others were not, is not told the same again.
    pub fn tell(&mut self, round: &[&Verdict]) -> Vec<Told> {
        let before = std::mem::take(&mut self.reached);
        let has_it = |place: &usize, to: &Recipient| before.contains(&copy(round[*place], to));
        let mut whereabouts = None;
        let mut came: Vec<Came> = round.iter().map(|verdict| Came::of(verdict)).collect();
        for ((to, channel), places) in letters(round) {
            let (known, new): (Vec<usize>, Vec<usize>) = places.into_iter().partition(|place| has_it(place, &to));
            for place in known {
                came[place].add(&to, Delivery::Delivered);
            }
            if new.is_empty() {
                continue;
            }
            let about: Vec<&Verdict> = new.iter().map(|&place| round[place]).collect();
            let terminals = whereabouts.get_or_insert_with(|| self.terminal.places());
            let text = message::compose(&self.voice, &to, &about);
            let delivery = self.deliver(&channel, terminals, &to, &text);
            for place in new {
                came[place].add(&to, delivery.clone());
            }
        }
        for (verdict, came) in round.iter().zip(&came) {
            self.reached.extend(came.half_reached().map(|to| copy(verdict, to)));
        }
        came.into_iter().map(|came| Told { why: came.whys(), fate: came.done() }).collect()
    }

    /// Tells the admins of the agent itself.
    pub fn alert(&mut self, sentence: &str) -> Delivery {
        let text = message::notice(&self.voice, sentence);
        let places = self.terminal.places();
        self.deliver(&ChannelName(ChannelName::TERMINAL.into()), &places, &Recipient::Admins, &text)
    }

    /// How many messages came to which end, by channel.
    pub fn tally(&self) -> &BTreeMap<(ChannelName, &'static str), u64> {
        &self.tally
    }

    fn deliver(&mut self, channel: &ChannelName, places: &Places, to: &Recipient, text: &str) -> Delivery {
        let delivery = match channel.0.as_str() {
            ChannelName::TERMINAL => self.terminal.deliver(places, to, text),
            _ => Delivery::Failed(format!("there is no channel `{channel}`")),
        };
        *self.tally.entry((channel.clone(), delivery.as_str())).or_default() += 1;
        delivery
    }
}

/// The messages of a round: to whom, over which channel, about which of the verdicts.
fn letters(round: &[&Verdict]) -> BTreeMap<(Recipient, ChannelName), Vec<usize>> {
    let mut letters: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, verdict) in round.iter().enumerate() {
        for to in recipients(verdict.deed()) {
            for channel in channels(verdict.deed()) {
                let about = letters.entry((to.clone(), channel.clone())).or_default();
                if about.last() != Some(&place) {
                    about.push(place);
                }
            }
        }
    }
    letters
}

fn recipients(deed: &Deed) -> Vec<Recipient> {
    match deed {
        Deed::Warn { to, .. } | Deed::Inform { to, .. } | Deed::AllClear { to, .. } => {
            to.iter().cloned().map(Recipient::Person).collect()
        }
        Deed::Alert { .. } => vec![Recipient::Admins],
        Deed::Signal(_) => Vec::new(),
    }
}

fn channels(deed: &Deed) -> &[ChannelName] {
    match deed {
        Deed::Warn { channels, .. }
        | Deed::Inform { channels, .. }
        | Deed::AllClear { channels, .. }
        | Deed::Alert { channels } => channels,
        Deed::Signal(_) => &[],
    }
}

/// What came of one verdict, over each channel, for each recipient.
struct Came {
    is_warning: bool,
    to_admins: bool,
    over_each: BTreeMap<Recipient, Vec<Delivery>>,
}

impl Came {
    fn of(verdict: &Verdict) -> Self {
        let deed = verdict.deed();
        Self {
            is_warning: matches!(deed, Deed::Warn { .. }),
            to_admins: matches!(deed, Deed::Alert { .. }),
            over_each: BTreeMap::new(),
        }
    }

    fn add(&mut self, to: &Recipient, delivery: Delivery) {
        self.over_each.entry(to.clone()).or_default().push(delivery);
    }

    /// Those who were reached, while somebody was not.
    fn half_reached(&self) -> impl Iterator<Item = &Recipient> {
        let is_reached = |deliveries: &[Delivery]| deliveries.contains(&Delivery::Delivered);
        let all = self.over_each.values().all(|deliveries| is_reached(deliveries));
        self.over_each.iter().filter(move |(_, deliveries)| !all && is_reached(deliveries)).map(|(to, _)| to)
    }

    /// Why some could not be reached.
    fn whys(&self) -> Vec<String> {
        let whys = self.over_each.values().flatten().filter_map(|delivery| match delivery {
            Delivery::Delivered => None,
            Delivery::Undeliverable(why) | Delivery::Failed(why) => Some(why.clone()),
        });
        whys.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Done if every recipient was reached by one channel.
    fn done(self) -> Fate {
        // Nobody to inform is nothing to do; nobody to warn is a warning that reached nobody.
        if self.over_each.is_empty() {
            return if self.is_warning { Fate::Refused(Guard::Unreachable) } else { Fate::Done };
        }
        let to_admins = self.to_admins;
        let each = self.over_each.into_values().map(|deliveries| reached(deliveries, to_admins));
        each.max_by_key(gravity).unwrap_or(Fate::Done)
    }
}

/// What came of a message to one recipient.
fn reached(deliveries: Vec<Delivery>, to_admins: bool) -> Fate {
    let mut why = Vec::new();
    // Somebody to alert there always is: not to reach one is a fault of the channel.
    let mut failed = to_admins;
    for delivery in deliveries {
        match delivery {
            Delivery::Delivered => return Fate::Done,
            Delivery::Undeliverable(reason) => why.push(reason),
            Delivery::Failed(reason) => {
                failed = true;
                why.push(reason);
            }
        }
    }
    if failed { Fate::Failed(why.join("; ")) } else { Fate::Refused(Guard::Unreachable) }
}

/// Of several recipients the one who fared worst counts.
fn gravity(done: &Fate) -> u8 {
    match done {
        Fate::Done | Fate::Rehearsed | Fate::Gone | Fate::Pending => 0,
        Fate::Failed(_) => 1,
        Fate::Refused(_) => 2,
    }
}

#[cfg(test)]
mod tests;
