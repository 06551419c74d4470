use super::*;
use crate::policy::Mode;
use crate::policy::forged::{snapshot, target};
use crate::snapshot::Confidence;
use crate::units::Uid;

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use crate::notify::{Terminal, Voice};
use crate::snapshot::{Fault, Gpu, GpuUuid, Hold, Kind, Source};

/// An ordinary user; the tests run as root, who may become anybody.
const USER: Uid = Uid(4242);

/// A process of the test's own, ended and reaped with the value.
struct Victim(Child);

impl Victim {
    /// A shell that has set its traps when this returns.
    fn new(script: &str) -> Self {
        Self::of(USER, script)
    }

    fn of(uid: Uid, script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{script}\necho ready; while :; do sleep 0.05; done")]);
        if rustix::process::geteuid().is_root() {
            command.uid(uid.0).gid(uid.0);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn target(&self) -> Target {
        let sight = Sight::of(&Procfs::new("/proc"), self.pid()).unwrap().unwrap();
        target(self.pid(), sight.id().started, sight.uid())
    }

    /// The signal that ended it.
    fn ended_by(&mut self) -> Option<i32> {
        self.0.wait().unwrap().signal()
    }

    fn lives(&mut self) -> bool {
        // A signal that was sent has been taken by the time the process can be asked again; this is ten times as long
        // as its turn takes.
        std::thread::sleep(Duration::from_millis(100));
        self.0.try_wait().unwrap().is_none()
    }

    fn state(&self) -> char {
        let stat = Procfs::new("/proc").stat(self.pid()).unwrap().unwrap();
        stat.state
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An enforcer past its start delay, and what the world answers when asked anew.
struct Bench {
    dir: tempfile::TempDir,
    enforcer: Enforcer,
    second: u64,
    now: Snapshot,
    occupancy: Option<Reading<Occupancy>>,
    asked: usize,
    blind: bool,
    process: Box<dyn Fn(&mut Process)>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Limits { min_uid: Uid(1), ..Limits::default() })
    }

    fn with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let procfs = Procfs::new("/proc");
        let voice = Voice { host: "gpu01".into(), zone: jiff::tz::TimeZone::UTC };
        let channels = Channels::new(voice, Terminal::new(procfs.clone(), dir.path().join("dev")));
        let audit = Audit::new(dir.path(), "gpu01");
        let now = crowd(0);
        let enforcer = Enforcer::new(limits, Duration::from_secs(5), dir.path(), procfs, audit, channels, now.at.wall);
        let mut bench =
            Self { dir, enforcer, second: 0, now, occupancy: None, asked: 0, blind: false, process: Box::new(|_| ()) };
        for _ in 0..12 {
            bench.carry_out(&[]);
        }
        bench
    }

    /// The next cycle, five seconds later.
    fn carry_out(&mut self, verdicts: &[Verdict]) -> Vec<Fate> {
        self.second += 5;
        self.now.at = snapshot(self.second).at;
        let on_their_cards = acts(verdicts).iter().map(|act| (act.target.process.pid, cards(act.target))).collect();
        let occupancy = self.occupancy.clone().unwrap_or(Ok(Occupancy { cards: on_their_cards, ..Default::default() }));
        let mut world = World { occupancy, asked: &mut self.asked, blind: self.blind, change: &self.process };
        let outcomes = self.enforcer.carry_out(verdicts, &self.now, &mut world);
        outcomes.into_iter().map(|outcome| outcome.result).collect()
    }

    /// The audit log, a word for each record.
    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("audit.jsonl")).unwrap();
        text.lines().map(|line| word(&serde_json::from_str(line).unwrap())).collect()
    }
}

/// What the sources would answer, with the real `/proc`.
struct World<'a> {
    occupancy: Reading<Occupancy>,
    asked: &'a mut usize,
    blind: bool,
    change: &'a dyn Fn(&mut Process),
}

impl Witness for World<'_> {
    fn occupancy(&mut self) -> Reading<Occupancy> {
        *self.asked += 1;
        self.occupancy.clone()
    }

    fn process(&mut self, pid: i32) -> io::Result<Result<Process, Unseen>> {
        if self.blind {
            return Ok(Err(Unseen::Hidden));
        }
        let Some(sight) = Sight::of(&Procfs::new("/proc"), pid)? else { return Ok(Err(Unseen::Exited)) };
        let mut process = ordinary(sight.id(), sight.uid());
        (self.change)(&mut process);
        Ok(Ok(process))
    }
}

fn elsewhere(target: &Target) -> Occupancy {
    let cards = [(target.process.pid, [GpuUuid("GPU-2".into())].into())].into();
    Occupancy { cards, ..Default::default() }
}

fn word(record: &serde_json::Value) -> String {
    let text = |key: &str| record[key].as_str().map(str::to_owned);
    let words = [text("kind"), text("action"), text("outcome"), text("reason"), text("error"), text("note")];
    let remarks =
        record["remarks"].as_array().into_iter().flatten().filter_map(|remark| Some(remark.as_str()?.to_owned()));
    // A shell blocks all signals for the moments in which it starts a child.
    let remarks = remarks.filter(|remark| remark != "it blocks this signal");
    words.into_iter().flatten().chain(remarks).collect::<Vec<_>>().join(" ")
}

fn cards(target: &Target) -> BTreeSet<GpuUuid> {
    target.cards.iter().map(|card| card.uuid.clone()).collect()
}

fn ordinary(id: ProcessId, uid: Uid) -> Process {
    Process {
        id,
        uid: Some(uid),
        confidence: Confidence::High,
        command: "python".into(),
        executable: None,
        command_line: None,
        protection: Some(Protection::None),
        host_memory: None,
        host_cpu: None,
    }
}

/// A node with a hundred GPU processes, so that no share is implausible.
fn crowd(second: u64) -> Snapshot {
    let ids = (1..=100).map(|n| ProcessId { pid: 1_000_000_000 + n, started: 1 });
    let holds = ids.clone().map(|id| Hold::new(id.pid, Ok(id), Kind::Compute, Duration::ZERO));
    let gpu = Gpu { holds: Ok(holds.collect()), ..Gpu::named(GpuUuid("GPU-1".into()), 1) };
    let processes = ids.map(|id| (id, ordinary(id, Uid(7)))).collect();
    Snapshot { gpus: Ok(vec![gpu]), processes, ..snapshot(second) }
}

fn send(signal: Signal, targets: Vec<Target>) -> Verdict {
    Verdict::forged("unassigned-gpu", USER, Mode::Enforce, Deed::Signal(signal)).at(targets)
}

const TERM: i32 = 15;
const KILL: i32 = 9;

#[test]
fn signals_the_process_that_was_seen_and_writes_it_down_before_and_after() {
    let mut victim = Victim::new("");
    let mut bench = Bench::new();
    assert_eq!(bench.carry_out(&[send(Signal::Term, vec![victim.target()])]), [Fate::Done]);
    assert_eq!(victim.ended_by(), Some(TERM));
    assert_eq!(bench.log(), ["intent TERM", "outcome TERM done"]);
}

#[test]
fn leaves_a_successor_with_the_same_pid_alone() {
    let mut successor = Victim::new("");
    let before = Target { process: ProcessId { pid: successor.pid(), started: 1 }, ..successor.target() };
    let mut bench = Bench::new();
    assert_eq!(bench.carry_out(&[send(Signal::Kill, vec![before])]), [Fate::Gone]);
    assert!(successor.lives());
}

#[test]
fn leaves_a_successor_alone_that_came_after_the_first_look() {
    let mut successor = Victim::new("");
    let mut bench = Bench::new();
    let verdict = send(
        Signal::Kill,
        vec![Target { process: ProcessId { pid: successor.pid(), started: 1 }, ..successor.target() }],
    );
    let act = acts(std::slice::from_ref(&verdict))[0];
    let pidfd = bench.enforcer.take_hold(act, &bench.now).unwrap();
    let mut world = World { occupancy: Ok(Occupancy::default()), asked: &mut 0, blind: false, change: &|_| () };
    assert_eq!(bench.enforcer.hit(act, &pidfd, &bench.now, &mut world).result, Fate::Gone);
    assert!(successor.lives());
}

#[test]
fn rehearses_under_observe_and_under_warn() {
    for mode in [Mode::Observe, Mode::Warn] {
        let mut victim = Victim::new("");
        let mut bench = Bench::new();
        let verdict = Verdict::forged("idle", USER, mode, Deed::Signal(Signal::Kill)).at(vec![victim.target()]);
        // Neither pauses nor fuses concern what is not done.
        bench.now.pauses = vec![Pause::SuspectList];
        assert_eq!(bench.carry_out(&[verdict]), [Fate::Rehearsed]);
        assert!(victim.lives());
        assert_eq!(bench.log(), ["outcome KILL rehearsed"]);
        assert_eq!(bench.asked, 0);
    }
}

#[test]
fn a_rehearsal_is_refused_where_the_act_would_be() {
    let victim = Victim::new("");
    let mut bench = Bench::new();
    bench.process = Box::new(|process| process.protection = Some(Protection::Infrastructure));
    let verdict = Verdict::forged("idle", USER, Mode::Observe, Deed::Signal(Signal::Kill)).at(vec![victim.target()]);
    assert_eq!(bench.carry_out(&[verdict]), [Fate::Refused(Guard::Protected)]);
}

#[test]
fn refuses_whoever_may_not_be_hit() {
    let mut victim = Victim::new("");
    let check = |change: &dyn Fn(&mut Bench, &mut Target), expected: Guard| {
        let mut bench = Bench::new();
        let mut target = victim.target();
        change(&mut bench, &mut target);
        assert_eq!(bench.carry_out(&[send(Signal::Kill, vec![target])]), [Fate::Refused(expected)]);
    };
    check(&|_, target| target.objection = Some(Guard::Unwarned), Guard::Unwarned);
    check(&|_, target| target.uid = Some(Uid(999)), Guard::Identity);
    check(&|_, target| target.uid = None, Guard::Identity);
    check(&|bench, _| bench.enforcer.limits.min_uid = Uid(u32::MAX), Guard::Protected);
    check(&|bench, _| bench.process = Box::new(|process| process.protection = None), Guard::Identity);
    check(
        &|bench, _| bench.process = Box::new(|process| process.protection = Some(Protection::MpsClient)),
        Guard::Protected,
    );
    check(&|bench, _| bench.process = Box::new(|process| process.confidence = Confidence::Medium), Guard::Confidence);
    check(&|bench, _| bench.occupancy = Some(Ok(Occupancy::default())), Guard::Stale);
    check(&|bench, _| bench.occupancy = Some(Err(Fault::new(Source::Nvml, "hung"))), Guard::Stale);
    check(&|bench, target| bench.occupancy = Some(Ok(elsewhere(target))), Guard::Stale);
    check(&|bench, _| bench.blind = true, Guard::Identity);
    check(&|bench, _| bench.now.pauses = vec![Pause::Hidepid], Guard::Paused);
    check(&|bench, _| bench.now.driver = Err(Fault::new(Source::Nvml, "hung")), Guard::Paused);
    check(&|bench, _| bench.enforcer.state_was_saved(Err(state::Error::Taken { path: "/".into() })), Guard::Paused);
    check(&|bench, _| bench.enforcer.holdoff.reloaded(), Guard::Paused);
    assert!(victim.lives());
}

#[test]
fn a_rule_that_names_lower_levels_may_hit_who_is_as_sure_as_he_was() {
    let mut victim = Victim::new("");
    let mut bench = Bench::new();
    bench.process = Box::new(|process| process.confidence = Confidence::Medium);
    let target = Target { confidence: Confidence::Medium, ..victim.target() };
    assert_eq!(bench.carry_out(&[send(Signal::Term, vec![target])]), [Fate::Done]);
    assert_eq!(victim.ended_by(), Some(TERM));
}

#[test]
fn the_driver_is_asked_once_a_cycle_and_only_for_an_act() {
    let victims = [Victim::new(""), Victim::new("")];
    let mut bench = Bench::new();
    let targets: Vec<_> = victims.iter().map(Victim::target).collect();
    assert_eq!(bench.carry_out(&[send(Signal::Term, targets)]), [Fate::Done, Fate::Done]);
    assert_eq!(bench.asked, 1);
    bench.carry_out(&[]);
    assert_eq!(bench.asked, 1);
}

#[test]
fn a_zombie_is_gone_and_gets_no_signal() {
    let victim = Victim::new("");
    let target = victim.target();
    victim.signal(rustix::process::Signal::KILL);
    while victim.state() != 'Z' {
        std::thread::yield_now();
    }
    let mut bench = Bench::new();
    assert_eq!(bench.carry_out(&[send(Signal::Kill, vec![target])]), [Fate::Gone]);
    assert_eq!(bench.log(), ["outcome KILL gone"]);
}

#[test]
fn one_who_ignores_the_signal_is_on_record_and_counts_as_signalled() {
    let mut victim = Victim::new("trap '' TERM");
    let mut bench = Bench::new();
    assert_eq!(bench.carry_out(&[send(Signal::Term, vec![victim.target()])]), [Fate::Done]);
    assert!(victim.lives());
    assert_eq!(bench.log(), ["intent TERM", "outcome TERM done it ignores this signal"]);
    assert_eq!(bench.carry_out(&[send(Signal::Kill, vec![victim.target()])]), [Fate::Done]);
    assert_eq!(victim.ended_by(), Some(KILL));
}

#[test]
fn a_stopped_process_is_woken_to_hear() {
    let mut victim = Victim::new("");
    victim.signal(rustix::process::Signal::STOP);
    while victim.state() != 'T' {
        std::thread::yield_now();
    }
    let mut bench = Bench::new();
    assert_eq!(bench.carry_out(&[send(Signal::Term, vec![victim.target()])]), [Fate::Done]);
    assert_eq!(victim.ended_by(), Some(TERM));
}

#[test]
fn a_signal_that_does_not_mean_the_end_goes_only_to_who_catches_it() {
    let mut deaf = Victim::new("");
    let mut hears = Victim::new("trap 'exit 7' USR1");
    let mut bench = Bench::new();
    let targets = vec![deaf.target(), hears.target()];
    assert_eq!(bench.carry_out(&[send(Signal::Usr1, targets)]), [Fate::Done, Fate::Done]);
    assert_eq!(hears.0.wait().unwrap().code(), Some(7));
    assert!(deaf.lives());
}

#[test]
fn who_is_still_there_long_after_a_kill_gets_no_more_and_the_admins_hear_of_it_once() {
    let mut victim = Victim::new("");
    let mut bench = Bench::new();
    let target = victim.target();
    // Nothing in this world survives a KILL on purpose; the record of one is enough.
    bench.enforcer.killed.insert(target.process, Killed { at: bench.now.at.boot, unkillable: false });
    for _ in 0..12 {
        bench.carry_out(&[]);
    }
    assert_eq!(bench.enforcer.unkillable(), 0);
    for _ in 0..3 {
        assert_eq!(bench.carry_out(&[send(Signal::Kill, vec![target.clone()])]), [Fate::Refused(Guard::Unkillable)]);
    }
    assert_eq!(bench.enforcer.unkillable(), 1);
    assert!(victim.lives());
    let log = bench.log();
    assert_eq!(log.len(), 2, "{log:?}");
    assert!(log[0].starts_with("note Pid"));
    assert_eq!(log[1], "outcome KILL refused unkillable");
    drop(victim);
    bench.carry_out(&[]);
    assert_eq!(bench.enforcer.unkillable(), 0);
}

#[test]
fn a_refusal_is_written_down_when_it_is_new_or_another() {
    let mut victim = Victim::new("");
    let mut bench = Bench::new();
    let verdict = send(Signal::Term, vec![victim.target()]);
    for pauses in [vec![Pause::Wsl], vec![Pause::Wsl], vec![Pause::Wsl], vec![]] {
        bench.now.pauses = pauses;
        bench.carry_out(std::slice::from_ref(&verdict));
    }
    assert_eq!(bench.log(), ["outcome TERM refused paused", "intent TERM", "outcome TERM done"]);
    assert_eq!(victim.ended_by(), Some(TERM));
}

#[test]
fn nobody_is_hit_without_a_record_of_the_intent() {
    let mut victim = Victim::new("");
    let mut bench = Bench::new();
    let log = bench.dir.path().join("audit.jsonl");
    let _ = std::fs::remove_file(&log);
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let verdict = send(Signal::Kill, vec![victim.target()]);
    for _ in 0..2 {
        assert_eq!(bench.carry_out(std::slice::from_ref(&verdict)), [Fate::Refused(Guard::Paused)]);
        assert!(bench.enforcer.pauses().contains(&Pause::Audit));
    }
    assert!(victim.lives());
    std::fs::remove_file(&log).unwrap();
    assert_eq!(bench.carry_out(&[verdict]), [Fate::Done]);
    assert_eq!(victim.ended_by(), Some(KILL));
}

#[test]
fn the_longest_due_are_hit_first_and_the_rest_wait() {
    let mut victims: Vec<_> = (0..4).map(|_| Victim::new("")).collect();
    let mut bench = Bench::new();
    let targets = victims
        .iter()
        .zip([9, 1, 9, 9])
        .map(|(victim, overdue)| Target { overdue: Duration::from_secs(overdue), ..victim.target() });
    let targets: Vec<_> = targets.collect();
    let came = bench.carry_out(&[send(Signal::Term, targets.clone())]);
    assert_eq!(came.iter().filter(|done| **done == Fate::Done).count(), 3);
    assert!(victims[1].lives());
    assert_eq!(bench.carry_out(&[send(Signal::Term, vec![targets[1].clone()])]), [Fate::Done]);
    assert_eq!(victims[1].ended_by(), Some(TERM));
}

#[test]
fn a_fuse_that_blew_holds_over_a_restart_until_it_is_reset() {
    let mut victims: Vec<_> = (0..4).map(|_| Victim::new("")).collect();
    let mut bench = Bench::new();
    bench.now.gpus = Ok(Vec::new());
    let verdict = send(Signal::Kill, victims.iter().map(Victim::target).collect());
    assert_eq!(bench.carry_out(std::slice::from_ref(&verdict)), vec![Fate::Refused(Guard::Fuse); 4]);
    assert!(bench.enforcer.fuses().is_blown(Fuse::ShareOfWorkloads));
    let loaded = fuses::load(&bench.dir.path().join("fuses.json"), bench.now.at.wall);
    assert_eq!(&loaded, bench.enforcer.fuses());

    let one = send(Signal::Kill, vec![victims[0].target()]);
    bench.now = crowd(0);
    assert_eq!(bench.carry_out(std::slice::from_ref(&one)), [Fate::Refused(Guard::Fuse)]);
    assert!(bench.enforcer.pauses().contains(&Pause::Fuse));
    assert!(victims.iter_mut().all(Victim::lives));
    bench.enforcer.reset_fuses(&bench.now).unwrap();
    assert_eq!(bench.carry_out(&[one]), [Fate::Done]);
    assert_eq!(victims[0].ended_by(), Some(KILL));
}

#[test]
fn a_reset_that_cannot_be_written_leaves_the_fuses_blown() {
    let mut bench = Bench::new();
    let blown = Fuses::blown_at(bench.now.at.wall);
    bench.enforcer.fuses = blown.clone();
    let away = bench.dir.path().with_extension("away");
    std::fs::rename(bench.dir.path(), &away).unwrap();
    assert!(bench.enforcer.reset_fuses(&bench.now).is_err());
    assert_eq!(bench.enforcer.fuses(), &blown);
    std::fs::rename(&away, bench.dir.path()).unwrap();
    bench.enforcer.reset_fuses(&bench.now).unwrap();
    assert!(!bench.enforcer.fuses().is_blown(Fuse::ActsPerHour));
}

#[test]
fn fuses_that_cannot_be_read_are_blown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fuses.json");
    std::fs::write(&path, "{").unwrap();
    let now = snapshot(0).at.wall;
    assert!(fuses::load(&path, now).is_blown(Fuse::ActsPerHour));
    assert!(!fuses::load(&dir.path().join("none"), now).is_blown(Fuse::ActsPerHour));
}

#[test]
fn a_warning_is_delivered_under_warn_and_rehearsed_under_observe() {
    let warn = Deed::Warn {
        to: vec![crate::policy::Person { uid: USER, name: "alice".into() }],
        channels: vec![crate::policy::ChannelName("terminal".into())],
    };
    let mut bench = Bench::new();
    assert_eq!(bench.carry_out(&[Verdict::forged("idle", USER, Mode::Observe, warn.clone())]), [Fate::Rehearsed]);
    let verdict = Verdict::forged("idle", USER, Mode::Warn, warn);
    for _ in 0..2 {
        assert_eq!(bench.carry_out(std::slice::from_ref(&verdict)), [Fate::Refused(Guard::Unreachable)]);
    }
    assert_eq!(bench.log(), ["outcome warn rehearsed", "intent warn", "outcome warn refused unreachable no terminal"]);
}

#[test]
fn the_first_process_of_a_namespace_counts_as_signalled_though_it_does_not_hear() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root makes a PID namespace");
        return;
    }
    let script = "echo ready; while :; do sleep 0.05; done";
    let mut outside = Command::new("unshare");
    outside.args(["--pid", "--fork", "--kill-child", "sh", "-c", script]).stdout(Stdio::piped());
    let Ok(outside) = outside.spawn() else {
        println!("skipped: there is no unshare(1)");
        return;
    };
    let mut outside = Victim(outside);
    let mut line = String::new();
    BufReader::new(outside.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        println!("skipped: this host makes no PID namespace");
        return;
    }
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", outside.pid())).unwrap();
    let first: i32 = children.trim().parse().unwrap();
    let sight = Sight::of(&Procfs::new("/proc"), first).unwrap().unwrap();
    let mut bench = Bench::with(Limits { min_uid: Uid(0), ..Limits::default() });
    let target = target(first, sight.id().started, sight.uid());
    assert_eq!(bench.carry_out(&[send(Signal::Term, vec![target.clone()])]), [Fate::Done]);
    assert!(outside.lives());
    assert!(bench.log()[1].contains("does not hear"), "{:?}", bench.log());
    assert_eq!(bench.carry_out(&[send(Signal::Kill, vec![target])]), [Fate::Done]);
    outside.0.wait().unwrap();
}

#[test]
fn what_an_agent_before_may_have_done_is_on_record() {
    let mut bench = Bench::new();
    let key = send(Signal::Term, vec![]).key().clone();
    let deed = Deed::Signal(Signal::Term);
    let result = Fate::Failed("not known".into());
    let target = Some(ProcessId { pid: 7, started: 9 });
    let lost = Outcome { key, rung: 1, deed, owner: None, target, result };
    bench.enforcer.report_lost(&[lost], &bench.now);
    assert_eq!(bench.log(), ["outcome TERM failed not known"]);
}

#[test]
fn a_kill_that_fuses_or_pauses_refused_is_tried_again_whole() {
    let mut victim = Victim::new("");
    let mut bench = Bench::new();
    let verdict = send(Signal::Kill, vec![victim.target()]);
    bench.now.pauses = vec![Pause::DriverStale];
    assert_eq!(bench.carry_out(std::slice::from_ref(&verdict)), [Fate::Refused(Guard::Paused)]);
    // A refusal leaves no trace in what the fuses count, nor is the process taken for one that was killed.
    assert_eq!(bench.enforcer.fuses(), &Fuses::default());
    assert!(bench.enforcer.killed.is_empty());
    bench.now.pauses.clear();
    assert_eq!(bench.carry_out(&[verdict]), [Fate::Done]);
    assert_eq!(victim.ended_by(), Some(KILL));
}

#[test]
fn a_caller_that_asks_for_a_reload_holds_acts_off_again() {
    let victim = Victim::new("");
    let mut bench = Bench::new();
    bench.enforcer.reload(Limits { min_uid: Uid(1), ..Limits::default() }, Duration::from_secs(5), &bench.now);
    assert_eq!(bench.carry_out(&[send(Signal::Kill, vec![victim.target()])]), [Fate::Refused(Guard::Paused)]);
    assert!(bench.enforcer.pauses().contains(&Pause::StartDelay));
}

#[test]
fn a_signal_that_could_not_be_sent_says_why() {
    let error = pidfd::Error::Open(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()));
    assert_eq!(came_of(error), Fate::Failed("cannot open a pidfd: Too many open files (os error 24)".into()));
    assert_eq!(came_of(pidfd::Error::Gone), Fate::Gone);
}
