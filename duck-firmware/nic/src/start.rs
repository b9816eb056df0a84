//! What every driver's start needs: waiting with a limit, options, memory, the moment to allow bus mastering.

use crate::dma::Dma;
use crate::error::StartError;
use crate::list::List;
use crate::mmio::Clock;
use crate::nic::{JUMBO_FRAME, MAX_FRAME, MIN_FRAME, Mac};

/// Waits that ran out without being fatal: a vendor's driver goes on as well. Worth showing when something else is wrong.
pub type Notes = List<StartError, 8>;

/// Sizes, the same for every driver.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest frame, in bytes without the check sequence, up to [`JUMBO_FRAME`].
    pub max_frame: usize,
    /// Receive descriptors, a power of two from 8 to 4096, each with a buffer for a whole frame.
    pub rx_ring: usize,
    /// Send descriptors, likewise.
    pub tx_ring: usize,
}

impl Default for Options {
    /// Ordinary frames, 256 descriptors each way: about 1 MiB of memory.
    fn default() -> Self {
        Self { max_frame: MAX_FRAME, rx_ring: 256, tx_ring: 256 }
    }
}

impl Options {
    /// Refuses what no driver can do, and frames longer than `most`.
    pub(crate) fn check(&self, most: usize) -> Result<(), StartError> {
        let most = most.min(JUMBO_FRAME);
        if !(MIN_FRAME..=most).contains(&self.max_frame) {
            return Err(StartError::FrameTooLong { asked: self.max_frame, most });
        }
        for ring in [self.rx_ring, self.tx_ring] {
            if !ring.is_power_of_two() || !(8..=4096).contains(&ring) {
                return Err(StartError::RingSize(ring));
            }
        }
        Ok(())
    }
}

/// What a driver's start may use.
pub(crate) struct Platform<'a> {
    pub clock: &'a dyn Clock,
    pub dma: &'a mut dyn Dma,
    /// Lets the card read and write memory. To be called after its reset, before its rings start.
    pub bus_master: &'a mut dyn FnMut(),
    pub options: &'a Options,
    /// The only address that the caller wants.
    pub mac: Option<Mac>,
    pub notes: &'a mut Notes,
}

impl Platform<'_> {
    /// Reads a register every `every_us` until `done`, at most `tries` times.
    pub(crate) fn wait(
        &self,
        (step, register): (&'static str, usize),
        (every_us, tries): (u32, u32),
        read: impl Fn() -> u32,
        done: impl Fn(u32) -> bool,
    ) -> Result<(), StartError> {
        for _ in 0..tries {
            if done(read()) {
                return Ok(());
            }
            self.clock.delay_us(every_us);
        }
        match read() {
            value if done(value) => Ok(()),
            value => Err(StartError::TimedOut { step, register, value }),
        }
    }

    /// Keeps a wait that ran out as a note.
    pub(crate) fn tolerate(&mut self, result: Result<(), StartError>) {
        if let Err(error) = result {
            self.notes.push(error);
        }
    }

    /// Refuses an address that no card may have, and one that the caller does not want.
    pub(crate) fn admit(&self, mac: Mac, register: usize) -> Result<(), StartError> {
        if !mac.is_station() {
            let value = mac.registers().0;
            return Err(StartError::Unexpected {
                step: "read MAC address",
                register,
                value,
                expected: "the address of a station",
            });
        }
        match self.mac {
            Some(expected) if expected != mac => Err(StartError::OtherMac { found: mac, expected }),
            _ => Ok(()),
        }
    }

    pub(crate) fn delay_us(&self, us: u32) {
        self.clock.delay_us(us);
    }
}
