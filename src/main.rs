mod units;
mod schedule;
mod snapshot;
mod source;
mod policy;
mod state;
mod audit;
mod notify;
mod enforce;
mod control;

use std::path::Path;
use std::time::Duration;

/// A sketch of the wiring, so that the compiler tells what is used.
fn main() {
    let dir = state::StateDir::open(Path::new("/var/lib/gpuwarden")).unwrap();
    let mut sources: source::Sources = todo!();
    let rules: policy::Rules = todo!();
    let first = sources.now();
    let boot_id = sources.procfs().boot_id().unwrap();
    let (mut store, state) = state::Store::load(&dir, &boot_id);
    let (mut state, mut lost) = policy::resume(state);
    let voice = notify::Voice { host: String::new(), zone: jiff::tz::TimeZone::system() };
    let channels = notify::Channels::new(voice, notify::Terminal::new(sources.procfs().clone(), "/dev"));
    let audit = audit::Audit::new(dir.path(), "");
    let limits: enforce::Limits = todo!();
    let mut enforcer = enforce::Enforcer::new(
        limits,
        Duration::from_secs(5),
        dir.path(),
        sources.procfs().clone(),
        audit,
        channels,
        first.wall,
    );
    let inbox = control::listen(&dir).unwrap();
    loop {
        let snapshot = sources.observe();
        enforcer.report_lost(&std::mem::take(&mut lost), &snapshot);
        let step = policy::step(&rules, &snapshot, &state);
        enforcer.state_was_saved(store.save(&step.state));
        let outcomes = enforcer.carry_out(&step.verdicts, &snapshot, &mut sources);
        state = policy::settle(step.state, &outcomes, sources.now());
        enforcer.state_was_saved(store.save(&state));
        let _ = (enforcer.pauses(), enforcer.fuses(), enforcer.unkillable(), enforcer.channels().tally());
        if let Ok(asked) = inbox.recv_timeout(Duration::from_secs(5)) {
            let came = match asked.what {
                control::Reset::Pins => sources.reset_pins().map_err(|error| error.to_string()),
                control::Reset::Fuses => enforcer.reset_fuses(&snapshot).map_err(|error| error.to_string()),
            };
            asked.answer(came);
        }
        enforcer.reload(limits.clone(), Duration::ZERO, &snapshot);
        control::ask(dir.path(), control::Reset::Pins).unwrap();
    }
}
