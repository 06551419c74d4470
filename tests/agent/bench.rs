//! What the agent costs beside other exporters and beside the floors, on the same simulated driver in one run:
//! `tests/bench`, which says what it can be told.
//!
//! All run at once and look once a second. They are scraped in turn, so that what else the machine does hits all alike.
//! Spans in which they are scraped alternate with as long ones in which they are left alone: the CPU time of the latter
//! is that of the cycles, and what the former take beyond it that of the scrapes.

use std::env;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

mod node;
mod program;
mod scrape;
mod exporters;
mod floors;
mod table;

use exporters::Exporter;
use floors::{BareLoop, Calls, Report};
use node::{Loaded, Size};
use program::Program;

use crate::harness::wait::eventually;
use crate::peers::Library;

const SIZES: [Size; 4] = [Size::new(8, 0), Size::new(8, 128), Size::new(8, 512), Size::new(16, 1000)];

/// Between two looks of everybody.
const INTERVAL: Duration = Duration::from_secs(1);
/// Between two rounds of scrapes, in which the exporters get to their cycles.
const PAUSE: Duration = Duration::from_millis(20);
/// Who takes longer is asked in one of so many rounds.
const SLOW: Duration = Duration::from_millis(20);
const SLOW_ROUNDS: u32 = 9;
/// Questions on a connection that stays open.
const KEPT: usize = 200;
/// How often a soaking exporter is scraped.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

/// What `tests/bench` was told.
struct Settings {
    /// How long an exporter has run when its memory is read for the last time.
    soak: Duration,
    /// A span with scrapes, and one without.
    span: Duration,
    spans: u32,
    all_smi: Option<PathBuf>,
}

impl Settings {
    fn told() -> Self {
        let quick = env::var_os("BENCH_QUICK").is_some();
        let soak = env::var("BENCH_SOAK").ok().map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
        Self {
            soak: soak.unwrap_or(if quick { Duration::ZERO } else { 2 * MINUTE }),
            span: Duration::from_secs(if quick { 5 } else { 10 }),
            spans: if quick { 1 } else { 3 },
            all_smi: env::var_os("BENCH_ALL_SMI").map(PathBuf::from),
        }
    }

    /// How long a size may take, with a wide margin.
    fn life(&self) -> Duration {
        self.soak + self.span * self.spans * 2 + 20 * MINUTE
    }
}

/// What a program cost in the spans, in total.
#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    alone: Duration,
    scraped: Duration,
}

/// What an exporter was seen to do at one size.
struct Row {
    name: String,
    took: Vec<Duration>,
    took_kept: Vec<Duration>,
    page: usize,
    cpu: Cpu,
    resident: [Resident; 2],
}

/// One size.
struct Measured {
    size: Size,
    /// How long all were left alone.
    alone: Duration,
    /// How long they were scraped.
    scraped: Duration,
    /// Ours, then the others.
    exporters: Vec<Row>,
    static_server: Row,
    bare_loop: Duration,
    /// Most of it is the simulated driver, which every exporter has loaded.
    bare_loop_resident: [Resident; 2],
    calls: usize,
    /// What it spent on the driver, and on `/proc`, while all were left alone.
    bare_loop_parts: [Duration; 2],
    threads: Vec<(String, Duration)>,
}

#[test]
#[ignore = "a benchmark: tests/bench"]
fn bench() {
    let settings = Settings::told();
    let library = Library::new();
    let one = env::var("BENCH_SIZE").ok();
    let measured: Vec<Measured> = SIZES
        .into_iter()
        .filter(|size| one.as_ref().is_none_or(|one| *one == size.short()))
        .map(|size| {
            eprintln!("{size} …");
            let measured = measure(size, &settings, &library);
            println!("\n{}", table::of_a_size(&measured));
            measured
        })
        .collect();
    assert!(!measured.is_empty(), "no size is {one:?}");
    println!("\n{}", table::of_the_aims(&measured));
}

fn measure(size: Size, settings: &Settings, library: &Library) -> Measured {
    let loaded = Loaded::new(size, INTERVAL, settings.life());
    let folder = tempfile::tempdir().unwrap();
    let calls = Calls::of_the_agent(&loaded, &folder);

    let mut exporters = vec![exporters::ours(&loaded), exporters::nvitop_exporter(&loaded, library)];
    exporters.extend(settings.all_smi.as_ref().map(|binary| exporters::all_smi(&loaded, library, binary, &folder)));
    // What is done once is done, and shares of time are known from the second look on.
    sleep(5 * INTERVAL);
    exporters[0].scrape();
    exporters.push(floors::static_server(&exporters[0].page, &folder));
    let bare_loop = BareLoop::start(&loaded, &calls, &folder);
    assert_eq!(bare_loop.report().processes, size.processes as u64, "the bare loop sees every process");
    sleep(2 * INTERVAL);
    exporters.iter_mut().for_each(|exporter| exporter.took.clear());

    let mut cpu = vec![Cpu::default(); exporters.len()];
    let mut of_loop = Duration::ZERO;
    let mut parts = [Duration::ZERO; 2];
    let mut threads = Vec::new();
    let (mut alone, mut scraped) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..settings.spans {
        let before: Vec<Duration> = exporters.iter().map(|exporter| exporter.program.cpu()).collect();
        let (loop_before, report, our_threads) =
            (bare_loop.program.cpu(), bare_loop.report(), exporters[0].program.cpu_by_thread());
        let began = Instant::now();
        sleep(settings.span);
        alone += began.elapsed();
        for (cpu, (exporter, before)) in cpu.iter_mut().zip(exporters.iter().zip(&before)) {
            cpu.alone += exporter.program.cpu() - *before;
        }
        of_loop += bare_loop.program.cpu() - loop_before;
        add_parts(&mut parts, report, bare_loop.report());
        add_threads(&mut threads, our_threads, &exporters[0].program);

        let before: Vec<Duration> = exporters.iter().map(|exporter| exporter.program.cpu()).collect();
        let began = Instant::now();
        scrape_in_turn(&mut exporters, settings.span);
        scraped += began.elapsed();
        for (cpu, (exporter, before)) in cpu.iter_mut().zip(exporters.iter().zip(&before)) {
            cpu.scraped += exporter.program.cpu() - *before;
        }
    }
    // What the soak adds is not of these spans.
    let took: Vec<Vec<Duration>> = exporters.iter().map(|exporter| exporter.took.clone()).collect();
    keep_open(&mut exporters);
    let (resident, bare_loop_resident) = soak(&mut exporters, &bare_loop.program, settings.soak);

    let mut rows: Vec<Row> = exporters
        .into_iter()
        .zip(took)
        .zip(cpu)
        .zip(resident)
        .map(|(((exporter, took), cpu), resident)| Row {
            name: exporter.name,
            took: sorted(took),
            took_kept: sorted(exporter.took_kept),
            page: exporter.page.len(),
            cpu,
            resident,
        })
        .collect();
    let static_server = rows.pop().unwrap();
    Measured {
        size,
        alone,
        scraped,
        exporters: rows,
        static_server,
        bare_loop: of_loop,
        bare_loop_resident,
        calls: calls.number(),
        bare_loop_parts: parts,
        threads,
    }
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort();
    times
}

fn add_parts(parts: &mut [Duration; 2], before: Report, after: Report) {
    parts[0] += after.driver - before.driver;
    parts[1] += after.procfs - before.procfs;
}

fn add_threads(threads: &mut Vec<(String, Duration)>, before: Vec<(String, Duration)>, program: &Program) {
    for ((name, before), (_, after)) in before.into_iter().zip(program.cpu_by_thread()) {
        match threads.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += after - before,
            None => threads.push((name, after - before)),
        }
    }
}

/// One after the other, there and back: whoever is asked after a long answer finds the caches cold. Those that are slow
/// are asked in few of the rounds, lest all have few.
fn scrape_in_turn(exporters: &mut [Exporter], span: Duration) {
    let began = Instant::now();
    for round in 0.. {
        if began.elapsed() > span {
            return;
        }
        let slow = |exporter: &Exporter| exporter.took.last().is_some_and(|took| *took > SLOW);
        let mut asked: Vec<&mut Exporter> =
            exporters.iter_mut().filter(|exporter| round % SLOW_ROUNDS == 0 || !slow(exporter)).collect();
        if round % 2 == 1 {
            asked.reverse();
        }
        asked.into_iter().for_each(Exporter::scrape);
        sleep(PAUSE);
    }
}

/// Ours, the first, and the static server, the last, on connections that stay open.
fn keep_open(exporters: &mut [Exporter]) {
    let [ours, .., server] = exporters else { panic!("there are two at least") };
    let mut connections = [ours.keeps_open(), server.keeps_open()];
    for _ in 0..KEPT {
        for (exporter, connection) in [&mut *ours, &mut *server].into_iter().zip(&mut connections) {
            exporter.took_kept.push(connection.scrape().unwrap_or_else(|error| panic!("{}: {error}", exporter.name)));
        }
    }
}

/// Resident memory in KiB, after so long.
type Resident = (Duration, u64);

/// After a minute, or halfway if that is sooner, and at the end: of each exporter, and of the loop, which is as old.
fn soak(exporters: &mut [Exporter], bare_loop: &Program, soak: Duration) -> (Vec<[Resident; 2]>, [Resident; 2]) {
    let mut scraped_until = |at: Duration| -> Vec<Resident> {
        while exporters.iter().any(|exporter| exporter.began.elapsed() < at) {
            sleep(SCRAPE_INTERVAL);
            exporters.iter_mut().for_each(Exporter::scrape);
        }
        let age = exporters[0].began.elapsed();
        let all = exporters.iter().map(|exporter| (exporter.began.elapsed(), &exporter.program));
        all.chain([(age, bare_loop)]).map(|(age, program)| (age, program.resident().unwrap())).collect()
    };
    let first = scraped_until(MINUTE.min(soak / 2));
    let last = scraped_until(soak);
    let mut resident: Vec<_> = first.into_iter().zip(last).map(|(first, last)| [first, last]).collect();
    let of_the_loop = resident.pop().expect("it is the last");
    (resident, of_the_loop)
}

#[test]
fn the_bare_loop_makes_every_call_that_the_agent_makes_and_sees_every_process() {
    let loaded = Loaded::new(Size::new(2, 3), Duration::from_millis(200), 2 * MINUTE);
    let folder = tempfile::tempdir().unwrap();
    let agent = Calls::of_the_agent(&loaded, &folder);
    // More than who is there and who is on it: values of both cards.
    assert!(agent.number() > 40, "{:?}", agent.0);
    assert_eq!(Calls::of_the_loop(&loaded, &agent, &folder).0, agent.as_seen_again());
    let bare_loop = BareLoop::start(&loaded, &agent, &folder);
    // In the first cycle there is only one sample of GPM.
    let report = eventually("every call has an answer", || Some(bare_loop.report()).filter(|it| it.refused == 0));
    assert_eq!(report.processes, 3);
    assert!(report.driver > Duration::ZERO && report.procfs > Duration::ZERO, "{report:?}");
}

#[test]
fn the_bare_loop_knows_calls_that_the_agent_makes_only_on_some_cards() {
    let loaded = Loaded::new(Size::new(1, 1), Duration::from_millis(100), 2 * MINUTE);
    let folder = tempfile::tempdir().unwrap();
    let calls = [
        "nvmlDeviceGetCount_v2",
        "nvmlSystemGetDriverVersion",
        "nvmlEventSetWait_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetName 0",
        "nvmlDeviceGetMemoryInfo_v2 0",
        "nvmlDeviceGetRetiredPages 0",
        "nvmlDeviceGetRetiredPages 0",
        "nvmlDeviceGetSamples 0",
        "nvmlDeviceGetNvLinkErrorCounter 0",
        "nvmlDeviceGetMemoryErrorCounter 0",
        "nvmlDeviceGetProcessUtilization 0",
        "nvmlDeviceGetProcessUtilization 0",
        "nvmlDeviceGetFieldValues 0",
        "\t83 82 197",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleGet 0",
        "nvmlGpmMetricsGet",
        "\t1 2 10",
        "nvmlGpmSampleFree",
    ];
    let script = Calls(vec![calls.map(|line| format!("{line}\n")).concat()]);
    let made = Calls::of_the_loop(&loaded, &script, &folder);
    assert_eq!(made.0[0], script.0[0]);
    let bare_loop = BareLoop::start(&loaded, &script, &folder);
    // In the first cycle there is only one sample of GPM.
    eventually("every call has an answer", || (bare_loop.report().refused == 0).then_some(()));
}

#[test]
fn a_call_that_the_bare_loop_does_not_know_is_refused() {
    let loaded = Loaded::new(Size::new(1, 0), INTERVAL, MINUTE);
    let folder = tempfile::tempdir().unwrap();
    let calls = Calls(vec!["nvmlDeviceGetCount_v2\nnvmlDeviceGetSomethingNew 0\n".into()]);
    assert_eq!(
        floors::complaint(&loaded, &calls, &folder).trim(),
        r#"Error: "the bare loop does not know how to call nvmlDeviceGetSomethingNew: see SHAPES""#
    );
}

#[test]
fn a_call_to_which_the_driver_has_no_answer_is_counted() {
    let loaded = Loaded::new(Size::new(1, 0), INTERVAL, MINUTE);
    let folder = tempfile::tempdir().unwrap();
    let cards = "nvmlDeviceGetCount_v2\nnvmlDeviceGetHandleByIndex_v2\n";
    // The card has no fans.
    let calls = Calls(vec![format!("{cards}nvmlDeviceGetName 0\nnvmlDeviceGetNumFans 0\n")]);
    assert_eq!(BareLoop::start(&loaded, &calls, &folder).report().refused, 1);
}
