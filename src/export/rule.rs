//! Rules, and what came of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::series::{Labels, Sample, Series, Subject, by, counters, gauges, info, truth};
use crate::cycle::Cycle;
use crate::cycle::tallies::Tallies;
use crate::enforce::Fuse;
use crate::policy::{Card, ChannelName, Judgement, Rule, RuleName, Standing};
use crate::snapshot::Pause;

/// A rule in its cycle.
pub struct OfRule<'a> {
    cycle: &'a Cycle,
    rule: &'a Rule,
}

impl Subject for OfRule<'_> {
    const LABELS: &'static [&'static str] = &["rule"];

    fn labels(&self) -> Labels {
        vec![("rule", self.rule.name.shared().into())]
    }
}

pub fn rules(cycle: &Cycle) -> Vec<OfRule<'_>> {
    cycle.rules().rules.iter().map(|rule| OfRule { cycle, rule }).collect()
}

impl OfRule<'_> {
    fn subjects(&self) -> Vec<Sample> {
        let of = |standing| self.cycle.standings.subjects.get(&(self.rule.name.clone(), standing));
        let count = |standing| of(standing).map_or(0.0, |count| *count as f64);
        by("state", Standing::ALL.map(|standing| (standing.as_str(), count(standing))))
    }

    fn violations(&self) -> Vec<Sample> {
        let mut count: BTreeMap<(Option<&Card>, Arc<str>, Standing), f64> = BTreeMap::new();
        for judgement in self.cycle.standings.violations.iter().filter(|one| one.key.rule == self.rule.name) {
            let standing = self.cycle.standing(judgement);
            *count.entry((judgement.gpu.as_deref(), owner(judgement), standing)).or_default() += 1.0;
        }
        count.into_iter().map(|((card, user, standing), count)| (violation(card, user, standing), count)).collect()
    }
}

fn owner(judgement: &Judgement) -> Arc<str> {
    judgement.owner.as_ref().map_or_else(Arc::default, |owner| owner.name.clone())
}

fn violation(card: Option<&Card>, user: Arc<str>, standing: Standing) -> Labels {
    let mut labels = vec![("user", user.into()), ("state", standing.as_str().into())];
    labels.extend(card.map(|card| ("gpu", card.index.into())));
    labels.extend(card.map(|card| ("uuid", card.uuid.0.clone().into())));
    labels
}

pub fn rule<'a>() -> Vec<Series<OfRule<'a>>> {
    vec![
        gauges("rule_info", &["about", "mode", "severity"], "A rule, with the mode in effect; 1.", |of| {
            info([
                ("about", Some(of.rule.about.as_str().into())),
                ("mode", Some(of.rule.effective_mode(of.cycle.rules().mode).as_str().into())),
                ("severity", Some(of.rule.severity.as_str().into())),
            ])
        }),
        gauges("rule_subjects", &["state"], "Subjects of a rule, by how they stand.", OfRule::subjects),
        gauges(
            "violations",
            &["user", "state", "gpu", "uuid"],
            "Subjects under which a rule is broken, by owner, and by card where they are on one.",
            OfRule::violations,
        ),
    ]
}

pub fn node<'a>() -> Vec<Series<&'a Cycle>> {
    vec![
        counters("episodes_total", &["rule", "user"], "Times that a rule began to be broken.", |cycle| {
            episodes(&cycle.tallies)
        }),
        counters(
            "actions_total",
            &["rule", "action", "outcome"],
            "What rules had done, and what came of it; acts are counted for each target.",
            |cycle| actions(&cycle.tallies),
        ),
        counters("refusals_total", &["reason"], "Actions that a guard forbade.", |cycle| {
            by("reason", cycle.tallies.refusals.iter().map(|(guard, count)| (guard.as_str(), *count as f64)))
        }),
        counters("notifications_total", &["channel", "outcome"], "Messages, by what became of them.", |cycle| {
            notifications(&cycle.notifications)
        }),
        gauges("fuse_blown", &["fuse"], "Whether a fuse forbids all acts until it is reset.", |cycle| {
            by("fuse", Fuse::ALL.map(|fuse| (fuse.as_str(), truth(cycle.blown.contains(&fuse)))))
        }),
        gauges("enforcement_paused", &["reason"], "Whether nothing may be signalled now, for this reason.", |cycle| {
            by("reason", Pause::ALL.map(|pause| (pause.as_str(), truth(cycle.pauses.contains(&pause)))))
        }),
    ]
}

fn episodes(tallies: &Tallies) -> Vec<Sample> {
    let sample = |((rule, user), count): (&(RuleName, Arc<str>), &u64)| {
        (vec![("rule", rule.shared().into()), ("user", user.clone().into())], *count as f64)
    };
    tallies.episodes.iter().map(sample).collect()
}

fn actions(tallies: &Tallies) -> Vec<Sample> {
    let labels = |rule: &RuleName, action: &'static str, outcome: &'static str| {
        vec![("rule", rule.shared().into()), ("action", action.into()), ("outcome", outcome.into())]
    };
    tallies
        .actions
        .iter()
        .map(|((rule, action, outcome), count)| (labels(rule, action, outcome), *count as f64))
        .collect()
}

fn notifications(sent: &BTreeMap<(ChannelName, &'static str), u64>) -> Vec<Sample> {
    sent.iter()
        .map(|((channel, outcome), count)| {
            (vec![("channel", channel.to_string().into()), ("outcome", (*outcome).into())], *count as f64)
        })
        .collect()
}
