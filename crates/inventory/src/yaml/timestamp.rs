//! Timestamps of YAML 1.1. Python makes a date or a datetime of them; what reaches others is the JSON text of that,
//! so the text is what we make: `2001-12-14t21:59:43.10-05:00` is `2001-12-14T21:59:43.100000-05:00`.

/// What a plain scalar is as a timestamp.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It does not have the shape of one.
    NoTimestamp,
    /// The shape fits, but there is no such day or hour: Python raises.
    OutOfRange,
    /// Its ISO text.
    Iso(String),
}

/// The parts of a time of day with its offset.
struct Time<'text> {
    hour: &'text str,
    minute: &'text str,
    second: &'text str,
    fraction: &'text str,
    zone: Option<Zone<'text>>,
}

/// How far a time is from UTC.
struct Zone<'text> {
    sign: char,
    hours: &'text str,
    minutes: &'text str,
}

/// Reads the text.
pub(super) fn iso_text(text: &str) -> Reading {
    let date_end = text.find(|character: char| !character.is_ascii_digit() && character != '-').unwrap_or(text.len());
    let Some((year, month, day)) = date_parts(&text[..date_end]) else {
        return Reading::NoTimestamp;
    };
    if date_end == text.len() {
        if month.len() != 2 || day.len() != 2 {
            return Reading::NoTimestamp;
        }
        return date_text(year, month, day).map_or(Reading::OutOfRange, Reading::Iso);
    }
    let Some(time) = separated(&text[date_end..]).and_then(time_parts) else {
        return Reading::NoTimestamp;
    };
    match (date_text(year, month, day), time_text(&time)) {
        (Some(date), Some(time)) => Reading::Iso(format!("{date}T{time}")),
        _ => Reading::OutOfRange,
    }
}

/// Four digits and twice one or two, joined by dashes.
fn date_parts(text: &str) -> Option<(&str, &str, &str)> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let fits = parts.next().is_none() && year.len() == 4 && [month, day].iter().all(|part| matches!(part.len(), 1 | 2));
    fits.then_some((year, month, day))
}

/// The rest after `T`, `t` or blanks.
fn separated(text: &str) -> Option<&str> {
    text.strip_prefix(['T', 't']).or_else(|| {
        let rest = text.trim_start_matches([' ', '\t']);
        (rest.len() < text.len()).then_some(rest)
    })
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// One or two digits.
fn one_or_two(text: &str) -> bool {
    matches!(text.len(), 1 | 2) && all_digits(text)
}

/// Exactly two digits.
fn two(text: &str) -> bool {
    text.len() == 2 && all_digits(text)
}

fn time_parts(text: &str) -> Option<Time<'_>> {
    let (hour, rest) = text.split_once(':')?;
    let (minute, rest) = rest.split_once(':')?;
    let second_end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    let (second, rest) = rest.split_at(second_end);
    if !one_or_two(hour) || !two(minute) || !two(second) {
        return None;
    }
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
            rest.split_at(end)
        }
        None => ("", rest),
    };
    let zone = match rest.trim_start_matches([' ', '\t']) {
        "" if rest.is_empty() => None,
        "Z" => Some(Zone { sign: '+', hours: "0", minutes: "0" }),
        offset => Some(zone_parts(offset)?),
    };
    Some(Time { hour, minute, second, fraction, zone })
}

fn zone_parts(text: &str) -> Option<Zone<'_>> {
    let sign = text.chars().next().filter(|sign| matches!(sign, '-' | '+'))?;
    let (hours, minutes) = text[1..].split_once(':').unwrap_or((&text[1..], "00"));
    (one_or_two(hours) && two(minutes)).then_some(Zone { sign, hours, minutes })
}

/// The number of one or two or four digits that were checked before.
fn number(digits: &str) -> u32 {
    digits.bytes().fold(0, |value, digit| value * 10 + u32::from(digit.wrapping_sub(b'0')))
}

fn date_text(year: &str, month: &str, day: &str) -> Option<String> {
    let (year, month, day) = (number(year), number(month), number(day));
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    (year >= 1 && (1..=days).contains(&day)).then(|| format!("{year:04}-{month:02}-{day:02}"))
}

fn time_text(time: &Time<'_>) -> Option<String> {
    let (hour, minute, second) = (number(time.hour), number(time.minute), number(time.second));
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut text = format!("{hour:02}:{minute:02}:{second:02}");
    // Six digits, the rest is cut off; all zeros are left away.
    let fraction: String = time.fraction.chars().chain("000000".chars()).take(6).collect();
    if fraction != "000000" {
        text.push('.');
        text.push_str(&fraction);
    }
    if let Some(zone) = &time.zone {
        let offset = number(zone.hours) * 60 + number(zone.minutes);
        if offset >= 24 * 60 {
            return None;
        }
        let sign = if offset == 0 { '+' } else { zone.sign };
        text.push_str(&format!("{sign}{:02}:{:02}", offset / 60, offset % 60));
    }
    Some(text)
}
