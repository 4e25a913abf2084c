//! Text that commands and agents share: counts of things, and times.

use tenure::core::time::WallTime;

/// So many of a thing, of whose name an "s" makes the plural.
pub fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// How many nodes count, and how many must.
pub fn quorum_of(nodes: usize, quorum: u32) -> String {
    let nodes = counted(nodes, "HA node");
    match quorum {
        0 => format!("{nodes}, none needed"),
        _ => format!("{nodes}, {quorum} needed"),
    }
}

/// A calendar time as RFC 3339 in UTC, with milliseconds.
pub fn timestamp(time: WallTime) -> String {
    let (days, rest) = (time.as_millis() / 86_400_000, time.as_millis() % 86_400_000);
    let (seconds, millis) = (rest / 1_000, rest % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day counted from 1970-01-01 (Hinnant, "chrono-compatible
/// low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_763_705_412_345, "2025-11-21T06:10:12.345Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
        ] {
            assert_eq!(timestamp(WallTime::from_millis(millis)), text);
        }
    }
}
