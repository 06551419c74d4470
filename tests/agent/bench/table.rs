//! What was measured, as Markdown.

use std::fmt::Write;
use std::time::Duration;

use super::{Measured, Resident, Row};

/// Of the issue: a scrape within so many times the static server's, the memory at 128 processes in KiB, its growth for
/// each process in KiB, and how much more CPU nvitop-exporter takes.
const SCRAPE: f64 = 1.5;
const CYCLE: f64 = 1.0;
const RESIDENT: f64 = 10.0 * 1024.0;
const GROWTH: f64 = 4.0;
const LESS_CPU: f64 = 20.0;

pub fn of_a_size(measured: &Measured) -> String {
    let mut text = format!("### {}\n\n", measured.size);
    let [first, last] = measured.exporters[0].resident.map(|(age, _)| seconds(age));
    writeln!(
        text,
        "| | scrapes | scrape median | p99 | kept open | page | CPU a second | CPU a scrape | resident at {first} | at {last} |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    )
    .unwrap();
    for row in &measured.exporters {
        text += &line(measured, row);
    }
    text += &line(measured, &measured.static_server);
    let bare_loop = per_second(measured, measured.bare_loop);
    let [first, last] = measured.bare_loop_resident.map(mebibytes);
    writeln!(
        text,
        "| bare loop, the same calls and `/proc` reads | | | | | | {bare_loop:.2} ms | | {first} | {last} |"
    )
    .unwrap();

    let [driver, procfs] = measured.bare_loop_parts.map(|part| per_second(measured, part));
    let threads: Vec<String> = measured
        .threads
        .iter()
        .map(|(name, cpu)| (name, per_second(measured, *cpu)))
        .filter(|(_, cpu)| *cpu >= 0.005)
        .map(|(name, cpu)| format!("`{name}` {cpu:.2} ms"))
        .collect();
    writeln!(
        text,
        "\nScraped in turn for {}, left alone for {}. CPU a second by thread of gpuwarden: {}. Of the bare loop: \
         {} driver calls {driver:.2} ms, `/proc` {procfs:.2} ms.",
        seconds(measured.scraped),
        seconds(measured.alone),
        threads.join(", "),
        measured.calls,
    )
    .unwrap();
    text
}

fn line(measured: &Measured, row: &Row) -> String {
    let kept = if row.took_kept.is_empty() { String::new() } else { milliseconds(at(&row.took_kept, 0.5)) };
    let [first, last] = row.resident.map(mebibytes);
    format!(
        "| {} | {} | {} | {} | {kept} | {:.1} kB | {:.2} ms | {:.2} ms | {first} | {last} |\n",
        row.name,
        row.took.len(),
        milliseconds(at(&row.took, 0.5)),
        milliseconds(at(&row.took, 0.99)),
        row.page as f64 / 1000.0,
        per_second(measured, row.cpu.alone),
        per_scrape(measured, row),
    )
}

/// What was to be reached, with what was, a column for each size.
pub fn of_the_aims(measured: &[Measured]) -> String {
    let mut text = String::from("### gpuwarden and its aims\n\n| |");
    for size in measured {
        write!(text, " {} |", size.size).unwrap();
    }
    text += &format!("\n|---|{}\n", "---|".repeat(measured.len()));
    let ours = |measured: &Measured| at(&measured.exporters[0].took, 0.5).as_secs_f64();
    aim(&mut text, measured, "scrape ÷ static server, at most 1.5", |it, _| {
        let ratio = ours(it) / at(&it.static_server.took, 0.5).as_secs_f64();
        Some((format!("{ratio:.2}"), ratio <= SCRAPE))
    });
    aim(&mut text, measured, "kept open: scrape ÷ static server, at most 1.5", |it, _| {
        let median = |row: &Row| at(&row.took_kept, 0.5).as_secs_f64();
        let ratio = median(&it.exporters[0]) / median(&it.static_server);
        Some((format!("{ratio:.2}"), ratio <= SCRAPE))
    });
    aim(&mut text, measured, "cycle ÷ bare loop, at most 1", |it, _| {
        let ratio = it.exporters[0].cpu.alone.as_secs_f64() / it.bare_loop.as_secs_f64();
        Some((format!("{ratio:.2}"), ratio <= CYCLE))
    });
    aim(&mut text, measured, "resident at 128 processes, at most 10 MiB", |it, _| {
        let kib = resident(it);
        (it.size.processes == 128).then(|| (format!("{:.1} MiB", kib / 1024.0), kib <= RESIDENT))
    });
    aim(&mut text, measured, "more memory for each process beyond 128, less than 4 KiB", |it, all| {
        // The first ones bring code into memory that was not needed before. Sixteen cards against eight count as growth, too.
        let first = all.iter().find(|it| it.size.processes == 128)?;
        let beyond = it.size.processes.checked_sub(128).filter(|beyond| *beyond > 0)?;
        let more = (resident(it) - resident(first)) / beyond as f64;
        Some((format!("{more:.1} KiB"), more < GROWTH))
    });
    aim(&mut text, measured, "CPU of nvitop-exporter ÷ ours, at least 20", |it, _| {
        let [ours, theirs] = [0, 1].map(|index| per_second(it, it.exporters[index].cpu.alone));
        Some((format!("{:.1}", theirs / ours), theirs / ours >= LESS_CPU))
    });
    aim(&mut text, measured, "the same with a scrape a second", |it, _| {
        let [ours, theirs] = [0, 1].map(|index| &it.exporters[index]);
        let [ours, theirs] = [ours, theirs].map(|row| per_second(it, row.cpu.alone) + per_scrape(it, row));
        Some((format!("{:.1}", theirs / ours), theirs / ours >= LESS_CPU))
    });
    text
}

/// A row of it; `None` where the aim says nothing of a size.
fn aim(
    text: &mut String,
    measured: &[Measured],
    what: &str,
    reached: impl Fn(&Measured, &[Measured]) -> Option<(String, bool)>,
) {
    write!(text, "| {what} |").unwrap();
    for it in measured {
        match reached(it, measured) {
            Some((value, true)) => write!(text, " {value} |").unwrap(),
            Some((value, false)) => write!(text, " **{value}** |").unwrap(),
            None => *text += " |",
        }
    }
    *text += "\n";
}

/// At the end, in KiB.
fn resident(measured: &Measured) -> f64 {
    measured.exporters[0].resident[1].1 as f64
}

/// In milliseconds.
fn per_second(measured: &Measured, cpu: Duration) -> f64 {
    cpu.as_secs_f64() * 1e3 / measured.alone.as_secs_f64()
}

/// What the spans with scrapes took beyond those without, in milliseconds. Noise may make it less than nothing.
fn per_scrape(measured: &Measured, row: &Row) -> f64 {
    let alone = row.cpu.alone.as_secs_f64() * measured.scraped.as_secs_f64() / measured.alone.as_secs_f64();
    (row.cpu.scraped.as_secs_f64() - alone) * 1e3 / row.took.len() as f64
}

/// Of sorted times.
fn at(took: &[Duration], share: f64) -> Duration {
    took[((took.len() - 1) as f64 * share).round() as usize]
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn mebibytes((_, kib): Resident) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}

/// In whole minutes where it is some.
fn seconds(time: Duration) -> String {
    let whole = time.as_secs_f64().round() as u64;
    if whole >= 60 { format!("{}m{:02}s", whole / 60, whole % 60) } else { format!("{whole}s") }
}
