//! What a certificate says of itself (RFC 5280): whose it is, and how long it is good.

use std::net::{Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustls::pki_types::UnixTime;

/// The object identifier 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

const BOOLEAN: u8 = 0x01;
const OCTET_STRING: u8 = 0x04;
const IDENTIFIER: u8 = 0x06;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP: u8 = 0x87;

/// From when until when it is good, both in UTC and included (4.1.2.5). `None` for what is no certificate.
pub fn validity(certificate: &[u8]) -> Option<(DateTime, DateTime)> {
    let mut signed = Values(Values(certificate).expect(SEQUENCE)?);
    let mut parts = Values(signed.expect(SEQUENCE)?);
    let (VERSION, _) = parts.next()? else { return None };
    parts.expect(INTEGER)?;
    // How it is signed, and by whom.
    parts.expect(SEQUENCE)?;
    parts.expect(SEQUENCE)?;
    let mut validity = Values(parts.expect(SEQUENCE)?);
    Some((time(&mut validity)?, time(&mut validity)?))
}

fn time(values: &mut Values) -> Option<DateTime> {
    let (kind, text) = values.next()?;
    let text = std::str::from_utf8(text).ok()?;
    let century = match kind {
        GENERALIZED_TIME => "",
        UTC_TIME if text.get(..2)? >= "50" => "19",
        UTC_TIME => "20",
        _ => return None,
    };
    DateTime::strptime("%Y%m%d%H%M%SZ", format!("{century}{text}")).ok()
}

/// The same moment, in UTC.
pub fn moment(time: UnixTime) -> Option<DateTime> {
    let seconds = i64::try_from(time.as_secs()).ok()?;
    Some(TimeZone::UTC.to_datetime(Timestamp::from_second(seconds).ok()?))
}

/// Host names, mail addresses, URIs and IP addresses as they are written. `None` for what is no certificate.
pub fn alternative_names(certificate: &[u8]) -> Option<Vec<String>> {
    let mut signed = Values(Values(certificate).expect(SEQUENCE)?);
    let mut parts = Values(signed.expect(SEQUENCE)?);
    while !parts.0.is_empty() {
        if let (EXTENSIONS, extensions) = parts.next()? {
            return extension(Values(extensions).expect(SEQUENCE)?);
        }
    }
    Some(Vec::new())
}

fn extension(extensions: &[u8]) -> Option<Vec<String>> {
    let mut extensions = Values(extensions);
    while !extensions.0.is_empty() {
        let mut extension = Values(extensions.expect(SEQUENCE)?);
        let identifier = extension.expect(IDENTIFIER)?;
        let (mut kind, mut value) = extension.next()?;
        // Whether it is critical.
        if kind == BOOLEAN {
            (kind, value) = extension.next()?;
        }
        if identifier == SUBJECT_ALT_NAME && kind == OCTET_STRING {
            return names(Values(value).expect(SEQUENCE)?);
        }
    }
    Some(Vec::new())
}

fn names(names: &[u8]) -> Option<Vec<String>> {
    let mut values = Values(names);
    let mut names = Vec::new();
    while !values.0.is_empty() {
        let (kind, value) = values.next()?;
        names.extend(match kind {
            EMAIL | DNS | URI => String::from_utf8(value.to_vec()).ok(),
            IP => ip(value),
            _ => None,
        });
    }
    Some(names)
}

fn ip(value: &[u8]) -> Option<String> {
    let four = |value: &[u8]| <[u8; 4]>::try_from(value).map(|bytes| Ipv4Addr::from(bytes).to_string());
    let six = |value: &[u8]| <[u8; 16]>::try_from(value).map(|bytes| Ipv6Addr::from(bytes).to_canonical().to_string());
    four(value).or_else(|_| six(value)).ok()
}

/// Values of DER (X.690), one behind the other.
struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    /// The tag and the content of the next one.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, length], rest) = self.0.split_first_chunk::<2>()?;
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            // So many bytes of a number follow. What is longer than 16 MiB is none of ours.
            0x81..=0x83 => {
                let (number, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
                (number.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    fn expect(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.is_ca = rcgen::IsCa::ExplicitNoCa;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn of_each_kind() -> Vec<u8> {
        certificate(vec![
            SanType::DnsName("prometheus.example.edu".try_into().unwrap()),
            SanType::Rfc822Name("admin@example.edu".try_into().unwrap()),
            SanType::URI("spiffe://example.edu/prometheus".try_into().unwrap()),
            SanType::IpAddress([192, 0, 2, 1].into()),
            SanType::IpAddress("2001:db8::1".parse().unwrap()),
        ])
    }

    #[test]
    fn names_of_each_kind_are_as_people_write_them() {
        let expected = [
            "prometheus.example.edu",
            "admin@example.edu",
            "spiffe://example.edu/prometheus",
            "192.0.2.1",
            "2001:db8::1",
        ];
        assert_eq!(alternative_names(&of_each_kind()).unwrap(), expected);
        assert_eq!(alternative_names(&certificate(vec![])), Some(vec![]));
    }

    #[test]
    fn the_time_of_a_certificate_is_read_in_both_forms() {
        let good = |from: i32, until: i32| {
            let mut params = CertificateParams::default();
            params.not_before = rcgen::date_time_ymd(from, 2, 3);
            params.not_after = rcgen::date_time_ymd(until, 12, 31);
            validity(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der()).unwrap()
        };
        let day = |year: i16, month: i8, day: i8| jiff::civil::date(year, month, day).at(0, 0, 0, 0);
        assert_eq!(good(1999, 2049), (day(1999, 2, 3), day(2049, 12, 31)));
        assert_eq!(good(2050, 9999), (day(2050, 2, 3), day(9999, 12, 31)));
    }

    #[test]
    fn what_is_cut_or_bent_is_read_without_harm() {
        let whole = of_each_kind();
        for end in 0..whole.len() {
            assert_eq!(alternative_names(&whole[..end]), None, "{end}");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                let mut bent = whole.clone();
                bent[at] = byte;
                // Any answer will do; that there is one is the point.
                let (names, time) = (alternative_names(&bent), validity(&bent));
                assert!(time.is_none_or(|(from, until)| from.year() >= 0 && until.year() >= 0));
                assert!(names.is_none_or(|names| names.len() <= whole.len()));
            }
        }
    }
}
