//! A bound on answers a second, so that a flood of questions costs its reader little.

use std::time::Duration;

/// Answers at once, after silence.
const BURST: u32 = 64;
/// Time after which one more may be given.
const EACH: Duration = Duration::from_millis(2);

/// So many answers may still be given.
pub(crate) struct Limit {
    left: u32,
    since: Duration,
}

impl Limit {
    pub fn new() -> Limit {
        Limit { left: BURST, since: Duration::ZERO }
    }

    /// Takes the right to one answer, if there is one.
    pub fn take(&mut self, now: Duration) -> bool {
        let more = now.saturating_sub(self.since).as_millis() / EACH.as_millis();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(BURST);
            self.since = if self.left == BURST { now } else { self.since + EACH * more };
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_answered_at_the_bound_and_silence_fills_up_again() {
        let mut limit = Limit::new();
        let mut given = |from: u64, to: u64| (from..to).filter(|ms| limit.take(Duration::from_millis(*ms))).count();
        assert_eq!(given(0, 1000), BURST as usize + 499);
        assert_eq!(given(10_000, 10_001), 1);
        assert_eq!(given(60_000, 60_128), BURST as usize + 63);
    }
}
