//! `strftime_now`: the date in a template, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Python's `strftime` in the C locale, for the directives templates use; others stay as they are.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // `%-d`: without the leading zero.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let two = |n: u64| if bare { n.to_string() } else { format!("{n:02}") };
        let text = match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month as u64),
            Some('d') => two(day),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('j') => {
                let first = days_before_year(year);
                if bare { (days - first + 1).to_string() } else { format!("{:03}", days - first + 1) }
            }
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            other => {
                format!("%{}{}", if bare { "-" } else { "" }, other.map(String::from).unwrap_or_default())
            }
        };
        out.push_str(&text);
    }
    out
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_before_year(year: u64) -> u64 {
    (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum()
}

/// Year, month (1 to 12) and day (1 to 31) of a day since 1970.
fn date(days: u64) -> (u64, usize, u64) {
    let (mut year, mut rest) = (1970, days);
    while rest >= if is_leap(year) { 366 } else { 365 } {
        rest -= if is_leap(year) { 366 } else { 365 };
        year += 1;
    }
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // `date -u -d @1709210096`: Thu Feb 29 12:34:56 2024
        let all = "%Y-%m-%d %H:%M:%S %a %A %b %B %y %j %I %p %-d %% %Q %";
        let text = strftime(all, 1_709_210_096);
        assert_eq!(text, "2024-02-29 12:34:56 Thu Thursday Feb February 24 060 12 PM 29 % %Q %");
        assert_eq!(strftime("%d %b %Y, %a", 0), "01 Jan 1970, Thu");
        assert_eq!(strftime("%F %T", 1_735_689_599), "2024-12-31 23:59:59");
        assert_eq!(strftime("%-d %-m", 1_735_689_600), "1 1");
    }
}
