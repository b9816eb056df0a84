//! How long a duck takes: a fixed part, and a part for each (unit, lane), learnt from its own steps.
//!
//! A line is fitted to (work, time) by least squares in which older steps count less and less, and beside it the mean distance from the
//! line. A step is late when it has taken its expected time and the largest of a floor, a quarter of it, and four times that distance: a quiet duck is
//! asked soon, one on a busy machine is left in peace. A fixed limit was rejected: steps of one lane and of 64 differ by a factor of fifty.

use crate::Micros;

/// Weight that a step's sums keep when another comes.
const KEEP: f64 = 63.0 / 64.0;
/// Microseconds before the first step of a duck is late.
pub const DEADLINE_UNKNOWN: Micros = 100_000;
/// Least microseconds that a step may be late.
pub const MARGIN_LEAST: Micros = 200;
/// Most microseconds before results are asked for.
pub const DEADLINE_MOST: Micros = 1_000_000;

/// The fit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    distance: f64,
}

impl Pace {
    /// Microseconds of the fixed part and of each (unit, lane); `None` before the first step.
    pub fn line(&self) -> Option<(f64, f64)> {
        if self.n == 0.0 {
            return None;
        }
        let spread = self.n * self.xx - self.x * self.x;
        // With one kind of step only, all of its time counts as fixed.
        let slope = if spread > 1e-6 * self.n * self.xx { (self.n * self.xy - self.x * self.y) / spread } else { 0.0 };
        let (slope, fixed) = (slope.max(0.0), (self.y - slope.max(0.0) * self.x) / self.n);
        if fixed < 0.0 { Some((0.0, self.xy / self.xx.max(1.0))) } else { Some((fixed, slope)) }
    }

    /// Microseconds that a step with so many (unit, lane) pairs should take.
    pub fn expected(&self, work: u32) -> Option<f64> {
        self.line().map(|(fixed, each)| fixed + each * f64::from(work))
    }

    /// Microseconds after which it is late.
    pub fn deadline(&self, work: u32) -> Micros {
        let Some(expected) = self.expected(work) else { return DEADLINE_UNKNOWN };
        let margin = (MARGIN_LEAST as f64).max(expected / 4.0).max(4.0 * self.distance);
        (expected + margin).min(DEADLINE_MOST as f64) as Micros
    }

    /// A step took so long.
    pub fn learn(&mut self, work: u32, micros: Micros) {
        let (x, y) = (f64::from(work), micros.min(DEADLINE_MOST) as f64);
        if let Some(expected) = self.expected(work) {
            let off = if y > expected { y - expected } else { expected - y };
            self.distance += (off - self.distance) / 16.0;
        }
        for (sum, value) in
            [(&mut self.n, 1.0), (&mut self.x, x), (&mut self.y, y), (&mut self.xx, x * x), (&mut self.xy, x * y)]
        {
            *sum = *sum * KEEP + value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_are_found() {
        let mut pace = Pace::default();
        assert_eq!(pace.deadline(5), DEADLINE_UNKNOWN);
        for i in 0..500u32 {
            let work = 1 + i * 7 % 40;
            pace.learn(work, 300 + 25 * Micros::from(work));
        }
        let (fixed, each) = pace.line().expect("learnt");
        assert!((fixed - 300.0).abs() < 1.0 && (each - 25.0).abs() < 0.1, "{fixed} {each}");
        let late = pace.deadline(400) as f64;
        assert!((late - 1.25 * 10_300.0).abs() < 50.0, "{late}");
        assert!((500..=501).contains(&pace.deadline(0)), "{}", pace.deadline(0));
    }

    #[test]
    fn one_kind_of_step_is_enough_and_a_slower_duck_is_believed() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.learn(8, 1_000));
        assert_eq!(pace.deadline(8), 1_250);
        (0..400).for_each(|_| pace.learn(8, 3_000));
        assert!((3_700..=3_900).contains(&pace.deadline(8)), "{}", pace.deadline(8));
        (0..400).for_each(|i| pace.learn(8, if i % 2 == 0 { 1_000 } else { 5_000 }));
        assert!(pace.deadline(8) > 9_000, "an irregular duck is given time: {}", pace.deadline(8));
    }
}
