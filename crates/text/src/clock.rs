//! Owns: a civil time and its `strftime` form, for templates that print the date.
//! Never: the clock; a caller passes the time in.
//! Invariant: an unknown directive is an error, as a guess would silently change the prompt.

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
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A civil date and time, in whatever zone the caller wants the template to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Year of the Gregorian calendar.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, 1 to 31.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 60.
    pub second: u8,
}

impl LocalTime {
    fn day_of_year(self) -> u32 {
        const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let year = u32::from(self.year);
        let leap =
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let month = usize::from(self.month.clamp(1, 12)) - 1;
        BEFORE[month] + u32::from(self.day) + u32::from(leap && month > 1)
    }

    /// 0 is Sunday.
    fn weekday(self) -> usize {
        let before = u32::from(self.year.max(1)) - 1;
        let days = before * 365 + before / 4 - before / 100 + before / 400 + self.day_of_year();
        (days % 7) as usize
    }

    /// The time in the form of C's `strftime`; the offending directive when it is not known.
    pub(crate) fn format(self, pattern: &str) -> Result<String, String> {
        let mut out = String::with_capacity(pattern.len() + 8);
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let padded = directive != Some('-');
            if !padded {
                directive = chars.next();
            }
            out.push_str(&self.directive(directive, padded)?);
        }
        Ok(out)
    }

    fn directive(self, directive: Option<char>, padded: bool) -> Result<String, String> {
        let number = |value: u32, width: usize| {
            let width = if padded { width } else { 0 };
            format!("{value:0width$}")
        };
        let month = MONTHS[usize::from(self.month.clamp(1, 12)) - 1];
        let day = DAYS[self.weekday()];
        let hour12 = (u32::from(self.hour) + 11) % 12 + 1;
        Ok(match directive {
            Some('Y') => number(self.year.into(), 4),
            Some('y') => number(u32::from(self.year) % 100, 2),
            Some('m') => number(self.month.into(), 2),
            Some('d') => number(self.day.into(), 2),
            Some('e') => format!("{:2}", self.day),
            Some('H') => number(self.hour.into(), 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(self.minute.into(), 2),
            Some('S') => number(self.second.into(), 2),
            Some('j') => number(self.day_of_year(), 3),
            Some('p') => if self.hour < 12 { "AM" } else { "PM" }.into(),
            Some('B') => month.into(),
            Some('b' | 'h') => month[..3].into(),
            Some('A') => day.into(),
            Some('a') => day[..3].into(),
            Some('F') => self.format("%Y-%m-%d")?,
            Some('T') => self.format("%H:%M:%S")?,
            Some('%') => "%".into(),
            Some(other) => return Err(format!("%{other}")),
            None => return Err("%".into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_read_as_in_c() {
        let time = LocalTime { year: 2024, month: 3, day: 1, hour: 15, minute: 4, second: 9 };
        assert_eq!(
            time.format("%A %a %d %-d %e %B %b %Y %y %m %j %H:%M:%S %I %p %F %T 100%%").unwrap(),
            "Friday Fri 01 1  1 March Mar 2024 24 03 061 15:04:09 03 PM 2024-03-01 15:04:09 100%"
        );
        assert_eq!(time.format("%Q"), Err("%Q".into()));
        assert_eq!(time.format("%"), Err("%".into()));
        let midnight = LocalTime { year: 2023, month: 12, day: 31, hour: 0, minute: 0, second: 0 };
        assert_eq!(midnight.format("%A %I %p %j").unwrap(), "Sunday 12 AM 365");
    }
}
