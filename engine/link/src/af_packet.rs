//! Raw frames of one type, or of a few, over a network interface of the kernel's.
//!
//! The interface may go down, or vanish and come back under another number: until then frames are lost, and it is looked for by name once in
//! [`RETRY`]. Only whole frames are handled here; 802.1Q tags and offloads are the kernel's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;

use crate::sleeper::Sleeper;
use crate::socket::{Filled, Outbox, Sender, enlarge};
use crate::sys::{self, Address, BATCH, Inbox, Message};
use crate::{ETHERNET, Link, LinkError, LinkStats, Mac, Waker};

/// Longest payload: what the wire protocol's longest frame needs, whatever the interface could do.
const MTU_MOST: usize = 9600;
/// Every type (`ETH_P_ALL`), for a socket that a filter then keeps others from.
const ALL_TYPES: u16 = 3;
/// Time between two looks for an interface that is gone.
const RETRY: Duration = Duration::from_secs(1);

/// A packet socket on an interface.
pub struct AfPacket {
    socket: OwnedFd,
    interface: String,
    ethertype: u16,
    mac: Mac,
    speed: u32,
    /// When to look for the interface again, while it is gone.
    look_at: Option<Instant>,
    outbox: Outbox,
    sender: Sender,
    inbox: Inbox,
    sleeper: Sleeper,
    stats: LinkStats,
    /// What the kernel told of lost frames so far: it forgets when asked.
    dropped_in: AtomicU64,
}

impl AfPacket {
    /// Opens an interface of this thread's network namespace for frames of one type. The MTU is the interface's, at most 9600.
    ///
    /// # Errors
    ///
    /// [`LinkError::NotPermitted`] without `CAP_NET_RAW`, [`LinkError::NoInterface`], [`LinkError::NotEthernet`], or [`LinkError::System`].
    pub fn open(interface: &str, ethertype: u16) -> Result<AfPacket, LinkError> {
        AfPacket::open_at_most(interface, &[ethertype], MTU_MOST)
    }

    /// As [`AfPacket::open`], for frames of these types, at most eight, and with an MTU of at most `mtu`.
    ///
    /// # Errors
    ///
    /// As [`AfPacket::open`].
    pub fn open_at_most(interface: &str, ethertypes: &[u16], mtu: usize) -> Result<AfPacket, LinkError> {
        let name = || interface.to_owned();
        let system = |action| move |source| LinkError::System { link: format!("eth:{interface}"), action, source };
        let socket = sys::packet_socket().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => LinkError::NotPermitted { interface: name() },
            _ => system("open a packet socket")(error),
        })?;
        let found = sys::interface(socket.as_fd(), interface).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NODEV) => LinkError::NoInterface { interface: name() },
            _ => system("look up the interface")(error),
        })?;
        if !sys::HARDWARE.contains(&found.hardware) {
            return Err(LinkError::NotEthernet { interface: name(), found: found.hardware });
        }
        let most = found.mtu.min(MTU_MOST);
        if mtu == 0 || most == 0 {
            return Err(LinkError::Mtu { link: format!("eth:{interface}"), most, found: mtu });
        }
        enlarge(socket.as_fd());
        let ethertype = match ethertypes {
            [one] => *one,
            several => {
                // A socket is bound to one type or to all. It hears nothing before it is bound, so nothing slips through.
                sys::hear_only(socket.as_fd(), several).map_err(system("filter the types of frames"))?;
                ALL_TYPES
            }
        };
        let mtu = most.min(mtu);
        let mut link = AfPacket {
            sleeper: Sleeper::new().map_err(system("make an eventfd"))?,
            socket,
            interface: name(),
            ethertype,
            mac: found.mac,
            speed: read_speed(interface),
            look_at: None,
            outbox: Outbox::new(mtu),
            sender: Sender::default(),
            inbox: Inbox::new(ETHERNET + mtu),
            stats: LinkStats::default(),
            dropped_in: AtomicU64::new(0),
        };
        link.bind().map_err(system("bind a packet socket to the interface"))?;
        Ok(link)
    }

    /// Binds to the interface of that name, whatever its number is now.
    fn bind(&mut self) -> io::Result<()> {
        let index = name_to_index(&self.socket, &self.interface)?;
        sys::bind_interface(self.socket.as_fd(), &Address::of_interface(index, self.ethertype))?;
        self.mac = sys::interface(self.socket.as_fd(), &self.interface)?.mac;
        Ok(())
    }

    /// Looks for a lost interface if it is time to. One that is back but still down makes the next call to the socket fail, so it counts as lost
    /// again; when it goes up the kernel attaches the socket by itself.
    fn look(&mut self) {
        if let Some(at) = self.look_at
            && Instant::now() >= at
        {
            self.look_at = match self.bind() {
                Ok(()) => None,
                Err(_) => Instant::now().checked_add(RETRY),
            };
        }
    }

    /// Notes that the interface is gone.
    fn lose(&mut self) {
        if self.look_at.is_none() {
            self.look_at = Instant::now().checked_add(RETRY);
        }
    }
}

/// Whether an error says that the interface is down or gone.
fn is_loss(error: Errno) -> bool {
    matches!(error, Errno::NETDOWN | Errno::NXIO | Errno::NODEV)
}

/// Mbit/s by the driver's word, 0 if it doesn't say (-1 for an unplugged cable).
fn read_speed(interface: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

impl Link for AfPacket {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.outbox.mtu()
    }

    fn speed(&self) -> u32 {
        self.speed
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        match self.outbox.fill(fill) {
            Filled::Nothing => return false,
            Filled::Wrong => self.stats.dropped_out += 1,
            Filled::Waits => {}
            Filled::Full => self.flush(),
        }
        true
    }

    fn flush(&mut self) {
        self.look();
        let mut messages = [Message::default(); BATCH];
        let count = self.outbox.frames().len();
        if count == 0 {
            return;
        }
        for (message, bytes) in messages.iter_mut().zip(self.outbox.frames()) {
            message.bytes = bytes;
        }
        let (stats, mut lost) = (&mut self.stats, false);
        self.sender.send_all(self.socket.as_fd(), &messages[..count], &mut |i, error| match error {
            None => {
                stats.frames_out += 1;
                stats.bytes_out += messages[i].bytes.len() as u64;
            }
            Some(error) => {
                stats.dropped_out += 1;
                lost |= is_loss(error);
            }
        });
        self.outbox.clear();
        if lost {
            self.lose();
        }
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        self.look();
        let count = match self.inbox.receive(self.socket.as_fd()) {
            Ok(count) => count,
            Err(error) => {
                if Errno::from_io_error(&error).is_some_and(is_loss) {
                    self.lose();
                }
                return 0;
            }
        };
        let mut handed = 0;
        for i in 0..count {
            let (frame, from) = self.inbox.message(i);
            if !from.is_for_us() {
                continue;
            }
            let Some(frame) = frame else {
                self.stats.dropped_in += 1;
                continue;
            };
            self.stats.frames_in += 1;
            self.stats.bytes_in += frame.len() as u64;
            handed += 1;
            each(frame);
        }
        handed
    }

    /// While the interface is gone it sleeps no longer than until the next look for it.
    fn wait(&mut self, timeout: Option<Duration>) {
        self.look();
        let look = self.look_at.map(|at| at.saturating_duration_since(Instant::now()));
        self.sleeper.wait(&self.socket, timeout.into_iter().chain(look).min());
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    fn stats(&self) -> LinkStats {
        let now = sys::packet_drops(self.socket.as_fd());
        let kernel = self.dropped_in.fetch_add(now, Ordering::Relaxed) + now;
        LinkStats { dropped_in: self.stats.dropped_in + kernel, ..self.stats }
    }

    fn describe(&self) -> String {
        self.interface.clone()
    }
}
