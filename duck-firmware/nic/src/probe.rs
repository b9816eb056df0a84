//! From configuration space to a running card.

use crate::dma::Dma;
use crate::error::{Failure, NicError, StartError};
use crate::intel::{self, Intel};
use crate::mmio::{Clock, Mmio};
use crate::nic::{Counters, Mac, Nic, Proven};
use crate::pci::{self, Bdf, ConfigSpace, Function};
use crate::realtek::{self, Realtek};
use crate::start::{Notes, Options, Platform};
use crate::virtio::{self, VirtioNet};

/// Which card to take; with neither field, the first that starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// The one in this place.
    pub bdf: Option<Bdf>,
    /// The one with this address. Others are reset on the way, but use no memory.
    pub mac: Option<[u8; 6]>,
}

/// A running card.
#[derive(Debug)]
pub struct Found<M> {
    /// The card.
    pub nic: AnyNic<M>,
    /// Where it was and what it is.
    pub at: Function,
    /// Waits of its start that ran out without being fatal.
    pub notes: Notes,
}

/// Any card with a driver here.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one in the machine, and nothing to box it with")]
pub enum AnyNic<M> {
    /// virtio-net.
    Virtio(VirtioNet<M>),
    /// RTL8125, RTL8139C+.
    Realtek(Realtek<M>),
    /// 82540, 82574, I225, I226.
    Intel(Intel<M>),
}

macro_rules! each {
    ($self:ident, $nic:ident => $call:expr) => {
        match $self {
            AnyNic::Virtio($nic) => $call,
            AnyNic::Realtek($nic) => $call,
            AnyNic::Intel($nic) => $call,
        }
    };
}

impl<M: Mmio> Nic for AnyNic<M> {
    fn mac(&self) -> [u8; 6] {
        each!(self, nic => nic.mac())
    }
    fn link_mbps(&mut self) -> u32 {
        each!(self, nic => nic.link_mbps())
    }
    fn rx(&mut self, frame: &mut dyn FnMut(&[u8])) -> bool {
        each!(self, nic => nic.rx(frame))
    }
    fn tx(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        each!(self, nic => nic.tx(len, fill))
    }
    fn flush(&mut self) {
        each!(self, nic => nic.flush());
    }
    fn max_frame(&self) -> usize {
        each!(self, nic => nic.max_frame())
    }
    fn name(&self) -> &'static str {
        each!(self, nic => nic.name())
    }
    fn proven(&self) -> Proven {
        each!(self, nic => nic.proven())
    }
    fn counters(&self) -> Counters {
        each!(self, nic => nic.counters())
    }
}

/// Which driver a function gets.
#[derive(Clone, Copy)]
enum Driver {
    Virtio,
    Realtek(&'static realtek::Model),
    Intel(&'static intel::Model),
}

impl Driver {
    fn of(function: &Function) -> Option<Self> {
        let Function { vendor, device, revision, .. } = *function;
        if virtio::drives(vendor, device) {
            return Some(Self::Virtio);
        }
        let realtek = realtek::model(vendor, device, revision).map(Self::Realtek);
        realtek.or_else(|| intel::model(vendor, device).map(Self::Intel))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Virtio => virtio::NAME,
            Self::Realtek(model) => model.name,
            Self::Intel(model) => model.name,
        }
    }

    /// The base address register with the card's registers and how many bytes of it the driver uses; virtio says so elsewhere.
    fn window(self) -> (u8, usize) {
        match self {
            Self::Virtio => (0, 0),
            Self::Realtek(model) => (model.bar, model.registers),
            Self::Intel(_) => (0, intel::REGISTERS),
        }
    }
}

/// Finds and starts a network card: the first in bus order that has a driver, passes the filter and starts.
///
/// `map` makes `len` bytes of registers at a physical address accessible, uncached; the address need not be the start of a
/// page, and the same page may be asked for more than once. All cards but the one returned are left without access to memory:
/// the firmware may have left them receiving.
///
/// # Errors
/// What cards there are and why none of them works, for a person to read.
#[allow(clippy::result_large_err, reason = "returned once, and nothing to box it with")]
pub fn probe<M: Mmio>(
    config: &impl ConfigSpace,
    mut map: impl FnMut(u64, usize) -> Option<M>,
    dma: &mut dyn Dma,
    clock: &dyn Clock,
    filter: &Filter,
    options: &Options,
) -> Result<Found<M>, NicError> {
    let mut refused = NicError::default();
    for at in pci::functions(config).filter(Function::is_network) {
        refused.seen.push(at);
        pci::disable_bus_master(config, at.bdf);
    }
    for at in pci::functions(config).filter(Function::is_network) {
        let Some(driver) = Driver::of(&at).filter(|_| filter.bdf.is_none_or(|bdf| bdf == at.bdf)) else { continue };
        let mut notes = Notes::default();
        let mut platform = Platform {
            clock,
            dma: &mut *dma,
            bus_master: &mut || pci::enable_bus_master(config, at.bdf),
            options,
            mac: filter.mac.map(Mac),
            notes: &mut notes,
        };
        match start(config, at.bdf, driver, &mut map, &mut platform) {
            Ok(nic) => return Ok(Found { nic, at, notes }),
            Err(error) => {
                pci::disable_bus_master(config, at.bdf);
                refused.failures.push(Failure { at: at.bdf, driver: driver.name(), error });
            }
        }
    }
    Err(refused)
}

fn start<M: Mmio>(
    config: &impl ConfigSpace,
    bdf: Bdf,
    driver: Driver,
    map: &mut impl FnMut(u64, usize) -> Option<M>,
    platform: &mut Platform,
) -> Result<AnyNic<M>, StartError> {
    pci::prepare(config, bdf, platform.clock);
    let mut window = || {
        let (index, expected) = driver.window();
        let bar = pci::bar(config, bdf, index);
        let (address, len) = bar.map_or((0, 0), |bar| (bar.address, bar.len));
        if address == 0 || len < expected as u64 {
            return Err(StartError::Bar { bar: index, address, len, expected });
        }
        map(address, expected).ok_or(StartError::NotMapped { address, len: expected })
    };
    Ok(match driver {
        Driver::Virtio => {
            let windows = virtio::Windows::find(config, bdf, map)?;
            AnyNic::Virtio(VirtioNet::start(windows, platform)?)
        }
        Driver::Realtek(model) => AnyNic::Realtek(Realtek::start(window()?, model, platform)?),
        Driver::Intel(model) => AnyNic::Intel(Intel::start(window()?, model, platform)?),
    })
}
