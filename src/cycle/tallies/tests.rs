use super::*;
use crate::cycle::fixture;
use crate::policy::{Person, Signal};
use crate::snapshot::{Fault, GpuFault, Hold, Kind, Source, Unseen};

/// An agent that sees one snapshot after the other.
struct Agent {
    setup: Setup,
    tallies: Tallies,
    before: Option<Snapshot>,
}

impl Agent {
    fn new() -> Self {
        Self { setup: fixture::setup(), tallies: Tallies::default(), before: None }
    }

    fn sees(&mut self, now: Snapshot) -> &mut Self {
        self.turns(now, &[], &[])
    }

    fn turns(&mut self, now: Snapshot, judgements: &[Judgement], outcomes: &[Outcome]) -> &mut Self {
        self.tallies.count(&Turn {
            before: self.before.as_ref(),
            now: &now,
            judgements,
            outcomes,
            took: Duration::from_secs(1),
            setup: &self.setup,
        });
        self.before = Some(now);
        self
    }

    /// Seconds held, busy, idle and unassigned.
    fn time(&self, user: &str, card: u32) -> Option<[f64; 4]> {
        let time = self.tallies.users.get(user)?.cards.get(&fixture::uuid(card))?;
        Some([time.held, time.busy, time.idle, time.unassigned].map(|time| time.as_secs_f64()))
    }
}

/// A node on which alice has one process on the first card.
fn alone(seconds: u64, mebibytes: Option<u64>, utilization: Option<f64>) -> Snapshot {
    let mut snapshot = fixture::snapshot(seconds);
    let gpus = snapshot.gpus.as_mut().unwrap();
    gpus.truncate(1);
    gpus[0].holds = Ok(vec![fixture::hold(4000, Kind::Compute, mebibytes, utilization)]);
    snapshot
}

#[test]
fn who_comes_begins_at_zero_and_counts_from_then() {
    let mut agent = Agent::new();
    agent.sees(alone(0, Some(1_000), Some(40.0)));
    assert_eq!(agent.time("alice", 0), Some([0.0; 4]));
    agent.sees(alone(5, Some(1_000), Some(40.0)));
    assert_eq!(agent.time("alice", 0), Some([5.0, 2.0, 3.0, 0.0]));
    assert_eq!(agent.tallies.held[&fixture::uuid(0)], Duration::from_secs(5));
    assert_eq!(agent.tallies.busy[&(fixture::id(4000), fixture::uuid(0))], Duration::from_secs(2));
}

#[test]
fn unknown_is_never_idle() {
    let mut agent = Agent::new();
    agent.sees(alone(0, Some(1_000), None)).sees(alone(5, Some(1_000), None));
    assert_eq!(agent.time("alice", 0), Some([5.0, 0.0, 0.0, 0.0]));
    assert!(agent.tallies.busy.is_empty(), "never told, so absent");

    // One process of two is known: it kept the card busy for a part; of the rest nobody knows.
    let two = |seconds| {
        let mut snapshot = alone(seconds, Some(1_000), Some(40.0));
        let other = fixture::hold(4001, Kind::Compute, Some(10), None);
        snapshot.gpus.as_mut().unwrap()[0].holds.as_mut().unwrap().push(other);
        snapshot
    };
    let mut agent = Agent::new();
    agent.sees(two(0)).sees(two(5));
    assert_eq!(agent.time("alice", 0), Some([5.0, 2.0, 0.0, 0.0]));
}

#[test]
fn less_than_the_footprint_or_unknown_memory_is_not_held() {
    for memory in [Some(300), None] {
        let mut agent = Agent::new();
        agent.sees(alone(0, memory, Some(0.0))).sees(alone(5, memory, Some(0.0)));
        assert_eq!(agent.time("alice", 0), None);
        assert_eq!(agent.tallies.held[&fixture::uuid(0)], Duration::ZERO);
    }
}

#[test]
fn a_suspended_host_is_two_intervals_and_not_a_night() {
    let mut agent = Agent::new();
    agent.sees(alone(0, Some(1_000), Some(0.0))).sees(alone(36_000, Some(1_000), Some(0.0)));
    assert_eq!(agent.time("alice", 0), Some([10.0, 0.0, 10.0, 0.0]));
}

#[test]
fn a_utilisation_beyond_all_is_all_and_none_at_all_is_unknown() {
    let mut agent = Agent::new();
    agent.sees(alone(0, Some(1_000), Some(250.0))).sees(alone(5, Some(1_000), Some(250.0)));
    assert_eq!(agent.time("alice", 0), Some([5.0, 5.0, 0.0, 0.0]));
    agent.sees(alone(10, Some(1_000), Some(f64::NAN)));
    assert_eq!(agent.time("alice", 0), Some([10.0, 5.0, 0.0, 0.0]));
}

#[test]
fn time_without_a_right_is_counted_only_where_that_is_known() {
    let silent = |seconds| {
        let mut snapshot = fixture::snapshot(seconds);
        snapshot.assignments.sources[0].answer = Err(Fault::new(Source::Fixed, "unreadable"));
        snapshot
    };
    let mut agent = Agent::new();
    agent.sees(fixture::snapshot(0)).sees(fixture::snapshot(5));
    assert_eq!(agent.time("1002", 1).unwrap()[3], 5.0);
    agent.sees(silent(10)).sees(silent(15));
    // The turn that saw the rights counts until the next one.
    assert_eq!(agent.time("1002", 1).unwrap()[3], 10.0);
    assert_eq!(agent.time("1002", 1).unwrap()[0], 15.0);
}

#[test]
fn counters_of_a_user_stay_for_a_day_after_his_last_hold() {
    let empty = |seconds| {
        let mut snapshot = alone(seconds, None, None);
        snapshot.gpus.as_mut().unwrap()[0].holds = Ok(Vec::new());
        snapshot.processes.clear();
        snapshot.users.clear();
        snapshot
    };
    let day = 24 * 3600;
    let mut agent = Agent::new();
    agent.sees(alone(0, Some(1_000), Some(0.0))).sees(empty(5)).sees(empty(day - 1));
    assert_eq!(agent.time("alice", 0), Some([5.0, 0.0, 0.0, 0.0]));
    assert_eq!(agent.tallies.people.values().map(User::label).collect::<Vec<_>>(), [Arc::from("alice")]);
    assert!(agent.tallies.episodes.keys().any(|(_, user)| &**user == "alice"));
    agent.sees(empty(day));
    assert_eq!(agent.time("alice", 0), None);
    assert!(agent.tallies.people.is_empty() && agent.tallies.episodes.is_empty());
}

#[test]
fn a_silent_driver_ends_no_counter_and_pushes_nobody_off_the_page() {
    let mut agent = Agent::new();
    agent.sees(fixture::snapshot(0)).sees(fixture::snapshot(5));
    let (busy, shown) = (agent.tallies.busy.clone(), agent.tallies.shown.clone());
    let mut silent = fixture::snapshot(10);
    silent.gpus = Err(Fault::new(Source::Nvml, "hangs"));
    agent.sees(silent);
    let mut lost = fixture::snapshot(15);
    lost.gpus.as_mut().unwrap()[0].readings = Err(GpuFault("gpu_is_lost"));
    lost.gpus.as_mut().unwrap()[0].holds = Ok(Vec::new());
    agent.sees(lost);
    assert_eq!((agent.tallies.busy.keys().collect::<Vec<_>>(), agent.tallies.shown), (busy.keys().collect(), shown));
}

#[test]
fn who_is_shown_stays_until_he_exits() {
    let with = |seconds, memory: &[(i32, u64)]| {
        let mut snapshot = alone(seconds, None, None);
        let holds = memory.iter().map(|(pid, mebibytes)| fixture::hold(*pid, Kind::Compute, Some(*mebibytes), None));
        snapshot.gpus.as_mut().unwrap()[0].holds = Ok(holds.collect());
        snapshot
    };
    let mut agent = Agent::new();
    agent.setup.processes = 1;
    let shown = |agent: &Agent| agent.tallies.shown.iter().map(|(id, _)| id.pid).collect::<Vec<_>>();
    agent.sees(with(0, &[(4000, 10), (4001, 20)]));
    assert_eq!(shown(&agent), [4001]);
    agent.sees(with(5, &[(4000, 90), (4001, 20), (4002, 80)]));
    assert_eq!(shown(&agent), [4001]);
    agent.sees(with(10, &[(4000, 90), (4002, 80)]));
    assert_eq!(shown(&agent), [4000]);
}

#[test]
fn a_dead_process_in_the_drivers_list_holds_nothing() {
    let dead = |seconds| {
        let mut snapshot = alone(seconds, Some(1_000), Some(0.0));
        snapshot.gpus.as_mut().unwrap()[0].holds.as_mut().unwrap()[0].process = Err(Unseen::Exited);
        snapshot
    };
    let mut agent = Agent::new();
    agent.sees(dead(0)).sees(dead(5));
    assert_eq!(agent.tallies.held[&fixture::uuid(0)], Duration::ZERO);
}

#[test]
fn what_is_refused_every_cycle_is_one_line_and_counts_each_time() {
    let refused = fixture::outcome(Deed::Signal(Signal::Term), 1, Some(4002), Fate::Refused(Guard::Paused));
    let all_clear = Deed::AllClear { to: vec![fixture::bob()], channels: Vec::new() };
    let all_clear = fixture::outcome(all_clear, 0, None, Fate::Done);
    let pending = fixture::outcome(Deed::Alert { channels: Vec::new() }, 0, None, Fate::Pending);
    let mut agent = Agent::new();
    for turn in 0..100 {
        let outcomes = [refused.clone(), all_clear.clone(), pending.clone()];
        agent.turns(fixture::snapshot(turn * 5), &[], &outcomes);
    }
    let tallies = &agent.tallies;
    let key = |action, outcome| (fixture::rule_name("unassigned-gpu"), action, outcome);
    assert_eq!(tallies.actions[&key("TERM", "refused")], 100);
    assert_eq!(tallies.refusals[&Guard::Paused], 100);
    assert!(!tallies.actions.keys().any(|(_, action, _)| ["all_clear", "alert"].contains(action)));
    let recent: Vec<_> = tallies.recent.iter().map(|recent| (recent.action, recent.times)).collect();
    assert_eq!(recent, [("TERM", 100), ("all_clear", 100)]);
}

#[test]
fn a_rule_that_is_gone_takes_its_counters_with_it() {
    let mut agent = Agent::new();
    agent.turns(fixture::snapshot(0), &fixture::judgements(true), &[]);
    agent.setup.rules.rules.remove(0);
    agent.sees(fixture::snapshot(5));
    let rules: BTreeSet<_> = agent.tallies.episodes.keys().map(|(rule, _)| rule.as_str()).collect();
    assert_eq!(rules, ["idle-holder"].into());
    assert!(agent.tallies.actions.keys().all(|(rule, ..)| rule.as_str() == "idle-holder"));
}

#[test]
fn start_times_do_not_tremble_with_the_clock() {
    let booted = Booted::of(fixture::at(0), None);
    let mut slewed = fixture::at(5);
    slewed.boot += Duration::from_millis(7);
    assert_eq!(Booted::of(slewed, Some(booted)), booted);
    slewed.boot += Duration::from_secs(3600);
    assert_ne!(Booted::of(slewed, Some(booted)), booted);
}

#[test]
fn an_episode_counts_for_its_owner() {
    let mut judgements = fixture::judgements(true);
    judgements[0].owner = Some(Person { name: "alice".into(), ..fixture::bob() });
    let mut agent = Agent::new();
    agent.turns(fixture::snapshot(0), &judgements, &[]);
    let begun: Vec<_> =
        agent.tallies.episodes.iter().filter(|(_, count)| **count > 0).map(|(key, _)| &*key.1).collect();
    assert_eq!(begun, ["alice"]);
}

#[test]
fn what_was_counted_before_the_directory_answered_is_counted_under_the_name() {
    let nameless = |seconds| {
        let mut snapshot = alone(seconds, Some(1_000), Some(40.0));
        snapshot.users.values_mut().for_each(|user| user.name = Lookup::Pending);
        snapshot
    };
    let mut agent = Agent::new();
    agent.sees(nameless(0)).sees(nameless(5)).sees(alone(10, Some(1_000), Some(40.0)));
    assert_eq!(agent.time("alice", 0).map(|time| time[0]), Some(10.0));
    let alice = agent.tallies.people.values().find(|user| &*user.label() == "alice").unwrap().uid.to_string();
    let alice: Arc<str> = alice.into();
    assert!(!agent.tallies.users.contains_key(&alice), "{:?}", agent.tallies.users);
    assert!(!agent.tallies.episodes.keys().any(|(_, name)| *name == alice));
    // He comes back after the directory has been forgotten: the counters go on.
    agent.sees(nameless(15)).sees(alone(20, Some(1_000), Some(40.0)));
    assert_eq!(agent.time("alice", 0).map(|time| time[0]), Some(20.0));
}

/// One card, with what it has taken so far.
fn powered(seconds: u64, joules: f64, holds: Vec<Hold>) -> Snapshot {
    let mut snapshot = fixture::snapshot(seconds);
    let gpus = snapshot.gpus.as_mut().unwrap();
    gpus.truncate(1);
    gpus[0].readings.as_mut().unwrap().energy = Some(Joules(joules));
    gpus[0].holds = Ok(holds);
    snapshot
}

/// Joules of alice (4000) and 1002 (4002) after each has had these shares of the card, and it took 100 J.
fn energy(alice: Option<f64>, other: Option<f64>, mebibytes: u64) -> [Option<f64>; 2] {
    let holds = || {
        let of = |pid, utilization| fixture::hold(pid, Kind::Compute, Some(mebibytes), utilization);
        vec![of(4000, alice), of(4002, other)]
    };
    let mut agent = Agent::new();
    agent.sees(powered(0, 1_000.0, holds())).sees(powered(5, 1_100.0, holds()));
    let of = |user: &str| {
        let energy = agent.tallies.users.get(user)?.cards.get(&fixture::uuid(0))?.energy?;
        Some(energy.0.round())
    };
    ["alice", "1002"].map(of)
}

#[test]
fn energy_is_shared_by_the_time_in_which_kernels_ran() {
    assert_eq!(energy(Some(30.0), Some(10.0), 1_000), [Some(75.0), Some(25.0)]);
    assert_eq!(energy(Some(100.0), Some(100.0), 1_000), [Some(50.0), Some(50.0)]);
    assert_eq!(energy(Some(30.0), Some(0.0), 1_000), [Some(100.0), Some(0.0)]);
}

#[test]
fn the_energy_of_an_idle_card_is_shared_equally_among_its_holders() {
    assert_eq!(energy(Some(0.0), Some(0.0), 1_000), [Some(50.0), Some(50.0)]);
    assert_eq!(energy(Some(0.0), Some(0.0), 1), [None, None], "nobody holds it");
}

#[test]
fn energy_is_nobodys_while_it_is_not_known_who_worked() {
    assert_eq!(energy(Some(30.0), None, 1_000), [Some(0.0), None]);
    assert_eq!(energy(None, None, 1_000), [None, None]);
}

#[test]
fn a_meter_that_begins_anew_gives_nobody_energy() {
    let holds = || vec![fixture::hold(4000, Kind::Compute, Some(1_000), Some(50.0))];
    let mut agent = Agent::new();
    agent.sees(powered(0, 1_000.0, holds())).sees(powered(5, 10.0, holds()));
    agent.sees(powered(10, 60.0, holds()));
    let energy = agent.tallies.users["alice"].cards[&fixture::uuid(0)].energy.unwrap();
    assert_eq!(energy.0.round(), 50.0);
}

#[test]
fn of_a_gap_only_two_intervals_are_anybodys() {
    let holds = || vec![fixture::hold(4000, Kind::Compute, Some(1_000), Some(50.0))];
    let mut agent = Agent::new();
    agent.sees(powered(0, 0.0, holds())).sees(powered(100, 1_000.0, holds()));
    let energy = agent.tallies.users["alice"].cards[&fixture::uuid(0)].energy.unwrap();
    let interval = agent.setup.rules.interval.as_secs_f64();
    assert_eq!(energy.0.round(), (1_000.0 * 2.0 * interval / 100.0).round());
}

#[test]
fn under_mig_nobody_tells_how_long_a_user_was_busy() {
    let mut agent = Agent::new();
    let mig = |seconds, mode| {
        let mut snapshot = alone(seconds, Some(1_000), None);
        snapshot.gpus.as_mut().unwrap()[0].readings.as_mut().unwrap().mig_mode = Some(mode);
        snapshot
    };
    let told = |agent: &Agent| agent.tallies.users["alice"].cards[&fixture::uuid(0)].told;
    agent.sees(mig(0, true)).sees(mig(5, true));
    assert!(!told(&agent));
    assert_eq!(agent.time("alice", 0), Some([5.0, 0.0, 0.0, 0.0]));
    agent.sees(mig(10, false));
    assert!(told(&agent));
}
