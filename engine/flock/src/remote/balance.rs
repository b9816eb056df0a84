//! Which ducks are slower than their flock, and how many units they should give up.
//!
//! Looked at after every [`WINDOW`] steps: a duck whose mean time lies above the median of all by more than one of its units costs gives up
//! units, one that lies below by as much takes some back. Half the distance at a time, since the others' times grow meanwhile.

/// Steps between two looks.
pub const WINDOW: u64 = 256;

/// What one duck did since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Steps in which it had work.
    pub steps: u64,
    /// Microseconds that these took, from the input's first frame to the last result.
    pub micros: u64,
}

/// How many units each duck has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    shed: Vec<u32>,
}

impl Balance {
    /// Nobody has given up anything.
    pub fn new(ducks: usize) -> Balance {
        Balance { shed: vec![0; ducks] }
    }

    /// By duck: units given up.
    pub fn shed(&self) -> &[u32] {
        &self.shed
    }

    /// Looks at what happened since the last time; `units` is how many units each duck computes now. Returns whether something changed.
    pub fn look(&mut self, samples: &[Sample], units: &[u32]) -> bool {
        let mean = |duck: usize| {
            let Sample { steps, micros } = samples[duck];
            (steps >= WINDOW / 4 && units[duck] > 0).then(|| micros as f64 / steps as f64)
        };
        let mut means: Vec<f64> = (0..samples.len()).filter_map(mean).collect();
        if means.len() < 3 {
            // Of two, nobody can tell which is the odd one.
            return false;
        }
        means.sort_by(f64::total_cmp);
        let median = means[means.len() / 2];
        let mut changed = false;
        for (duck, &units) in units.iter().enumerate() {
            let Some(mean) = mean(duck) else { continue };
            let share = mean / f64::from(units);
            let units_off = ((mean - median).abs() / share / 2.0).ceil() as u32;
            if mean - median > share && units > 1 {
                self.shed[duck] += units_off.min(units - 1);
                changed = true;
            } else if median - mean > share && self.shed[duck] > 0 {
                self.shed[duck] -= units_off.min(self.shed[duck]);
                changed = true;
            }
        }
        changed
    }

    /// It has given up no more than that, since nobody else could take it.
    pub fn limit(&mut self, duck: usize, units: u32) {
        self.shed[duck] = self.shed[duck].min(units);
    }

    /// A duck that has been away starts afresh.
    pub fn forget(&mut self, duck: usize) {
        self.shed[duck] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flock on a fake clock: each duck takes a fixed time and a time per unit.
    fn samples(fixed: f64, each: &[f64], units: &[u32]) -> Vec<Sample> {
        let of = |(each, &units): (&f64, &u32)| Sample {
            steps: WINDOW,
            micros: ((fixed + each * f64::from(units)) * WINDOW as f64) as u64,
        };
        each.iter().zip(units).map(of).collect()
    }

    fn settle(balance: &mut Balance, each: &[f64], all: u32, looks: usize) -> Vec<u32> {
        let mut units = vec![all; each.len()];
        for _ in 0..looks {
            balance.look(&samples(200.0, each, &units), &units);
            units = balance.shed().iter().map(|shed| all - shed).collect();
        }
        units
    }

    #[test]
    fn a_slow_duck_sheds_until_it_keeps_pace_and_takes_back_when_it_is_well() {
        let mut balance = Balance::new(8);
        let mut each = [10.0; 8];
        each[3] = 15.0;
        let units = settle(&mut balance, &each, 64, 20);
        let time = 200.0 + 15.0 * f64::from(units[3]);
        assert!((time - 840.0).abs() <= 2.0 * time / f64::from(units[3]), "{units:?}");
        assert!(units.iter().enumerate().all(|(i, &u)| i == 3 || u == 64), "{units:?}");
        each[3] = 10.0;
        assert_eq!(settle(&mut balance, &each, 64, 30)[3], 64 - balance.shed()[3]);
        assert!(balance.shed()[3] <= 1, "{balance:?}");
        balance.forget(3);
        assert_eq!(balance.shed(), [0; 8]);
    }

    #[test]
    fn differences_below_one_units_share_change_nothing() {
        let mut balance = Balance::new(5);
        let each = [10.0, 10.1, 9.9, 10.05, 10.12];
        assert_eq!(settle(&mut balance, &each, 32, 10), [32; 5]);
        assert!(!balance.look(&[Sample::default(); 5], &[32; 5]), "no steps, no verdict");
        let two = samples(0.0, &[10.0, 30.0], &[8, 8]);
        assert!(!Balance::new(2).look(&two, &[8, 8]));
    }
}
