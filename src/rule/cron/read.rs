//! Reading a pattern: what each field may say, and what is wrong with one that says something else.

use crate::rule::cron::{Bits, Cron, Days, Weekdays};

/// Longest pattern, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Why a text is no pattern.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CronFlaw {
    /// Too long to be meant.
    #[error("is longer than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// Five or six fields it is not.
    #[error(
        "has {0} field(s), where 5 are needed (minute hour day-of-month month day-of-week), or 6 with the second before them"
    )]
    Fields(usize),
    /// Something in a field.
    #[error("has `{part}` as its {field}, where {wanted}")]
    Field {
        /// Which field.
        field: &'static str,
        /// The part of it that is wrong.
        part: String,
        /// What would be right.
        wanted: String,
    },
    /// No year has such a day.
    #[error("never fires: no year has such a day")]
    NeverFires,
}

impl CronFlaw {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NeverFires => "never_fires",
            _ => "invalid_cron",
        }
    }
}

/// What a field's numbers are.
struct Field {
    name: &'static str,
    from: u8,
    to: u8,
    /// Words for numbers, the first for `from`.
    words: &'static [&'static str],
}

const SECOND: Field = Field {
    name: "second",
    from: 0,
    to: 59,
    words: &[],
};
const MINUTE: Field = Field {
    name: "minute",
    ..SECOND
};
const HOUR: Field = Field {
    name: "hour",
    to: 23,
    ..SECOND
};
const DAY: Field = Field {
    name: "day of month",
    from: 1,
    to: 31,
    words: &[],
};
const MONTH: Field = Field {
    name: "month",
    from: 1,
    to: 12,
    words: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
};
/// Sunday is 0, and 7 too.
const WEEKDAY: Field = Field {
    name: "day of week",
    from: 0,
    to: 7,
    words: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

impl Field {
    fn flaw(&self, part: &str, wanted: impl Into<String>) -> CronFlaw {
        CronFlaw::Field {
            field: self.name,
            part: part.to_owned(),
            wanted: wanted.into(),
        }
    }

    /// `7`, `mon`.
    fn number(&self, text: &str, part: &str) -> Result<u8, CronFlaw> {
        let word = || {
            let place = self
                .words
                .iter()
                .position(|word| word.eq_ignore_ascii_case(text))?;
            u8::try_from(place).ok().map(|place| place + self.from)
        };
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if is_number { text.parse().ok() } else { word() };
        number
            .filter(|number| (self.from..=self.to).contains(number))
            .ok_or_else(|| self.flaw(part, format!("{} to {} are known", self.from, self.to)))
    }

    /// `*`, `a`, `a-b`, and each of them with `/n`.
    fn span(&self, part: &str) -> Result<Bits, CronFlaw> {
        let (span, step) = match part.split_once('/') {
            Some((span, step)) => (span, Some(step)),
            None => (part, None),
        };
        let (from, to) = match span.split_once('-') {
            _ if span == "*" => (self.from, self.to),
            Some((from, to)) => {
                let (from, mut to) = (self.number(from, part)?, self.number(to, part)?);
                if to == 0 && from > 0 && self.name == WEEKDAY.name {
                    // Up to Sunday.
                    to = 7;
                }
                (from, to)
            }
            None => {
                let from = self.number(span, part)?;
                (from, if step.is_some() { self.to } else { from })
            }
        };
        if from > to {
            return Err(self.flaw(part, "a range goes from the smaller to the larger"));
        }
        let most = self.to - self.from;
        let step = match step {
            None => 1,
            Some(step) => step
                .parse()
                .ok()
                .filter(|step| (1..=most).contains(step))
                .ok_or_else(|| self.flaw(part, format!("a step is 1 to {most}")))?,
        };
        let mut bits = Bits::default();
        (from..=to)
            .step_by(usize::from(step))
            .for_each(|number| bits.add(number));
        Ok(bits)
    }

    fn spans(&self, text: &str) -> Result<Bits, CronFlaw> {
        text.split(',').try_fold(Bits::default(), |all, part| {
            Ok(Bits(all.0 | self.span(part)?.0))
        })
    }
}

fn days(text: &str) -> Result<Days, CronFlaw> {
    let mut days = Days::default();
    for part in text.split(',') {
        match part.to_ascii_lowercase().as_str() {
            "l" => days.last = true,
            "lw" => days.last_weekday = true,
            lower => match lower.strip_suffix('w') {
                Some(day) => days.nearest_weekday.add(DAY.number(day, part)?),
                None => days.plain.0 |= DAY.span(part)?.0,
            },
        }
    }
    Ok(days)
}

fn weekdays(text: &str) -> Result<Weekdays, CronFlaw> {
    let mut weekdays = Weekdays::default();
    let of = |text, part| WEEKDAY.number(text, part).map(|day| day % 7);
    for part in text.split(',') {
        if let Some((day, nth)) = part.split_once('#') {
            let nth = nth
                .parse::<usize>()
                .ok()
                .filter(|nth| (1..=5).contains(nth));
            let nth = nth.ok_or_else(|| WEEKDAY.flaw(part, "1 to 5 may stand behind the `#`"))?;
            weekdays.nth[nth - 1].add(of(day, part)?);
        } else if let Some(day) = part.strip_suffix(['L', 'l']).filter(|day| !day.is_empty()) {
            weekdays.last.add(of(day, part)?);
        } else {
            let span = WEEKDAY.span(part)?.0;
            weekdays.plain.0 |= span & 0x7f | span >> 7;
        }
    }
    Ok(weekdays)
}

impl Cron {
    /// Reads a pattern.
    ///
    /// # Errors
    /// See [`CronFlaw`].
    pub fn parse(text: &str) -> Result<Self, CronFlaw> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(CronFlaw::TooLong);
        }
        let given: Vec<&str> = text.split_ascii_whitespace().collect();
        let [second, minute, hour, day, month, weekday] = match given[..] {
            [minute, hour, day, month, weekday] => ["0", minute, hour, day, month, weekday],
            [second, minute, hour, day, month, weekday] => {
                [second, minute, hour, day, month, weekday]
            }
            _ => return Err(CronFlaw::Fields(given.len())),
        };
        let any = |field: &str| {
            if field == "?" {
                "*".to_owned()
            } else {
                field.to_owned()
            }
        };
        let (day, weekday) = (any(day), any(weekday));
        let cron = Self {
            text: given.join(" "),
            seconds: SECOND.spans(second)?,
            minutes: MINUTE.spans(minute)?,
            hours: HOUR.spans(hour)?,
            months: MONTH.spans(month)?,
            days: days(&day)?,
            weekdays: weekdays(&weekday)?,
            is_either: day != "*" && weekday != "*",
            is_periodic: [second, minute, hour]
                .iter()
                .any(|field| field.contains(['*', '/'])),
        };
        match cron.ever_fires() {
            true => Ok(cron),
            false => Err(CronFlaw::NeverFires),
        }
    }
}
