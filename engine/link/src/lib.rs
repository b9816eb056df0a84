//! Ethernet frames in and out: one [`Link`] for each broadcast domain, whatever carries it.

//!
//! [`Hub`] joins ends within a process, [`Udp`] puts frames into datagrams, [`AfPacket`] sends them over a network interface, and [`Faulty`]
//! spoils any of them on purpose. [`Spec`] opens one from its description in a configuration. What the frames mean is not known here.

#![deny(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

mod af_packet;
pub mod ethernet;
mod faults;
mod faulty;
mod in_process;
mod sleeper;
mod socket;
mod spec;
mod sys;
mod udp;

pub use af_packet::AfPacket;
pub use ethernet::{Header, MacError};
pub use faults::{Faults, FaultsError};
pub use faulty::{FaultCounts, Faulty};
pub use in_process::{Hub, Port};
pub use spec::{Spec, SpecError};
pub use udp::Udp;
pub use wire::ethernet::ETHERNET;

/// The address of everyone.
pub const BROADCAST: Mac = Mac([0xff; 6]);

/// A hardware address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// One end of a broadcast domain. Frames are whole Ethernet II frames without the checksum at their end.
///
/// Nothing here fails: what cannot be sent or received is a lost frame, which whoever uses a link must survive anyway, and is counted in
/// [`LinkStats`]. One thread uses a link at a time; a [`Waker`] may be used from any.
pub trait Link: Send {
    /// This end's address.
    fn mac(&self) -> Mac;

    /// Bytes that may follow the Ethernet header.
    fn mtu(&self) -> usize;

    /// Speed in Mbit/s, 0 if nobody knows.
    fn speed(&self) -> u32;

    /// Sends a frame: `fill` gets a buffer of `ETHERNET + mtu` bytes and returns how many it has written, 0 for nothing to send. Frames may wait
    /// until [`Link::flush`]. Returns whether there was one. A length that no frame can have is counted as dropped.
    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool;

    /// Sends what waits.
    fn flush(&mut self);

    /// Hands over frames that have arrived for this end's address or a group, at most a batch, without waiting. Returns how many. Ethernet may have
    /// padded them to 60 bytes.
    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize;

    /// Sleeps until a frame has arrived, a [`Waker`] was used since the last call, or the time is over (`None`: never). It may end early: whoever
    /// waits for something looks whether it is there.
    fn wait(&mut self, timeout: Option<Duration>);

    /// Ends a [`Link::wait`] from another thread.
    fn waker(&self) -> Waker;

    /// What went through.
    fn stats(&self) -> LinkStats;

    /// What carries it, for people: `eth0`, `udp 127.0.0.1:7000`.
    fn describe(&self) -> String;
}

/// Ends a link's wait, now or the next one.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that calls `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames sent.
    pub frames_out: u64,
    /// Their bytes, headers included.
    pub bytes_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Frames that could not be sent.
    pub dropped_out: u64,
    /// Frames that arrived and were lost here, as far as the carrier tells.
    pub dropped_in: u64,
}

impl Link for Box<dyn Link> {
    fn mac(&self) -> Mac {
        (**self).mac()
    }

    fn mtu(&self) -> usize {
        (**self).mtu()
    }

    fn speed(&self) -> u32 {
        (**self).speed()
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        (**self).tx(fill)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        (**self).rx(each)
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        (**self).wait(timeout);
    }

    fn waker(&self) -> Waker {
        (**self).waker()
    }

    fn stats(&self) -> LinkStats {
        (**self).stats()
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Raw frames need a right that this process lacks.
    #[error(
        "{interface}: no right to send raw frames: run as root, or give the program the right with \
         `setcap cap_net_raw+ep PROGRAM`"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
    },
    /// There is no such interface.
    #[error("no network interface is called {interface:?}: `ip link` lists them")]
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// The interface carries something else.
    #[error("{interface} is not an Ethernet interface: expected hardware type 1, found {found}")]
    NotEthernet {
        /// Its name.
        interface: String,
        /// The kernel's number of what it is (`ARPHRD_`).
        found: u16,
    },
    /// A frame of that many bytes does not fit the carrier.
    #[error("{link}: expected an MTU from 1 to {most}, found {found}")]
    Mtu {
        /// What was opened.
        link: String,
        /// Largest that it can carry.
        most: usize,
        /// What was asked for.
        found: usize,
    },
    /// No hardware address can be told from the socket's.
    #[error(
        "udp {address} is bound to every address, so it names no single end: bind to one address, or give a hardware address"
    )]
    NoMac {
        /// The socket's address.
        address: std::net::SocketAddr,
    },
    /// A driver that was not built in.
    #[error("dpdk:{device}: this program is built without DPDK")]
    NoDpdk {
        /// What followed `dpdk:`.
        device: String,
    },
    /// The system refused.
    #[error("{link}: cannot {action}")]
    System {
        /// What was opened.
        link: String,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}
