//! The boot service: DHCP, ARP and TFTP for ducks that boot over the pond's own link.
//!
//! The engine's ports belong to it, so no kernel and no other server is behind them that could answer a duck. A [`Service`] is one
//! domain's: whoever owns the link gives it every frame ([`Service::handle`]) and lets it send ([`Service::transmit`]). It has no thread, no
//! socket and no clock; a frame that is not for it costs one comparison.
//!
//! Addresses are given to ducks of the description, each its own, and to others only while they are being adopted. Files are given to whoever
//! holds an address from here, by exact names; there are no folders. Everything that the other side can make grow has a bound, and what is not
//! a plain request is dropped without a word: on a wire that anyone can speak on, answers to nonsense only help its sender.
//!
//! Left out: routers and names (a pond has neither), relays, IPv6, HTTP boot, writing files, and any way to tell a duck from one that claims its
//! hardware address. Who can answer a duck's first question owns that duck; the service is no better than the wire it is on.

#![forbid(unsafe_code)]

mod config;
mod dhcp;
mod event;
mod frame;
mod leases;
mod limit;
mod service;
mod tftp;
mod transfer;

pub use config::{BIOS, BootFile, Config, ConfigError, EFI_X64, Files, Lease};
pub use event::{Client, Event, Running};
pub use link::Mac;
pub use service::{Service, Tx, onto};
