//! When held blocks are checked again, and which is next.
//!
//! Blocks take turns so that one round takes about the given period. A check waits until nothing has happened for a while; on a duck that is never
//! idle one goes ahead once it is late enough, and then yields to steps slice by slice.

use wire::Micros;

/// How long nothing must have happened.
pub(crate) const QUIET: Micros = 50_000;
/// How late a check may be before it no longer waits for quiet.
const PATIENCE: Micros = 60_000_000;

/// The rota.
#[derive(Debug)]
pub(crate) struct Rota {
    period: Option<Micros>,
    due: Option<Micros>,
    next: u32,
    under_way: bool,
}

impl Rota {
    /// One round in `period`; none at all without.
    pub fn new(period: Option<Micros>) -> Rota {
        Rota { period, due: None, next: 0, under_way: false }
    }

    /// When to ask again, given how many blocks are held and when something happened last.
    pub fn wake(&mut self, now: Micros, held: u32, active: Micros) -> Option<Micros> {
        let period = self.period.filter(|_| held > 0 && !self.under_way)?;
        let due = *self.due.get_or_insert(now.saturating_add(period / Micros::from(held)));
        Some(due.max((active + QUIET).min(due.saturating_add(PATIENCE))))
    }

    /// Whether a check should start now; the first block to think of.
    pub fn start(&mut self, now: Micros, held: u32, active: Micros) -> Option<u32> {
        (self.wake(now, held, active)? <= now).then_some(self.next)
    }

    /// Block `block` is being checked.
    pub fn started(&mut self, now: Micros, block: u32, held: u32) {
        self.next = block.saturating_add(1);
        self.under_way = true;
        let due = self.due.unwrap_or(now);
        let step = self.period.unwrap_or(0) / Micros::from(held.max(1));
        // Time that was lost is not made up for in a burst.
        self.due = Some(due.saturating_add(step).max(now.saturating_add(step / 2)));
    }

    /// It was.
    pub fn ended(&mut self) {
        self.under_way = false;
    }

    /// There is another list.
    pub fn restart(&mut self) {
        (self.due, self.next) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_the_period_and_each_check_waits_for_quiet() {
        let mut rota = Rota::new(Some(100_000_000));
        assert_eq!(rota.wake(0, 0, 0), None, "nothing is held");
        assert_eq!(rota.wake(0, 10, 0), Some(10_000_000));
        assert_eq!(rota.start(9_999_999, 10, 0), None);
        assert_eq!(rota.start(10_000_000, 10, 9_990_000), None, "something happened just now");
        assert_eq!(rota.wake(10_000_000, 10, 9_990_000), Some(10_040_000));
        assert_eq!(rota.start(10_040_000, 10, 9_990_000), Some(0));
        rota.started(10_040_000, 0, 10);
        assert_eq!(rota.wake(11_000_000, 10, 0), None, "one at a time");
        rota.ended();
        assert_eq!(rota.wake(11_000_000, 10, 0), Some(20_000_000));
        assert_eq!(rota.start(20_000_000, 10, 0), Some(1));
    }

    #[test]
    fn a_duck_that_is_never_idle_is_checked_late() {
        let mut rota = Rota::new(Some(100_000_000));
        rota.wake(0, 1, 0);
        let late = 100_000_000 + PATIENCE;
        assert_eq!(rota.start(late - 1, 1, late - 1), None);
        assert_eq!(rota.start(late, 1, late), Some(0));
        assert_eq!(Rota::new(None).wake(0, 5, 0), None);
    }
}
