//! The page for people: no script, refreshes itself, every text escaped.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use jiff::Timestamp;

use super::view::{Action, Card, CardRight, Deed, Holder, Next, Process, SourceState, View, Violation};
use crate::cycle::Build;
use crate::text::misleads;
use crate::units::{Bytes, Percent, Span};

/// Text from anywhere, safe in HTML between tags and inside double quotes. Control characters, and those that turn the
/// direction of writing, could make a line say what it does not.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c if misleads(c) => f.write_char(char::REPLACEMENT_CHARACTER),
            c => f.write_char(c),
        })
    }
}

/// Something that may be unknown.
struct Known<T>(Option<T>);

impl<T: Display> Display for Known<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("<i>unknown</i>"),
        }
    }
}

/// Several pieces, one after the other.
struct Each<I, F>(I, F);

impl<I: Clone + IntoIterator, D: Display, F: Fn(I::Item) -> D> Display for Each<I, F> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.clone().into_iter().try_for_each(|item| (self.1)(item).fmt(f))
    }
}

const STYLE: &str = "
:root{color-scheme:light dark;--line:#8883;--bar:#4a8f3c;--bad:#c0392b;--soon:#b9770e}
body{font:15px/1.45 system-ui,sans-serif;max-width:76rem;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.3rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .5rem}
p.sub,.dim{color:GrayText}p.alarm{border-left:4px solid var(--bad);padding:.3rem .8rem}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(22rem,1fr));gap:.8rem}
.card{border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem}.card.lost{border-color:var(--bad)}
.card h3{margin:0 0 .3rem;font-size:1rem}.card h3 small{font-weight:normal;color:GrayText}
.bar{height:.5rem;background:var(--line);border-radius:3px;overflow:hidden;margin:.1rem 0 .3rem}
.bar span{display:block;height:100%;background:var(--bar)}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem .2rem 0;vertical-align:top}
th{font-weight:600;border-bottom:1px solid var(--line)}td.n,th.n{text-align:right}
.no,.critical{color:var(--bad)}.warning{color:var(--soon)}
";

/// Before the first cycle there is only a word to say.
pub fn render(view: Option<&View>) -> String {
    match view {
        Some(view) => whole(&view.host, view.interval_seconds, &Body(view)),
        None => whole("gpuwarden", 2.0, &Before),
    }
}

/// What else there is, as the page of every exporter says.
const LINKS: &str = "<a href=\"/metrics\">/metrics</a> &middot; <a href=\"/api/v1/status\">/api/v1/status</a> &middot; \
                     <a href=\"/-/healthy\">/-/healthy</a> &middot; <a href=\"/-/ready\">/-/ready</a>";

struct Before;

impl Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let version = Text(Build::THIS.version);
        writeln!(
            f,
            "<h1>gpuwarden</h1>\n<p class=\"sub\">gpuwarden {version} &middot; {LINKS}</p>\n<p>No cycle has ended yet.</p>"
        )
    }
}

fn whole(title: &str, refresh: f64, body: &impl Display) -> String {
    let title = Text(title);
    // More often nobody could read it, or select text in it.
    let refresh = refresh.ceil().max(5.0);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"refresh\" content=\"{refresh}\"><title>{title} GPUs</title>\
         <style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
}

struct Body<'a>(&'a View);

impl Display for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let view = self.0;
        heading(f, view)?;
        alarms(f, view)?;
        write!(f, "<h2>Cards</h2>\n<div class=\"cards\">\n{}</div>\n", Each(&view.cards, CardBox))?;
        violations(f, view)?;
        recent(f, view)?;
        sources(f, view)
    }
}

fn heading(f: &mut fmt::Formatter, view: &View) -> fmt::Result {
    let driver = view.driver_version.as_deref().map(Text);
    writeln!(
        f,
        "<h1>{}</h1>\n<p class=\"sub\">{} &middot; driver {} &middot; mode {} &middot; gpuwarden {} &middot; \
         {LINKS}</p>",
        Text(&view.host),
        moment(view.at),
        Known(driver),
        Text(&view.mode),
        Text(&view.version),
    )
}

fn alarms(f: &mut fmt::Formatter, view: &View) -> fmt::Result {
    if let Some(fault) = &view.driver_fault {
        writeln!(f, "<p class=\"alarm\">The driver shows no cards: {}</p>", Text(fault))?;
    }
    if let Some(failure) = &view.reload_failure {
        writeln!(
            f,
            "<p class=\"alarm\">The configuration was not read again, the old one is in force: {}</p>",
            Text(failure)
        )?;
    }
    if !view.pauses.is_empty() {
        writeln!(f, "<p class=\"alarm\">Nothing is signalled now: {}</p>", Text(&view.pauses.join("; ")))?;
    }
    if !view.fuses_blown.is_empty() {
        writeln!(f, "<p class=\"alarm\">Blown fuses: {}</p>", Text(&view.fuses_blown.join(", ")))?;
    }
    Ok(())
}

struct CardBox<'a>(&'a Card);

impl Display for CardBox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let card = self.0;
        let class = if card.fault.is_some() { "card lost" } else { "card" };
        let model = card.model.as_deref().map(Text);
        writeln!(
            f,
            "<div class=\"{class}\"><h3>GPU {} <small title=\"{}\">{}</small></h3>",
            card.index,
            Text(&card.uuid),
            Known(model),
        )?;
        match &card.fault {
            Some(fault) => writeln!(f, "<p class=\"no\">does not answer: {}</p>", Text(fault))?,
            None => readings(f, card)?,
        }
        writeln!(f, "<div class=\"dim\">may use: {}</div></div>", Rights(&card.rights, card.rights_known))
    }
}

fn readings(f: &mut fmt::Formatter, card: &Card) -> fmt::Result {
    let filled = card.memory_used.zip(card.memory_total).filter(|(_, total)| *total > 0);
    let filled = filled.map(|(used, total)| used as f64 / total as f64);
    let line =
        [card.temperature.map(|celsius| format!("{celsius:.0} °C")), card.power.map(|watts| format!("{watts:.0} W"))];
    let line = line.into_iter().flatten().collect::<Vec<_>>().join(" &middot; ");
    write!(
        f,
        "<div>busy {} <span class=\"dim\">{line}</span></div>{}",
        Known(card.utilization.map(share)),
        Bar(card.utilization)
    )?;
    write!(
        f,
        "<div>memory {} of {}</div>{}",
        Known(card.memory_used.map(Bytes)),
        Known(card.memory_total.map(Bytes)),
        Bar(filled),
    )?;
    match &card.holders_fault {
        Some(fault) => writeln!(f, "<p class=\"no\">who is on it is not known: {}</p>", Text(fault)),
        None if card.holders.is_empty() => writeln!(f, "<p>free</p>"),
        None => writeln!(f, "<table>{}</table>", Each(&card.holders, HolderRows)),
    }
}

/// Nothing at all where the share is not known.
struct Bar(Option<f64>);

impl Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Some(share) = self.0 else { return Ok(()) };
        let width = share.clamp(0.0, 1.0) * 100.0;
        write!(f, "<div class=\"bar\"><span style=\"width:{width:.0}%\"></span></div>")
    }
}

struct HolderRows<'a>(&'a Holder);

impl Display for HolderRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let holder = self.0;
        let user = holder.user.as_deref().map(Text);
        let memory = holder.memory.map(Bytes);
        write!(f, "<tr><th>{}</th><th></th><th class=\"n\">{}</th></tr>", Known(user), Known(memory))?;
        holder.processes.iter().try_for_each(|process| process_row(f, process))
    }
}

fn process_row(f: &mut fmt::Formatter, process: &Process) -> fmt::Result {
    let mark = if process.assigned == Some(false) { " <b class=\"no\">not assigned</b>" } else { "" };
    let age = process.age_seconds.map(span);
    writeln!(
        f,
        "<tr><td>{} <span class=\"dim\">{}</span>{mark}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
        Known(process.command.as_deref().map(Text)),
        process.pid,
        Known(age),
        Known(process.memory.map(Bytes)),
    )
}

/// And whether all of them are known.
struct Rights<'a>(&'a [CardRight], bool);

impl Display for Rights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(if self.1 { "nobody" } else { "not known" });
        }
        for (number, right) in self.0.iter().enumerate() {
            f.write_str(if number > 0 { ", " } else { "" })?;
            write!(f, "{} ({})", Text(&right.name()), Text(&right.source))?;
            if let Some(until) = right.until {
                write!(f, " until {}", moment(until))?;
            }
        }
        f.write_str(if self.1 { "" } else { ", and perhaps others" })
    }
}

fn violations(f: &mut fmt::Formatter, view: &View) -> fmt::Result {
    if view.violations.is_empty() {
        return writeln!(f, "<h2>Violations</h2>\n<p>None.</p>");
    }
    writeln!(
        f,
        "<h2>Violations</h2>\n<table><tr><th>rule</th><th>who</th><th>what</th><th>since</th><th>state</th>\
         <th>next</th></tr>\n{}</table>",
        Each(&view.violations, ViolationRow),
    )
}

struct ViolationRow<'a>(&'a Violation);

impl Display for ViolationRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let one = self.0;
        writeln!(
            f,
            "<tr><td class=\"{}\" title=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} {}/{}</td><td>{}{}</td></tr>",
            Text(&one.severity),
            Text(&one.description),
            Text(&one.rule),
            Known(one.user.as_deref().map(Text)),
            Text(&one.subject),
            Known(one.since.map(moment)),
            Text(&one.state),
            one.climbed,
            one.rungs,
            Countdown(one),
            Each(&one.done, DeedLine),
        )
    }
}

/// What this cycle came to, under what comes next.
struct DeedLine<'a>(&'a Deed);

impl Display for DeedLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Deed { action, pid, outcome, detail } = self.0;
        let why = Why(detail.as_deref());
        write!(f, "<br><span class=\"dim\">{}{} {}{why}</span>", Text(action), To(*pid), Text(outcome))
    }
}

/// The target of an act; messages have none.
struct To(Option<i32>);

impl Display for To {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(f, " to {pid}"))
    }
}

struct Why<'a>(Option<&'a str>);

impl Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.map_or(Ok(()), |why| write!(f, ": {}", Text(why)))
    }
}

struct Countdown<'a>(&'a Violation);

impl Display for Countdown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Some(Next { action, in_seconds, due, .. }) = &self.0.next else { return f.write_str("&ndash;") };
        let left = span(*in_seconds);
        let mode = if self.0.is_rehearsed() { ", rehearsed only" } else { "" };
        match due {
            Some(_) => write!(f, "{} in {left}{mode}", Text(action)),
            None => write!(f, "{} after {left} more of it{mode}", Text(action)),
        }
    }
}

fn recent(f: &mut fmt::Formatter, view: &View) -> fmt::Result {
    if view.recent.is_empty() {
        return Ok(());
    }
    writeln!(
        f,
        "<h2>Recent actions</h2>\n<table><tr><th>when</th><th>rule</th><th>who</th><th>what</th><th>action</th>\
         <th>outcome</th></tr>\n{}</table>",
        Each(&view.recent, ActionRow),
    )
}

struct ActionRow<'a>(&'a Action);

impl Display for ActionRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Action { at, rule, subject, user, action, outcome, .. } = self.0;
        let times = if self.0.times > 1 { format!(" &times;{}", self.0.times) } else { String::new() };
        writeln!(
            f,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td><td>{}{}{}</td></tr>",
            moment(*at),
            Text(rule),
            Known(user.as_deref().map(Text)),
            Text(subject),
            Text(action),
            To(self.0.pid),
            Text(outcome),
            Why(self.0.detail.as_deref()),
            times,
        )
    }
}

fn sources(f: &mut fmt::Formatter, view: &View) -> fmt::Result {
    writeln!(f, "<h2>Sources</h2>\n<table>{}</table>", Each(&view.sources, SourceRow))
}

struct SourceRow<'a>(&'a SourceState);

impl Display for SourceRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let SourceState { source, fault, last_success, unresolved_names } = self.0;
        let state = match fault {
            Some(fault) => format!("<span class=\"no\">{}</span>", Text(fault)),
            None => "answers".to_owned(),
        };
        let names = match unresolved_names.as_deref() {
            None | Some([]) => String::new(),
            Some(names) => format!("users, groups or GPUs that nobody knows now: {}", Text(&names.join(", "))),
        };
        let last = last_success.map_or_else(|| "never".to_owned(), |at| moment(at).to_string());
        writeln!(f, "<tr><td>{}</td><td>{state}</td><td>{names}</td><td>{last}</td></tr>", Text(source))
    }
}

fn moment(at: Timestamp) -> impl Display {
    at.strftime("%Y-%m-%d %H:%M:%SZ")
}

fn share(ratio: f64) -> Percent {
    Percent((ratio * 100.0).round())
}

/// Whole seconds: nobody counts down the rest.
fn span(seconds: f64) -> Span {
    Span(Duration::try_from_secs_f64(seconds.max(0.0).round()).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;
    use crate::cycle::fixture;

    #[test]
    fn the_page_for_people_is_as_expected() {
        let view = View::of(&fixture::cycle());
        expect_file!["../../tests/golden/status.html"].assert_eq(&render(Some(&view)));
    }

    #[test]
    fn no_text_of_a_process_becomes_markup() {
        let view = View::of(&fixture::cycle());
        let page = render(Some(&view));
        assert!(!page.contains("<b>train</b>"), "{page}");
        assert_eq!(Text("<a href=\"'&\u{1b}[2J\u{202e}").to_string(), "&lt;a href=&quot;&#39;&amp;\u{fffd}[2J\u{fffd}");
    }

    #[test]
    fn before_the_first_cycle_the_page_says_so() {
        let page = render(None);
        assert!(page.contains("No cycle has ended yet") && page.contains(Build::THIS.version), "{page}");
    }

    #[test]
    fn the_page_leads_to_all_others() {
        for page in [render(None), render(Some(&View::of(&fixture::cycle())))] {
            for path in ["/metrics", "/api/v1/status", "/-/healthy", "/-/ready"] {
                assert!(page.contains(&format!("<a href=\"{path}\">")), "{path}");
            }
        }
    }
}
