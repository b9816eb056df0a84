//! Ducks being loaded: a bar for each and one for all on a terminal, else a line every few seconds.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use flock::remote::{DuckState, DuckStatus, PondStatus};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::format::bytes;
use crate::output::say;

/// How long nothing is shown.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between lines where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// More ducks than this have only the common bar.
const MOST_BARS: usize = 40;

/// What is shown.
pub struct Bars {
    began: Instant,
    terminal: bool,
    told: Option<Instant>,
    bars: Option<(MultiProgress, Vec<ProgressBar>, ProgressBar)>,
}

impl Bars {
    /// Begins now.
    pub fn begin() -> Bars {
        Bars { began: Instant::now(), terminal: stderr().is_terminal(), told: None, bars: None }
    }

    /// How the pond is now.
    pub fn update(&mut self, status: &PondStatus) {
        if self.began.elapsed() < PATIENCE {
            return;
        }
        let loads: Vec<&DuckStatus> = status.ducks.iter().filter(|duck| duck.blocks > 0).collect();
        let held = |duck: &DuckStatus| u64::from(duck.resident) * duck.block_bytes;
        let all = |duck: &DuckStatus| u64::from(duck.blocks) * duck.block_bytes;
        let (done, total): (u64, u64) =
            loads.iter().fold((0, 0), |(done, total), duck| (done + held(duck), total + all(duck)));
        if !self.terminal {
            if self.told.is_none_or(|told| told.elapsed() >= BETWEEN_LINES) {
                self.told = Some(Instant::now());
                let ready = status.ducks.iter().filter(|duck| duck.state == DuckState::Ready).count();
                let count = status.ducks.len();
                say(format_args!("loading ducks: {} of {}, {ready} of {count} ducks ready", bytes(done), bytes(total)));
            }
            return;
        }
        let (_, bars, sum) = self.bars.get_or_insert_with(|| {
            let multi = MultiProgress::new();
            let style = |template| ProgressStyle::with_template(template).expect("the template is valid");
            let one = style("{prefix:16} {bar:30} {bytes}/{total_bytes} {msg}");
            let bars = status
                .ducks
                .iter()
                .take(MOST_BARS)
                .map(|duck| multi.add(ProgressBar::new(1).with_style(one.clone()).with_prefix(duck.name.clone())))
                .collect();
            let sum = ProgressBar::new(1)
                .with_style(style("{prefix:16} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} to go"))
                .with_prefix("all ducks");
            let sum = multi.add(sum);
            sum.set_position(done);
            sum.reset_eta();
            (multi, bars, sum)
        });
        for (duck, bar) in status.ducks.iter().zip(bars.iter()) {
            bar.set_length(all(duck).max(1));
            bar.set_position(held(duck));
            bar.set_message(duck.state.name());
        }
        sum.set_length(total.max(1));
        sum.set_position(done);
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        if let Some((_, bars, sum)) = self.bars.take() {
            bars.iter().for_each(ProgressBar::finish_and_clear);
            sum.finish_and_clear();
        }
    }
}
