//! The link and the clock as a duck wants them.

use std::time::{Duration, Instant};

use link::Link;
use node::Carrier;
use wire::Micros;

use crate::monitor::Monitor;
use crate::pool::Patience;

/// A link, and a clock that began with it.
pub(crate) struct Linked {
    pub link: Box<dyn Link>,
    pub monitor: Monitor,
    pub patience: Patience,
    pub origin: Instant,
}

impl Carrier for Linked {
    fn mac(&self) -> [u8; 6] {
        self.link.mac().0
    }

    fn now(&self) -> Micros {
        micros(self.origin.elapsed())
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        self.link.rx(each)
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        self.link.tx(fill)
    }

    fn flush(&mut self) {
        self.link.flush();
    }

    fn wait(&mut self, micros: Micros) {
        self.monitor.waited();
        self.link.wait(Some(Duration::from_micros(micros)));
    }

    fn pause(&mut self, looks: u32) {
        self.patience.pause(looks);
    }

    fn beat(&mut self) {
        self.monitor.beat();
    }
}

pub(crate) fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}
