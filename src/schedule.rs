//! Windows of the week and moments of the calendar, in their zone: `Mon-Fri 22:00-06:00 Asia/Shanghai`.

use std::fmt;

use jiff::civil::{DateTime, Weekday};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ZonedDateTime};

use crate::units::{Malformed, Scalar, read_as_scalar};

/// A window of the week by the wall clock of its zone, start included, end not. Over midnight it belongs to the day on
/// which it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    days: Days,
    hours: Option<Hours>,
    zone: Zone,
}

/// Days of the week, a bit for each, Monday first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Days(u8);

/// From and until a minute of the day; from the later to the earlier it goes over midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hours {
    from: u16,
    until: u16,
}

/// A zone and how it was written. Loaded when it is parsed: later changes of the system's tzdata need a reload.
#[derive(Clone, PartialEq)]
struct Zone {
    name: String,
    rules: TimeZone,
}

/// By name alone: a rule's meaning is a number over this, and must be the same in every process and with every tzdata.
impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Window {
    pub fn contains(&self, at: Timestamp) -> bool {
        let wall = self.zone.rules.to_datetime(at);
        let today = wall.weekday();
        let Some(Hours { from, until }) = self.hours else { return self.days.contains(today) };
        let minute = u16::from(wall.hour().unsigned_abs()) * 60 + u16::from(wall.minute().unsigned_abs());
        if from < until {
            self.days.contains(today) && (from..until).contains(&minute)
        } else {
            let began_today = self.days.contains(today) && minute >= from;
            let began_yesterday = self.days.contains(today.previous()) && minute < until;
            began_today || began_yesterday
        }
    }
}

impl Scalar for Window {
    const EXPECTED: &'static str = "a window of the week with its zone, such as \"Mon-Fri 22:00-06:00 Asia/Shanghai\"";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::new(text, Self::EXPECTED);
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let zone = words.pop().filter(|word| !is_hours(word)).ok_or_else(malformed)?;
        let hours = words.pop_if(|word| is_hours(word)).map(hours).transpose()?;
        let days = if words.is_empty() { Days::ALL } else { days(&words.concat())? };
        // `Mon-Fri` alone and `UTC` alone: one lacks its zone, the other says nothing.
        if words.is_empty() && hours.is_none() {
            return Err(malformed());
        }
        Ok(Self { days, hours, zone: zone.parse()? })
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.days != Days::ALL {
            write!(f, "{} ", self.days)?;
        }
        if let Some(Hours { from, until }) = self.hours {
            write!(f, "{:02}:{:02}-{:02}:{:02} ", from / 60, from % 60, until / 60, until % 60)?;
        }
        f.write_str(&self.zone.name)
    }
}

impl Days {
    const ALL: Self = Self(0x7f);
    const NAMES: [&'static str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

    fn contains(self, day: Weekday) -> bool {
        self.0 & 1 << day.to_monday_zero_offset() != 0
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let held = |day: usize| day < 7 && self.0 & 1 << day != 0;
        let mut separator = "";
        let mut day = 0;
        while day < 7 {
            let first = day;
            while held(day) {
                day += 1;
            }
            match day - first {
                0 => day += 1,
                1 => write!(f, "{separator}{}", Self::NAMES[first])?,
                _ => write!(f, "{separator}{}-{}", Self::NAMES[first], Self::NAMES[day - 1])?,
            }
            if day > first + 1 || held(first) {
                separator = ",";
            }
        }
        Ok(())
    }
}

/// `Mon-Fri`, `Sat,Sun`, `Fri-Mon`.
fn days(text: &str) -> Result<Days, Malformed> {
    let day = |name: &str| {
        let known = Days::NAMES.iter().position(|known| known.eq_ignore_ascii_case(name));
        known.ok_or_else(|| Malformed::new(name, "a day of the week: Mon, Tue, Wed, Thu, Fri, Sat or Sun"))
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut at, last) = (day(first)?, day(last)?);
        bits |= 1 << at;
        while at != last {
            at = (at + 1) % 7;
            bits |= 1 << at;
        }
    }
    Ok(Days(bits))
}

fn is_hours(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// `22:00-06:00`.
fn hours(text: &str) -> Result<Hours, Malformed> {
    let expected = "hours of the day, such as 09:00-18:00";
    let (from, until) = text.split_once('-').ok_or_else(|| Malformed::new(text, expected))?;
    let (from, until) = (minute_of_day(from)?, minute_of_day(until)?);
    if from == 24 * 60 {
        return Err(Malformed::new("24:00", "a start: a day begins at 00:00"));
    }
    if from == until {
        return Err(Malformed::new(text, "a window: its start is its end; a whole day is 00:00-24:00"));
    }
    Ok(Hours { from, until })
}

fn minute_of_day(text: &str) -> Result<u16, Malformed> {
    let part = |text: &str| {
        let digits = (1..=2).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        if digits { text.parse::<u16>().ok() } else { None }
    };
    text.split_once(':')
        .and_then(|(hour, minute)| Some((part(hour)?, if minute.len() == 2 { part(minute)? } else { None? })))
        .map(|(hour, minute)| (hour * 60 + minute, minute))
        .filter(|(sum, minute)| *minute < 60 && *sum <= 24 * 60)
        .map(|(sum, _)| sum)
        .ok_or_else(|| Malformed::new(text, "a time of day from 00:00 to 24:00"))
}

impl std::str::FromStr for Zone {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        let unknown = || {
            Malformed::new(name, "a time zone: an IANA name such as Asia/Shanghai, UTC, or an offset such as +08:00")
        };
        let rules = if name == "UTC" {
            TimeZone::UTC
        } else if name.starts_with(['+', '-']) {
            TimeZone::fixed(offset(name).ok_or_else(unknown)?)
        } else {
            // `localtime` is another zone on every node.
            TimeZone::get(name).ok().filter(|zone| !zone.is_unknown() && name != "localtime").ok_or_else(unknown)?
        };
        Ok(Self { name: name.to_owned(), rules })
    }
}

/// `+08:00`, at most a day's half and the two hours by which Kiribati is ahead.
fn offset(text: &str) -> Option<Offset> {
    let minutes = i32::from(minute_of_day(&text[1..]).ok().filter(|minutes| *minutes <= 14 * 60)?);
    Offset::from_seconds(if text.starts_with('-') { -minutes * 60 } else { minutes * 60 }).ok()
}

read_as_scalar!(Window);

/// A moment that somebody wrote down, with its zone or offset: `2026-12-01T09:00:00+08:00`, `2026-12-01T09:00 Asia/Shanghai`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub Timestamp);

impl Scalar for Date {
    const EXPECTED: &'static str = "a time with its offset or zone, such as 2026-12-01T09:00:00+08:00";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::new(text, Self::EXPECTED);
        let Some((written, zone)) = zone_apart(text) else {
            return text.parse().map(Self).map_err(|_| malformed());
        };
        let zone: Zone = zone.parse()?;
        if written.parse::<Timestamp>().is_ok() {
            // Both an offset and a zone: they must agree.
            let both: ZonedDateTime = format!("{written}[{}]", zone.name)
                .parse()
                .map_err(|_| Malformed::new(text, "a time: its zone has another offset then"))?;
            return Ok(Self(both.timestamp()));
        }
        let wall: DateTime = written.parse().map_err(|_| malformed())?;
        zone.rules
            .to_ambiguous_timestamp(wall)
            .unambiguous()
            .map(Self)
            .map_err(|_| Malformed::new(text, "one moment: the clocks are changed then; write it with its offset"))
    }
}

/// `… [Asia/Shanghai]` or `… Asia/Shanghai`, cut before the zone.
fn zone_apart(text: &str) -> Option<(&str, &str)> {
    match text.strip_suffix(']') {
        Some(open) => open.split_once('[').map(|(written, zone)| (written.trim_end(), zone)),
        None => {
            text.rsplit_once(' ').filter(|(_, last)| !is_hours(last)).map(|(written, zone)| (written.trim_end(), zone))
        }
    }
}

read_as_scalar!(Date);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse::<Date>().unwrap_or_else(|error| panic!("{error}")).0
    }

    /// Each line: a moment by the wall clock (or with its offset), and whether it is inside.
    fn check(window: &str, moments: &str) {
        let parsed: Window = window.parse().unwrap_or_else(|error| panic!("{error}"));
        for line in moments.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (inside, moment) = line.split_once(' ').unwrap();
            assert_eq!(parsed.contains(at(moment.trim())), inside == "in", "{window}: {line}");
        }
    }

    fn wrong<T: Scalar + std::str::FromStr<Err = Malformed> + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().expect_err(text).to_string()
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_on_which_it_starts() {
        // 2026-11-27 is a Friday.
        check(
            "Mon-Fri 22:00-06:00 Europe/Copenhagen",
            "
            out 2026-11-27T21:59:59 Europe/Copenhagen
            in  2026-11-27T22:00 Europe/Copenhagen
            in  2026-11-27T23:30 Europe/Copenhagen
            in  2026-11-28T05:59:59 Europe/Copenhagen
            out 2026-11-28T06:00 Europe/Copenhagen
            out 2026-11-28T22:30 Europe/Copenhagen
            out 2026-11-30T05:00 Europe/Copenhagen
            in  2026-11-30T22:00 Europe/Copenhagen
            in  2026-12-01T05:00 Europe/Copenhagen
            ",
        );
    }

    #[test]
    fn a_window_goes_by_the_wall_clock_over_both_changes_of_the_clocks() {
        // Clocks go from 02:00 to 03:00 on 2026-03-29 and from 03:00 back to 02:00 on 2026-10-25, both Sundays.
        check(
            "Sat,Sun 22:00-06:00 Europe/Copenhagen",
            "
            in  2026-03-28T22:00 Europe/Copenhagen
            in  2026-03-29T01:59 Europe/Copenhagen
            in  2026-03-29T03:00 Europe/Copenhagen
            in  2026-03-29T05:59 Europe/Copenhagen
            out 2026-03-29T06:00 Europe/Copenhagen
            in  2026-10-25T02:30:00+02:00
            in  2026-10-25T02:30:00+01:00
            in  2026-10-25T05:59 Europe/Copenhagen
            out 2026-10-25T06:00 Europe/Copenhagen
            ",
        );
        // The hour that comes twice is inside twice, the one that is skipped never is.
        check(
            "02:00-03:00 Europe/Copenhagen",
            "
            out 2026-03-29T00:59:59Z
            out 2026-03-29T01:00:00Z
            out 2026-10-24T23:59:59Z
            in  2026-10-25T00:00:00Z
            in  2026-10-25T01:59:59Z
            out 2026-10-25T02:00:00Z
            ",
        );
    }

    #[test]
    fn days_wrap_and_may_be_left_out_as_hours_may() {
        check(
            "Fri-Mon UTC",
            "in 2026-11-27T00:00Z\nin 2026-11-30T23:59Z\nout 2026-12-01T00:00Z\nout 2026-11-26T23:59Z",
        );
        check("sat,SUN UTC", "in 2026-11-28T00:00Z\nin 2026-11-29T23:59Z\nout 2026-11-30T00:00Z");
        check("Sat, Sun 10:00-12:00 UTC", "in 2026-11-29T10:00Z\nout 2026-11-29T12:00Z");
        check("22:00-06:00 UTC", "in 2026-11-28T05:59Z\nin 2026-11-28T22:00Z\nout 2026-11-28T12:00Z");
        check("Sat 18:00-24:00 UTC", "in 2026-11-28T23:59:59Z\nout 2026-11-29T00:00Z");
        check("Sat 18:00-00:00 UTC", "in 2026-11-28T23:59:59Z\nout 2026-11-29T00:00Z");
        check("Mon 09:00-10:00 +08:00", "in 2026-11-30T01:00Z\nout 2026-11-30T02:00Z");
        check("Mon 9:00-10:00 -03:30", "in 2026-11-30T12:30Z\nout 2026-11-30T12:29Z");
    }

    #[test]
    fn a_window_is_shown_as_it_can_be_read() {
        for (text, shown) in [
            ("Mon-Fri  22:00-06:00 Asia/Shanghai", "Mon-Fri 22:00-06:00 Asia/Shanghai"),
            ("Fri-Mon UTC", "Mon,Fri-Sun UTC"),
            ("Sat,Sun 9:00-24:00 +08:00", "Sat-Sun 09:00-24:00 +08:00"),
            ("Mon,Wed,Sun UTC", "Mon,Wed,Sun UTC"),
            ("Mon-Sun 09:00-10:00 UTC", "09:00-10:00 UTC"),
        ] {
            let window: Window = text.parse().unwrap();
            assert_eq!(window.to_string(), shown);
            assert_eq!(shown.parse(), Ok(window));
        }
    }

    #[test]
    fn a_window_that_cannot_be_is_refused() {
        for (text, because) in [
            ("", Window::EXPECTED),
            ("UTC", Window::EXPECTED),
            ("Mon-Fri", Window::EXPECTED),
            ("Mon-Fri 22:00-06:00", Window::EXPECTED),
            ("Mon-Fri 22:00-06:00 Mars/Olympus", "`Mars/Olympus` is not a time zone"),
            ("Mon-Fri 22:00-06:00 Etc/Unknown", "`Etc/Unknown` is not a time zone"),
            ("Mon-Fri 22:00-06:00 localtime", "`localtime` is not a time zone"),
            ("Mon-Fri 22:00-06:00 ../../etc/passwd", "`../../etc/passwd` is not a time zone"),
            ("Mon-Fri 22:00-06:00 +15:00", "`+15:00` is not a time zone"),
            ("Mon-Fri 22:00-06:00 +8", "`+8` is not a time zone"),
            ("Mon-Fri 25:00-06:00 UTC", "`25:00` is not a time of day"),
            ("Mon-Fri 24:01-06:00 UTC", "`24:01` is not a time of day"),
            ("Mon-Fri 22:60-06:00 UTC", "`22:60` is not a time of day"),
            ("Mon-Fri 22-06 UTC", "`22` is not a time of day"),
            ("Mon-Fri 22:00 UTC", "`22:00` is not hours of the day"),
            ("Mon-Fri 24:00-06:00 UTC", "`24:00` is not a start"),
            ("Mon-Fri 08:00-08:00 UTC", "`08:00-08:00` is not a window: its start is its end"),
            ("Mon-Fry 08:00-09:00 UTC", "`Fry` is not a day of the week"),
            ("Mon- 08:00-09:00 UTC", "`` is not a day of the week"),
            ("Mon Fri 08:00-09:00 UTC", "`MonFri` is not a day of the week"),
        ] {
            let error = wrong::<Window>(text);
            assert!(error.contains(because), "{text}: {error}");
        }
    }

    #[test]
    fn a_moment_has_an_offset_or_a_zone() {
        let moment = at("2026-12-01T01:00:00Z");
        for text in [
            "2026-12-01T09:00:00+08:00",
            "2026-12-01 09:00:00+08:00",
            "2026-12-01T09:00+08:00",
            "2026-12-01T09:00[Asia/Shanghai]",
            "2026-12-01T09:00 Asia/Shanghai",
            "2026-12-01 09:00 Asia/Shanghai",
            "2026-12-01T09:00 +08:00",
            "2026-12-01T09:00:00+08:00[Asia/Shanghai]",
        ] {
            assert_eq!(at(text), moment, "{text}");
        }
        assert_eq!(at("2026-12-01 UTC"), at("2026-12-01T00:00Z"));
        for (text, because) in [
            ("", Date::EXPECTED),
            ("tomorrow", Date::EXPECTED),
            ("2026-12-01", Date::EXPECTED),
            ("2026-12-01T09:00", Date::EXPECTED),
            ("2026-12-01 09:00", Date::EXPECTED),
            ("2026-13-01T09:00Z", Date::EXPECTED),
            ("2026-02-30T09:00 UTC", Date::EXPECTED),
            ("2026-12-01T09:00 Mars/Olympus", "`Mars/Olympus` is not a time zone"),
            ("2026-12-01T09:00+08:00[Europe/Paris]", "its zone has another offset then"),
            ("2026-03-29T02:30 Europe/Copenhagen", "the clocks are changed then"),
            ("2026-10-25T02:30 Europe/Copenhagen", "the clocks are changed then"),
        ] {
            let error = wrong::<Date>(text);
            assert!(error.contains(because), "{text}: {error}");
        }
    }

    #[test]
    fn zones_are_known_where_no_tzdata_is_installed() {
        let bundled = jiff::tz::TimeZoneDatabase::bundled();
        assert!(bundled.get("Europe/Copenhagen").is_ok());
    }

    #[test]
    fn hostile_text_is_refused_without_a_panic() {
        for text in [
            "-",
            "+",
            "- -",
            "时区",
            "Mon-Fri ２２:００-06:00 UTC",
            "[",
            "]",
            "[]",
            "2026-12-01[",
            "2026 ]",
            "0:0-",
            "\u{0} \u{0}",
        ] {
            assert!(text.parse::<Window>().is_err(), "{text}");
            assert!(text.parse::<Date>().is_err(), "{text}");
        }
    }
}
