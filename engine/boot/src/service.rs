//! The service of one domain: frames in, answers and events out.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use link::{BROADCAST, Link, Mac};
use smoltcp::wire::DhcpMessageType;

use crate::config::{Config, ConfigError, Files, Lease};
use crate::dhcp::{self, Answer, Request};
use crate::event::{Event, Events, Running};
use crate::frame::{self, Incoming, Outbox, Own, Peer};
use crate::leases::{Leases, TERM};
use crate::limit::Limit;
use crate::tftp::{self, Packet, Refusal};
use crate::transfer::{Transfers, Wanted};

/// Sends a frame: of its length, with what the function writes.
pub type Tx<'a> = dyn FnMut(usize, &mut dyn FnMut(&mut [u8])) + 'a;

/// Frames that one call of [`Service::transmit`] sends at most.
const TURN: usize = 32;
/// Hardware addresses of strangers that were told of, so that each is told of once in a while.
const STRANGERS: usize = 32;

/// Answers the ducks of one domain.
///
/// For each frame of the link: [`Service::handle`]. Then, and when [`Service::next_deadline`] is over: [`Service::transmit`] until it returns
/// `false`. [`Service::poll_event`] may follow at any time. `now` is the time since any moment that stays the same, and never goes back.
pub struct Service {
    config: Config,
    own: Own,
    leases: Leases,
    transfers: Transfers,
    outbox: Outbox,
    events: Events,
    limit: Limit,
    strangers: [Mac; STRANGERS],
    next_stranger: usize,
}

impl Service {
    /// A service that knows this much.
    ///
    /// # Errors
    /// The first field that makes no sense.
    pub fn new(config: Config) -> Result<Service, ConfigError> {
        config.check()?;
        Ok(Service {
            own: Own { mac: config.mac, address: config.address, broadcast: config.broadcast() },
            leases: Leases::new(config.leases.clone(), config.adopt.clone(), config.address),
            transfers: Transfers::new(),
            outbox: Outbox::new(config.mtu),
            events: Events::default(),
            limit: Limit::new(),
            strangers: [Mac::default(); STRANGERS],
            next_stranger: 0,
            config,
        })
    }

    /// Starts or ends giving addresses to ducks that are in no row. What they have they keep.
    ///
    /// # Errors
    /// Addresses of another subnet; then nothing changes.
    pub fn set_adopt(&mut self, range: Option<RangeInclusive<Ipv4Addr>>) -> Result<(), ConfigError> {
        self.change(|config| config.adopt = range)?;
        self.leases.set_range(self.config.adopt.clone());
        Ok(())
    }

    /// Replaces the rows.
    ///
    /// # Errors
    /// A row that makes no sense; then nothing changes.
    pub fn set_leases(&mut self, rows: Vec<Lease>) -> Result<(), ConfigError> {
        self.change(|config| config.leases = rows)?;
        self.leases.set_rows(self.config.leases.clone());
        Ok(())
    }

    /// Replaces the files. Whoever fetches one gets the rest of what it was.
    ///
    /// # Errors
    /// Without a file that is booted; then nothing changes.
    pub fn set_files(&mut self, files: Files) -> Result<(), ConfigError> {
        self.change(|config| config.files = files)
    }

    fn change(&mut self, change: impl FnOnce(&mut Config)) -> Result<(), ConfigError> {
        let mut config = self.config.clone();
        change(&mut config);
        config.check()?;
        self.config = config;
        Ok(())
    }

    /// Takes any Ethernet frame. Returns whether it was of a type that is the service's business, answered or not.
    pub fn handle(&mut self, now: Duration, frame: &[u8]) -> bool {
        if !frame::is_ours(frame) {
            return false;
        }
        match frame::parse(&self.own, frame) {
            Some(Incoming::WhoHas { from }) if self.limit.take(now) => {
                self.outbox.put(|frame| frame::emit_arp(frame, &self.own, from));
            }
            Some(Incoming::Echo { from, ident, sequence, data }) if self.limit.take(now) => {
                let emit = |frame: &mut [u8]| frame::emit_echo(frame, &self.own, from, ident, sequence, data);
                self.outbox.put(|frame| emit(frame).unwrap_or(0));
            }
            Some(Incoming::Datagram { from, ports: [dhcp::CLIENT_PORT, dhcp::SERVER_PORT], data, .. }) => {
                let request = Request::parse(data).filter(|request| request.mac == from.mac);
                if let Some(request) = request.filter(|_| self.limit.take(now)) {
                    self.dhcp(now, &request);
                }
            }
            Some(Incoming::Datagram { from, ports: [theirs, ours], to_all: false, data }) => {
                // Files are for those who have their address from here.
                let known = self.leases.address(now, from.mac) == Some(from.address);
                if let Some(packet) = known.then(|| Packet::parse(data)).flatten() {
                    self.tftp(now, from, [ours, theirs], packet);
                }
            }
            _ => {}
        }
        true
    }

    fn dhcp(&mut self, now: Duration, request: &Request<'_>) {
        let mac = request.mac;
        match request.kind {
            DhcpMessageType::Discover => match self.leases.offer(now, mac) {
                Some(address) => {
                    self.answer(request, DhcpMessageType::Offer, Some(address));
                    self.events.push(Event::Offered { client: self.leases.client(mac), address });
                }
                None => self.tell_stranger(mac),
            },
            DhcpMessageType::Request => {
                // One that is not known may be somebody else's.
                let Some(address) = self.leases.address(now, mac) else { return self.tell_stranger(mac) };
                if request.server.is_some_and(|server| server != self.own.address) {
                    return self.leases.release(mac);
                }
                if request.wants.unwrap_or(request.has) != address {
                    return self.answer(request, DhcpMessageType::Nak, None);
                }
                self.leases.confirm(now, mac);
                self.answer(request, DhcpMessageType::Ack, Some(address));
                self.events.push(Event::Leased { client: self.leases.client(mac), address });
            }
            DhcpMessageType::Inform if self.leases.address(now, mac) == Some(request.has) => {
                self.answer(request, DhcpMessageType::Ack, None);
            }
            DhcpMessageType::Release => self.leases.release(mac),
            DhcpMessageType::Decline => self.leases.decline(now, mac),
            _ => {}
        }
    }

    fn answer(&mut self, request: &Request<'_>, kind: DhcpMessageType, address: Option<Ipv4Addr>) {
        let row = self.leases.row(request.mac);
        let boot_files = &self.config.boot_files;
        let boot_file = boot_files.iter().find(|file| Some(file.architecture) == request.architecture);
        let answer = Answer {
            kind,
            request,
            server: self.own.address,
            mask: self.config.mask(),
            broadcast: self.own.broadcast,
            address,
            term: TERM.as_secs() as u32,
            name: row.map(|row| &*row.name),
            boot_file: boot_file.map(|file| &*file.name),
            text: self.leases.text(request.mac).map(|text| &**text),
        };
        let to = match answer.goes_to() {
            Some(address) => Peer { mac: request.mac, address },
            None => Peer { mac: BROADCAST, address: Ipv4Addr::BROADCAST },
        };
        let (bytes, length) = answer.to_bytes();
        self.datagram([dhcp::SERVER_PORT, dhcp::CLIENT_PORT], to, &bytes[..length]);
    }

    fn datagram(&mut self, ports: [u16; 2], to: Peer, data: &[u8]) {
        let own = &self.own;
        self.outbox.put(|frame| {
            if frame.len() < frame::datagram_length(data.len()) {
                return 0;
            }
            frame::emit_datagram(frame, own, ports, to, data.len(), |bytes| bytes.copy_from_slice(data))
        });
    }

    fn tell_stranger(&mut self, mac: Mac) {
        if !self.strangers.contains(&mac) {
            self.strangers[self.next_stranger] = mac;
            self.next_stranger = (self.next_stranger + 1) % STRANGERS;
            self.events.push(Event::Stranger { mac });
        }
    }

    /// `ports`: this end's, the other's.
    fn tftp(&mut self, now: Duration, from: Peer, ports: [u16; 2], packet: Packet<'_>) {
        match packet {
            Packet::Acknowledge(number) => self.transfers.acknowledge(now, from, ports, number, &mut self.events),
            Packet::Error { code, text } => self.transfers.stop(from, ports, code, text, &mut self.events),
            Packet::Read { .. } | Packet::Write if ports[0] != tftp::PORT || !self.limit.take(now) => {}
            Packet::Write => self.refuse(from, ports[1], Refusal::NoWriting),
            Packet::Read { octets: false, .. } => self.refuse(from, ports[1], Refusal::NoMode),
            Packet::Read { name, options, .. } => {
                let client = self.leases.client(from.mac);
                // Some firmware takes the root's slash for a part of the name.
                let Some((file, bytes)) = self.config.files.get_key_value(name.trim_start_matches('/')) else {
                    let file = name.chars().take(100).collect();
                    self.events.push(Event::Missing { client, file });
                    return self.refuse(from, ports[1], Refusal::NoFile);
                };
                let most = self.config.mtu - frame::DATAGRAM - tftp::HEADER;
                let options = options.agree(bytes.len(), most);
                let (file, bytes) = (Arc::clone(file), Arc::clone(bytes));
                let wanted = Wanted { peer: from, port: ports[1], client, file, bytes, options };
                if !self.transfers.begin(now, wanted) {
                    self.refuse(from, ports[1], Refusal::Busy);
                }
            }
        }
    }

    fn refuse(&mut self, to: Peer, port: u16, refusal: Refusal) {
        self.datagram([tftp::PORT, port], to, refusal.to_bytes().as_ref());
    }

    /// Sends what is to be sent now, a bounded number of frames. Returns whether there was something; then there may be more.
    pub fn transmit(&mut self, now: Duration, tx: &mut Tx<'_>) -> bool {
        let mut some = false;
        while let Some(frame) = self.outbox.take() {
            tx(frame.len(), &mut |bytes| bytes.copy_from_slice(frame));
            some = true;
        }
        some | (self.transfers.transmit(now, &self.own, TURN, tx, &mut self.events) > 0)
    }

    /// When [`Service::transmit`] has something to do without a frame that comes first; `now` if it has already.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        if self.outbox.is_empty() { self.transfers.next_deadline(now) } else { Some(now) }
    }

    /// What happened, the oldest first. The last few hundred are kept.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Files on their way.
    pub fn running(&self) -> impl Iterator<Item = Running> {
        self.transfers.running()
    }

    /// The subnet's address for this service.
    pub fn address(&self) -> Ipv4Addr {
        self.own.address
    }
}

/// A way to send frames over a link. Whoever uses it calls [`Link::flush`] in the end.
pub fn onto(link: &mut dyn Link) -> Box<Tx<'_>> {
    Box::new(|length, fill| {
        link.tx(&mut |bytes| match bytes.get_mut(..length) {
            Some(bytes) => {
                fill(bytes);
                length
            }
            None => 0,
        });
    })
}
