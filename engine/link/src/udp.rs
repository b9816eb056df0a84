//! Whole Ethernet frames in UDP datagrams, one in each: no rights needed, and what QEMU's `-netdev dgram` speaks.
//!
//! Like a switch it learns from a frame's sender which socket its address is behind; frames for an address that it has not learnt, and for
//! groups, go to all peers. It does not forward. Nothing is encrypted or authenticated: whoever can send to the socket is on the segment.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::sleeper::Sleeper;
use crate::socket::{Filled, Outbox, Sender, enlarge};
use crate::sys::{self, Address, BATCH, Inbox, Message};
use crate::{ETHERNET, Header, Link, LinkError, LinkStats, Mac, Waker};

/// Hardware addresses that are remembered; the one longest unheard makes room.
const LEARNT: usize = 1024;
/// Bytes of the longest datagram (that of IPv4; IPv6's may be 20 bytes longer).
const DATAGRAM: usize = 65_507;

/// One end of a segment of UDP sockets.
pub struct Udp {
    socket: UdpSocket,
    address: SocketAddr,
    mac: Mac,
    peers: Peers,
    outbox: Outbox,
    sender: Sender,
    inbox: Inbox,
    sleeper: Sleeper,
    stats: LinkStats,
}

impl Udp {
    /// Binds a socket. Frames for unknown receivers go to `peers` and all who have spoken. Without `mac`, the hardware address is derived from the
    /// socket's: locally administered, and the same for the same address and port.
    ///
    /// Datagrams longer than the path's MTU are cut up by IP, so `mtu` may be larger.
    ///
    /// # Errors
    ///
    /// [`LinkError::Mtu`] if a frame is longer than a datagram, [`LinkError::NoMac`] if the socket is bound to all addresses and no `mac` is
    /// given, [`LinkError::System`] if the address cannot be bound.
    pub fn bind(addr: SocketAddr, peers: &[SocketAddr], mac: Option<Mac>, mtu: usize) -> Result<Udp, LinkError> {
        let system = |action| move |source| LinkError::System { link: format!("udp {addr}"), action, source };
        let most = DATAGRAM - ETHERNET;
        if mtu == 0 || mtu > most {
            return Err(LinkError::Mtu { link: format!("udp {addr}"), most, found: mtu });
        }
        let socket = UdpSocket::bind(addr).map_err(system("bind the address"))?;
        enlarge(socket.as_fd());
        let address = socket.local_addr().map_err(system("read the socket's address"))?;
        let mac = match mac {
            Some(mac) => mac,
            None if address.ip().is_unspecified() => return Err(LinkError::NoMac { address }),
            None => derive_mac(address),
        };
        Ok(Udp {
            sleeper: Sleeper::new().map_err(system("make an eventfd"))?,
            socket,
            address,
            mac,
            peers: Peers::new(address, peers),
            outbox: Outbox::new(mtu),
            sender: Sender::default(),
            inbox: Inbox::new(ETHERNET + mtu),
            stats: LinkStats::default(),
        })
    }

    /// The address that the socket is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

/// FNV-1a of the address's text, cut to 46 bits, marked as locally administered and single.
fn derive_mac(address: SocketAddr) -> Mac {
    let text = address.to_string();
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut mac = Mac::from_u64(hash ^ hash >> 48);
    mac.0[0] = mac.0[0] & !3 | 2;
    mac
}

/// Who is where.
struct Peers {
    own: SocketAddr,
    configured: Vec<SocketAddr>,
    learnt: HashMap<Mac, Learnt>,
    /// All configured and learnt addresses, each once.
    all: Vec<(SocketAddr, Address)>,
    /// Frames heard, as a clock.
    clock: u64,
}

struct Learnt {
    socket: SocketAddr,
    address: Address,
    heard: u64,
}

impl Peers {
    fn new(own: SocketAddr, configured: &[SocketAddr]) -> Peers {
        let (learnt, all) = (HashMap::with_capacity(LEARNT), Vec::new());
        let mut peers = Peers { own, configured: configured.to_vec(), learnt, all, clock: 0 };
        peers.gather();
        peers
    }

    fn learn(&mut self, mac: Mac, from: &Address) {
        let Some(socket) = from.to_socket_addr() else { return };
        if mac.is_multicast() {
            return;
        }
        self.clock += 1;
        if let Some(known) = self.learnt.get_mut(&mac)
            && known.socket == socket
        {
            known.heard = self.clock;
            return;
        }
        if self.learnt.len() == LEARNT
            && !self.learnt.contains_key(&mac)
            && let Some((&oldest, _)) = self.learnt.iter().min_by_key(|(_, known)| known.heard)
        {
            self.learnt.remove(&oldest);
        }
        self.learnt.insert(mac, Learnt { socket, address: *from, heard: self.clock });
        self.gather();
    }

    fn gather(&mut self) {
        self.all.clear();
        let learnt = self.learnt.values().map(|known| known.socket);
        self.all.extend(self.configured.iter().copied().chain(learnt).map(|socket| (socket, Address::from(socket))));
        self.all.sort_unstable_by_key(|(socket, _)| *socket);
        self.all.dedup_by_key(|(socket, _)| *socket);
        // One list of all ends may serve each of them.
        self.all.retain(|(socket, _)| *socket != self.own);
    }

    /// Calls `each` with where a frame goes.
    fn route<'a>(&'a self, to: Mac, mut each: impl FnMut(&'a Address)) {
        match self.learnt.get(&to) {
            Some(known) => each(&known.address),
            None => self.all.iter().for_each(|(_, address)| each(address)),
        }
    }
}

impl Link for Udp {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.outbox.mtu()
    }

    fn speed(&self) -> u32 {
        0
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
        if self.outbox.frames().len() == 0 {
            return;
        }
        let (socket, sender) = (self.socket.as_fd(), &mut self.sender);
        // A frame is lost if copies should have left and none did.
        let (mut tried, mut left) = ([false; BATCH], [false; BATCH]);
        let mut messages = [Message::default(); BATCH];
        let (mut frame_of, mut count) = ([0; BATCH], 0);
        for (i, bytes) in self.outbox.frames().enumerate() {
            let to = Header::parse(bytes).map_or(Mac::default(), |header| header.to);
            self.peers.route(to, |address| {
                messages[count] = Message { bytes, to: Some(address) };
                frame_of[count] = i;
                tried[i] = true;
                count += 1;
                if count == BATCH {
                    sender.send_all(socket, &messages, &mut |m, error| left[frame_of[m]] |= error.is_none());
                    count = 0;
                }
            });
        }
        sender.send_all(socket, &messages[..count], &mut |m, error| left[frame_of[m]] |= error.is_none());
        for (i, bytes) in self.outbox.frames().enumerate() {
            if tried[i] && !left[i] {
                self.stats.dropped_out += 1;
            } else {
                self.stats.frames_out += 1;
                self.stats.bytes_out += bytes.len() as u64;
            }
        }
        self.outbox.clear();
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        // Errors are those of earlier sends (a peer's socket is closed), or that nothing is there.
        let Ok(count) = self.inbox.receive(self.socket.as_fd()) else { return 0 };
        let mut handed = 0;
        for i in 0..count {
            let (frame, from) = self.inbox.message(i);
            let Some((frame, header)) = frame.and_then(|frame| Some((frame, Header::parse(frame)?))) else {
                self.stats.dropped_in += 1;
                continue;
            };
            if header.from == self.mac {
                continue;
            }
            self.peers.learn(header.from, from);
            if header.to == self.mac || header.to.is_multicast() {
                self.stats.frames_in += 1;
                self.stats.bytes_in += frame.len() as u64;
                handed += 1;
                each(frame);
            }
        }
        handed
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.sleeper.wait(&self.socket, timeout);
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    fn stats(&self) -> LinkStats {
        LinkStats { dropped_in: self.stats.dropped_in + sys::socket_drops(self.socket.as_fd()), ..self.stats }
    }

    fn describe(&self) -> String {
        format!("udp {}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn route(peers: &Peers, to: Mac) -> Vec<u16> {
        let mut ports = Vec::new();
        peers.route(to, |address| ports.extend(address.to_socket_addr().map(|a| a.port())));
        ports
    }

    #[test]
    fn an_address_derived_from_a_socket_is_single_local_and_its_own() {
        let mut seen = std::collections::HashSet::new();
        for port in 1..5000 {
            let mac = derive_mac(at(port));
            assert_eq!(mac.0[0] & 3, 2, "{mac}");
            assert_eq!(mac, derive_mac(at(port)));
            assert!(seen.insert(mac), "{mac} twice");
        }
    }

    #[test]
    fn a_socket_on_all_addresses_needs_a_hardware_address() {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let error = Udp::bind(any, &[], None, 1500).err().expect("no single address");
        assert!(error.to_string().contains("give a hardware address"), "{error}");
        assert_eq!(Udp::bind(any, &[], Some(Mac::from_u64(7)), 1500).expect("a link").mac(), Mac::from_u64(7));
    }

    #[test]
    fn a_frame_must_fit_a_datagram() {
        assert!(Udp::bind(at(0), &[], None, DATAGRAM - ETHERNET).is_ok());
        for mtu in [0, DATAGRAM - ETHERNET + 1, usize::MAX] {
            let error = Udp::bind(at(0), &[], None, mtu).err().expect("no such datagram");
            assert!(error.to_string().contains(&format!("found {mtu}")), "{error}");
        }
    }

    #[test]
    fn frames_go_to_the_learnt_socket_or_once_to_each() {
        let mut peers = Peers::new(at(1), &[at(1), at(2), at(3), at(2)]);
        let mac = Mac::from_u64(9);
        assert_eq!(route(&peers, mac), [2, 3]);
        peers.learn(mac, &at(3).into());
        peers.learn(Mac::from_u64(10), &at(4).into());
        assert_eq!(route(&peers, mac), [3]);
        assert_eq!(route(&peers, crate::BROADCAST), [2, 3, 4]);
        peers.learn(mac, &at(5).into());
        assert_eq!(route(&peers, mac), [5], "it has moved");
        peers.learn(crate::BROADCAST, &at(6).into());
        assert_eq!(route(&peers, crate::BROADCAST), [2, 3, 4, 5], "a group speaks for nobody");
    }

    #[test]
    fn the_address_longest_unheard_makes_room() {
        let mut peers = Peers::new(at(1), &[]);
        for i in 0..LEARNT as u64 {
            peers.learn(Mac::from_u64(i), &at(2).into());
        }
        peers.learn(Mac::from_u64(0), &at(2).into());
        peers.learn(Mac::from_u64(LEARNT as u64), &at(3).into());
        assert_eq!(peers.learnt.len(), LEARNT);
        assert!(!peers.learnt.contains_key(&Mac::from_u64(1)) && peers.learnt.contains_key(&Mac::from_u64(0)));
    }

    #[test]
    fn both_families_come_back_from_the_kernels_form() {
        for text in ["10.1.2.3:7000", "[fe80::1%3]:7001", "[2001:db8::7]:65535"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(Address::from(address).to_socket_addr(), Some(address));
        }
        let mapped: SocketAddr = "[::ffff:10.1.2.3]:7000".parse().expect("an address");
        assert_eq!(Address::from(mapped).to_socket_addr(), "10.1.2.3:7000".parse().ok());
    }
}
