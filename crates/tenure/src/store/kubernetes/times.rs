//! Times as the API writes them (`MicroTime`: RFC 3339 with microseconds), as
//! microseconds since 1970.

/// The first and the last that has four digits for its year.
pub(super) const FIRST: i64 = -62_135_596_800_000_000;
pub(super) const LAST: i64 = 253_402_300_799_999_999;

/// A second.
pub(super) const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// The days before a year, counted from the first of March of the year 0, which begins
/// it: so the leap day is the last of its year.
const fn days_before(year: i64) -> i64 {
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400)
}

/// The days from the first of March to the first of the month that is so many months
/// later: 31, 30, 31, 30, 31 and again.
const fn days_to(month: i64) -> i64 {
    (153 * month + 2) / 5
}

/// The first of January 1970, counted so.
const EPOCH: i64 = days_before(1969) + days_to(10);

/// The text of a time, which is the nearest that has one.
pub(super) fn format(micros: i64) -> String {
    let micros = micros.clamp(FIRST, LAST);
    let (day, rest) = (micros.div_euclid(DAY) + EPOCH, micros.rem_euclid(DAY));
    // A year of 365.2425 days, and then the one that it is.
    let guess = day * 10_000 / 3_652_425;
    let year = match (days_before(guess) > day, days_before(guess + 1) > day) {
        (true, _) => guess - 1,
        (false, true) => guess,
        (false, false) => guess + 1,
    };
    let of_year = day - days_before(year);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - days_to(month) + 1;
    let year = year + i64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    let (seconds, micros) = (rest / SECOND, rest % SECOND);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The time of a text; parts of a microsecond do not count.
pub(super) fn parse(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', 't'])?;
    let mut date = date.splitn(3, '-').map(digits);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let at = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(at);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (digits(time.next()?)?, digits(time.next()?)?);
    let second = time.next()?;
    let (second, part) = second.split_once('.').unwrap_or((second, "0"));
    let second = digits(second)?;
    let is_fit = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && year <= 9_999;
    if !is_fit {
        return None;
    }
    let (years, months) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = days_before(years) + days_to(months) + day - 1 - EPOCH;
    let seconds = hour * 3_600 + minute * 60 + second - offset(zone)?;
    Some(days * DAY + seconds * SECOND + fraction(part)?)
}

fn digits(text: &str) -> Option<i64> {
    let is_number = (1..=9).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// The microseconds of what stands behind the point.
fn fraction(text: &str) -> Option<i64> {
    let six = format!("{text:0<6}");
    let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| digits(six.get(..6)?))?
}

/// By how many seconds a zone's clock is ahead.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (digits(hours)? * 3_600 + digits(minutes)? * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_763_705_412_345_678, "2025-11-21T06:10:12.345678Z"),
            (4_107_542_399_999_999, "2100-02-28T23:59:59.999999Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (FIRST, "0001-01-01T00:00:00.000000Z"),
            (LAST, "9999-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(format(micros), text);
            assert_eq!(parse(text), Some(micros), "{text}");
        }
        assert_eq!(format(i64::MAX), format(LAST));
        let mut micros = FIRST;
        while micros <= LAST {
            assert_eq!(parse(&format(micros)), Some(micros), "{micros}");
            micros += 97 * DAY + 7_654_321;
        }
    }

    #[test]
    fn other_forms_of_a_time_are_read() {
        let micros = 1_763_705_412_000_000;
        for text in [
            "2025-11-21T06:10:12Z",
            "2025-11-21t06:10:12.000z",
            "2025-11-21T06:10:12.0000009Z",
            "2025-11-21T07:40:12+01:30",
            "2025-11-20T22:10:12-08:00",
        ] {
            assert_eq!(parse(text), Some(micros), "{text}");
        }
        for wrong in [
            "",
            "T",
            "2025-11-21",
            "2025-11-21T06:10Z",
            "2025-13-21T06:10:12Z",
            "2025-11-21T06:10:12",
            "2025-11-21T06:10:12.Z",
            "2025-11-21T24:10:12Z",
            "x025-11-21T06:10:12Z",
            "2025-11-21T06:10:12+0100",
            "20255-11-21T06:10:12Z",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
