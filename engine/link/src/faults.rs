//! What goes wrong on a bad wire, and how it is written: `loss=10,duplicate=5,reorder=5,corrupt=5,delay=200us`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest delay that is accepted: longer than any deadline of the protocol, short enough that held frames stay few.
pub(crate) const DELAY_MOST: Duration = Duration::from_secs(10);

/// How often frames suffer what, in thousandths; by default nothing happens. `Display` and `FromStr` are inverse; text without faults is `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Frames that vanish.
    pub loss: u16,
    /// Frames that arrive twice.
    pub duplicate: u16,
    /// Frames that some later ones overtake.
    pub reorder: u16,
    /// Frames of which one byte is changed, anywhere.
    pub corrupt: u16,
    /// How much later every frame arrives, at most 10 s. Text gives it in `us`, `ms` or `s`.
    pub delay: Duration,
}

/// Text that describes no faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultsError {
    /// No such fault.
    #[error(
        "no fault is called {found:?}: expected loss=N, duplicate=N, reorder=N, corrupt=N (N of 1000 frames) or delay=TIME"
    )]
    Unknown {
        /// The text.
        found: String,
    },
    /// A fault given twice.
    #[error("fault {name} is given twice")]
    Twice {
        /// The fault.
        name: String,
    },
    /// Not a number of thousandths.
    #[error("{name}: expected a whole number of frames in 1000, 0 to 1000, found {found:?}")]
    PerMille {
        /// The fault.
        name: String,
        /// Its value.
        found: String,
    },
    /// Not a time.
    #[error("delay: expected a whole number and us, ms or s, at most 10s, found {found:?}")]
    Delay {
        /// Its value.
        found: String,
    },
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Faults, FaultsError> {
        let mut faults = Faults::default();
        if text == "none" {
            return Ok(faults);
        }
        let mut seen = Vec::new();
        for part in text.split(',') {
            let unknown = || FaultsError::Unknown { found: part.to_owned() };
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            let field = match name {
                "delay" => None,
                "loss" => Some(&mut faults.loss),
                "duplicate" => Some(&mut faults.duplicate),
                "reorder" => Some(&mut faults.reorder),
                "corrupt" => Some(&mut faults.corrupt),
                _ => return Err(unknown()),
            };
            if seen.contains(&name) {
                return Err(FaultsError::Twice { name: name.to_owned() });
            }
            seen.push(name);
            match field {
                Some(field) => {
                    let number = value.parse().ok().filter(|number| *number <= 1000);
                    *field = number
                        .ok_or_else(|| FaultsError::PerMille { name: name.to_owned(), found: value.to_owned() })?;
                }
                None => {
                    faults.delay = parse_delay(value).ok_or_else(|| FaultsError::Delay { found: value.to_owned() })?
                }
            }
        }
        Ok(faults)
    }
}

fn parse_delay(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number = number.parse().ok()?;
    let delay = match unit {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    (delay <= DELAY_MOST).then_some(delay)
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts =
            [("loss", self.loss), ("duplicate", self.duplicate), ("reorder", self.reorder), ("corrupt", self.corrupt)];
        let mut comma = "";
        for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "{comma}{name}={count}")?;
            comma = ",";
        }
        if !self.delay.is_zero() {
            write!(f, "{comma}delay={}us", self.delay.as_micros())?;
            comma = ",";
        }
        if comma.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_fault_is_read() {
        let faults = "loss=10,duplicate=5,reorder=1000,corrupt=0,delay=200us".parse();
        let delay = Duration::from_micros(200);
        assert_eq!(faults, Ok(Faults { loss: 10, duplicate: 5, reorder: 1000, corrupt: 0, delay }));
        assert_eq!("delay=3ms".parse(), Ok(Faults { delay: Duration::from_millis(3), ..Faults::default() }));
        assert_eq!("none".parse(), Ok(Faults::default()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, message) in [
            ("", "no fault is called \"\""),
            ("loss", "no fault is called \"loss\""),
            ("jitter=3", "no fault is called \"jitter=3\""),
            ("loss=1,loss=2", "fault loss is given twice"),
            ("loss=1001", "loss: expected a whole number of frames in 1000, 0 to 1000, found \"1001\""),
            ("corrupt=1%", "found \"1%\""),
            ("reorder=-1", "found \"-1\""),
            ("delay=200", "found \"200\""),
            ("delay=us", "found \"us\""),
            ("delay=11s", "at most 10s, found \"11s\""),
            ("delay=99999999999999999999s", "found"),
        ] {
            let error = text.parse::<Faults>().expect_err(text).to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn faults_read_their_own_text(
            loss in 0..=1000u16, duplicate in 0..=1000u16, reorder in 0..=1000u16, corrupt in 0..=1000u16, delay in 0..=10_000_000u64,
        ) {
            let faults = Faults { loss, duplicate, reorder, corrupt, delay: Duration::from_micros(delay) };
            prop_assert_eq!(faults.to_string().parse(), Ok(faults));
        }

        #[test]
        fn any_text_is_read_without_panic(text in "[a-z=,0-9é]{0,40}") {
            let _ = text.parse::<Faults>();
        }
    }
}
