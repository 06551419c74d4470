//! The command `status`: who holds what, who may, and what is pending, of an agent that runs.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use crate::causes::chain;
use crate::http::client::{self, Client, Target};
use crate::http::view::{Card, CardRight, Instance, Next, View, Violation};
use crate::text::{cleaned, misleads};
use crate::units::{Bytes, Percent, Span};

const PATH: &str = "/api/v1/status";

/// Clears the screen and goes to its beginning (ECMA-48).
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    Table,
    Json,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Agent(#[from] client::Error),
    #[error("the agent speaks another version of the status than this command")]
    Version(#[source] serde_json::Error),
    #[error("cannot write")]
    Write(#[source] io::Error),
}

/// Prints the status once, or again and again until it is interrupted.
pub fn run(target: &Target, watch: bool, output: Output, out: &mut impl Write) -> Result<(), Error> {
    let client = Client::new(target)?;
    loop {
        match (show(&client, output), watch) {
            (Ok((text, interval)), true) => {
                if !print(out, &if output == Output::Table { format!("{CLEAR}{text}") } else { text })? {
                    return Ok(());
                }
                thread::sleep(interval);
            }
            (Ok((text, _)), false) => return print(out, &text).map(|_| ()),
            // Who watches wants to see the agent come back.
            (Err(error), true) => {
                if !print(out, &format!("{CLEAR}{}\n", chain(&error)))? {
                    return Ok(());
                }
                thread::sleep(Duration::from_secs(5));
            }
            (Err(error), false) => return Err(error),
        }
    }
}

/// What is to be printed, and how long it is good for.
fn show(client: &Client, output: Output) -> Result<(String, Duration), Error> {
    let body = client.get(PATH)?;
    let view: View = serde_json::from_str(&body).map_err(Error::Version)?;
    let interval = Duration::try_from_secs_f64(view.interval_seconds.clamp(1.0, 3600.0));
    let text = match output {
        Output::Table => table(&view),
        Output::Json => json(&body),
    };
    Ok((text, interval.unwrap_or(Duration::from_secs(5))))
}

/// Whether somebody still reads.
fn print(out: &mut impl Write, text: &str) -> Result<bool, Error> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // `status | head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(Error::Write),
    }
}

/// As the agent sent it; what could mislead a terminal stands inside strings, where JSON has escapes for it.
fn json(body: &str) -> String {
    let mut text = String::with_capacity(body.len() + 1);
    for c in body.chars() {
        if misleads(c) && c != '\n' {
            let units = &mut [0; 2];
            c.encode_utf16(units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        } else {
            text.push(c);
        }
    }
    text + "\n"
}

pub fn table(view: &View) -> String {
    let mut text = heading(view);
    text += &section(&["GPU", "MODEL", "BUSY", "MEMORY", "TEMP", "POWER", "MAY USE"], view.cards.iter().map(card));
    text += &section(&["GPU", "INSTANCE", "PROFILE", "BUSY", "MEMORY"], view.cards.iter().flat_map(instances));
    let held = view.cards.iter().flat_map(holders);
    text += &section(&["GPU", "USER", "PID", "COMMAND", "MEMORY", "BUSY", "AGE", "ASSIGNED"], held);
    text += &unknown_holders(view);
    text += &section(&["RULE", "USER", "SUBJECT", "STATE", "RUNG", "NEXT"], view.violations.iter().map(violation));
    text
}

fn heading(view: &View) -> String {
    let driver = known(view.driver_version.as_deref());
    let at = view.at.strftime("%Y-%m-%d %H:%M:%SZ");
    let mut text = format!("{}  {at}  driver {}  mode {}\n", clean(&view.host), clean(&driver), clean(&view.mode));
    let mut say = |what: &str, text_of: &str| text += &format!("{what}: {}\n", clean(text_of));
    if let Some(fault) = &view.driver_fault {
        say("the driver shows no cards", fault);
    }
    if let Some(failure) = &view.reload_failure {
        say("the configuration was not read again, the old one is in force", failure);
    }
    if !view.pauses.is_empty() {
        say("nothing is signalled now", &view.pauses.join("; "));
    }
    if !view.fuses_blown.is_empty() {
        say("blown fuses", &view.fuses_blown.join(", "));
    }
    for source in &view.sources {
        let names = source.unresolved_names.as_deref().filter(|names| !names.is_empty());
        if let Some(names) = names {
            say(&format!("{} names whom or what nobody knows now", clean(&source.source)), &names.join(", "));
        }
        // The driver's own fault stands above.
        if let Some(fault) = source.fault.as_ref().filter(|fault| view.driver_fault.as_ref() != Some(*fault)) {
            say(&format!("{} is silent", clean(&source.source)), fault);
        }
    }
    text
}

fn card(card: &Card) -> Vec<String> {
    let busy = match &card.fault {
        Some(fault) => fault.clone(),
        // Its instances are busy, or not.
        None if card.mig == Some(true) => "MIG".to_owned(),
        None => known(card.utilization.map(percent)),
    };
    let rights: Vec<String> = card.rights.iter().map(CardRight::name).collect();
    let rights = match (rights.is_empty(), card.rights_known) {
        (true, true) => "nobody".to_owned(),
        (true, false) => "?".to_owned(),
        (false, true) => rights.join(", "),
        (false, false) => format!("{}, ?", rights.join(", ")),
    };
    vec![
        card.index.to_string(),
        known(card.model.as_deref()),
        busy,
        memory(card.memory_used, card.memory_total),
        known(card.temperature.map(|celsius| format!("{celsius:.0}C"))),
        known(card.power.map(|watts| format!("{watts:.0}W"))),
        rights,
    ]
}

fn memory(used: Option<u64>, total: Option<u64>) -> String {
    match (used, total) {
        (Some(used), Some(total)) => format!("{} of {}", Bytes(used), Bytes(total)),
        (used, _) => known(used.map(Bytes)),
    }
}

fn instances(card: &Card) -> Vec<Vec<String>> {
    let row = |instance: &Instance| {
        vec![
            card.index.to_string(),
            instance.place.to_string(),
            known(instance.profile.as_deref()),
            known(instance.sm_active.map(percent)),
            memory(instance.memory_used, instance.memory_total),
        ]
    };
    card.instances.iter().map(row).collect()
}

fn holders(card: &Card) -> Vec<Vec<String>> {
    let of = card.holders.iter().flat_map(|holder| holder.processes.iter().map(move |process| (holder, process)));
    of.map(|(holder, process)| {
        vec![
            format!("{} {}", card.index, process.places()).trim_end().to_owned(),
            known(holder.user.as_deref()),
            process.pid.to_string(),
            known(process.command.as_deref()),
            known(process.memory.map(Bytes)),
            known(process.utilization.map(percent)),
            known(process.age_seconds.map(span)),
            known(process.assigned.map(|assigned| if assigned { "yes" } else { "NO" })),
        ]
    })
    .collect()
}

/// Where nobody is listed because nobody is known. What ails the whole card stands in its row.
fn unknown_holders(view: &View) -> String {
    let faults = view.cards.iter().filter(|card| card.holders_fault != card.fault);
    let faults = faults.filter_map(|card| Some((card.index, card.holders_fault.as_deref()?)));
    let lines: String =
        faults.map(|(index, fault)| format!("GPU {index}: who is on it is not known: {}\n", clean(fault))).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

fn violation(one: &Violation) -> Vec<String> {
    vec![
        one.rule.clone(),
        known(one.user.as_deref()),
        one.subject.clone(),
        one.state.clone(),
        format!("{}/{}", one.climbed, one.rungs),
        one.next.as_ref().map_or_else(|| "-".to_owned(), |next| countdown(next, one.is_rehearsed())),
    ]
}

fn countdown(next: &Next, rehearsed: bool) -> String {
    let left = span(next.in_seconds);
    let when = if next.due.is_some() { format!("in {left}") } else { format!("after {left} more of it") };
    let note = if rehearsed { ", rehearsed only" } else { "" };
    format!("{} {when}{note}", next.action)
}

fn percent(ratio: f64) -> Percent {
    Percent((ratio * 100.0).round())
}

/// The two largest units are enough to look at.
fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round();
    let coarse = if seconds >= 86_400.0 {
        seconds - seconds % 3_600.0
    } else if seconds >= 3_600.0 {
        seconds - seconds % 60.0
    } else {
        seconds
    };
    Duration::try_from_secs_f64(coarse).map_or_else(|_| "?".to_owned(), |span| Span(span).to_string())
}

fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| value.to_string())
}

/// A table with its heading, after an empty line; nothing where there are no rows.
fn section(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let all = || std::iter::once(&heading).chain(&rows);
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).fold(0, usize::max))
        .collect();
    all().fold("\n".to_owned(), |text, row| text + &line(row, &widths))
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
    format!("{}\n", cells.join("  ").trim_end())
}

/// Text that came from a process must not move the cursor, nor look like another line.
fn clean(text: &str) -> String {
    cleaned(text, char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use expect_test::expect_file;
    use tokio::sync::watch;

    use super::*;
    use crate::cycle::fixture;
    use crate::http::{Listener, Published, Server};

    #[test]
    fn the_table_is_as_expected() {
        expect_file!["../tests/golden/status.txt"].assert_eq(&table(&View::of(&fixture::cycle())));
    }

    #[test]
    fn a_card_whose_holders_are_unknown_is_not_shown_as_a_free_one() {
        let mut view = View::of(&fixture::cycle());
        let before = table(&view);
        assert!(!before.contains("is not known"), "{before}");
        view.cards[1].holders_fault = Some("Not Supported\n".into());
        let after = table(&view);
        assert!(after.contains("\n\nGPU 1: who is on it is not known: Not Supported\u{fffd}\n\nRULE"), "{after}");
        view.cards[1].fault = view.cards[1].holders_fault.clone();
        assert!(!table(&view).contains("is not known"));
    }

    fn at(url: &str) -> Target {
        let (ca_file, server_name, cert_file, key_file, user, password_file) = (None, None, None, None, None, None);
        Target { url: url.to_owned(), ca_file, server_name, cert_file, key_file, user, password_file }
    }

    #[test]
    fn a_running_agent_is_asked() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let Listener::Tcp(tcp) = &listener else { panic!("not TCP") };
        let url = format!("http://{}", tcp.local_addr().unwrap());
        let published = Published::new(Arc::new(fixture::cycle()));
        let (_sender, receiver) = watch::channel(Arc::new(published));
        let _server = Server::start(vec![listener], receiver, None, None).unwrap();

        let mut printed = Vec::new();
        run(&at(&url), false, Output::Table, &mut printed).unwrap();
        assert_eq!(String::from_utf8(printed).unwrap(), table(&View::of(&fixture::cycle())));

        let mut printed = Vec::new();
        run(&at(&url), false, Output::Json, &mut printed).unwrap();
        assert_eq!(serde_json::from_slice::<View>(&printed).unwrap(), View::of(&fixture::cycle()));
    }

    #[test]
    fn who_watches_no_longer_is_no_longer_told() {
        struct Gone;

        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        run(&at(&format!("http://{free}")), true, Output::Table, &mut Gone).unwrap();
    }

    #[test]
    fn without_an_agent_the_error_says_where_it_was_sought() {
        // A port that was free a moment ago.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = run(&at(&format!("http://{free}")), false, Output::Table, &mut io::sink()).unwrap_err();
        let said = chain(&error);
        assert!(
            said.contains(&format!("cannot reach an agent at http://{free}; is `gpuwarden serve` running")),
            "{said}"
        );
        assert!(said.contains("refused"), "{said}");
    }

    #[test]
    fn nothing_that_is_printed_moves_the_cursor() {
        assert_eq!(clean("a\u{1b}[2J\r\nb\u{202e}c\u{9b}"), "a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}c\u{fffd}");
        assert_eq!(json("{\"a\":\"\u{9b}\u{202e}训\"}"), "{\"a\":\"\\u009b\\u202e训\"}\n");
        let tagged = "\"\u{e0041}\"";
        assert_eq!(json(tagged), "\"\\udb40\\udc41\"\n");
        assert_eq!(serde_json::from_str::<String>(&json(tagged)).unwrap(), "\u{e0041}");
    }
}
