//! The least that a look at the GPUs can cost: at each interval the calls that the agent was seen to make, and the files of
//! the processes that they list. Nothing is kept, compared, judged or published.
//!
//! `bare-loop CALLS LIBRARY REPORT INTERVAL`: the calls as the simulated driver wrote them down, its library, a file in which
//! stand the CPU time in nanoseconds that went into the driver and into `/proc` so far, how many processes the last
//! cycle saw and how many of its calls had no answer, and the interval in milliseconds.

mod script;
mod driver;
mod procfs;

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use rustix::time::{ClockId, clock_gettime};

use driver::Driver;
use procfs::Procfs;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [calls, library, report, interval] = arguments.as_slice() else {
        return Err("bare-loop CALLS LIBRARY REPORT INTERVAL".into());
    };
    let interval = Duration::from_millis(interval.parse()?);
    let cycles = script::parse(&fs::read_to_string(calls)?)?;
    let mut driver = Driver::load(library, cycles.iter().flatten())?;
    let procfs = Procfs::open()?;
    let report = File::create(report)?;

    let (mut of_driver, mut of_procfs) = (Duration::ZERO, Duration::ZERO);
    let mut next = Instant::now();
    for cycle in cycles.iter().cycle() {
        let began = cpu();
        cycle.iter().for_each(|call| driver.make(call));
        let told = cpu();
        let mut alive = 0;
        for pid in driver.listed() {
            alive += usize::from(procfs.visit(pid)?);
        }
        (of_driver, of_procfs) = (of_driver + (told - began), of_procfs + (cpu() - told));
        // As wide in every cycle, so that no rest of the line before remains.
        let line =
            format!("{:20} {:20} {alive:20} {:20}\n", of_driver.as_nanos(), of_procfs.as_nanos(), driver.refused);
        report.write_all_at(line.as_bytes(), 0)?;
        next += interval;
        sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// What this thread has had of the CPU.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
