//! What happened, for logs and for people.

use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use link::Mac;

/// Events that wait at most; then the oldest is forgotten.
const WAITING: usize = 256;

/// Who it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its hardware address.
    pub mac: Mac,
    /// Its name, if it is in a row.
    pub name: Option<Arc<str>>,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => self.mac.fmt(f),
        }
    }
}

/// Something that a person may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A duck asked for an address.
    Offered {
        /// The duck.
        client: Client,
        /// What it was offered.
        address: Ipv4Addr,
    },
    /// It took it.
    Leased {
        /// The duck.
        client: Client,
        /// Its address.
        address: Ipv4Addr,
    },
    /// Somebody without a row asked, and there was no address for it.
    Stranger {
        /// Its hardware address.
        mac: Mac,
    },
    /// A duck has begun to fetch a file.
    Fetching {
        /// The duck.
        client: Client,
        /// The file.
        file: Arc<str>,
        /// Its bytes.
        bytes: usize,
    },
    /// It has all of it.
    Fetched {
        /// The duck.
        client: Client,
        /// The file.
        file: Arc<str>,
        /// Its bytes.
        bytes: usize,
        /// From the request on.
        took: Duration,
    },
    /// It gave up, or was not heard of any more.
    Failed {
        /// The duck.
        client: Client,
        /// The file.
        file: Arc<str>,
        /// How much it had.
        percent: u8,
        /// Why.
        why: String,
    },
    /// A duck asked for a file that is not there.
    Missing {
        /// The duck.
        client: Client,
        /// What it asked for.
        file: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Offered { client, address } => write!(f, "{client} asks for an address and is offered {address}"),
            Event::Leased { client, address } => write!(f, "{client} has taken {address}"),
            Event::Stranger { mac } => write!(f, "{mac} asks for an address, and no duck has that hardware address"),
            Event::Fetching { client, file, bytes } => write!(f, "{client} fetches {file}, {bytes} bytes"),
            Event::Fetched { client, file, bytes, took } => {
                write!(f, "{client} has fetched {file}, {bytes} bytes in {:.1} s", took.as_secs_f64())
            }
            Event::Failed { client, file, percent, why } => {
                write!(f, "{client} has stopped fetching {file} at {percent} %: {why}")
            }
            Event::Missing { client, file } => write!(f, "{client} asks for the file {file:?}, which is not there"),
        }
    }
}

/// A file on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Who fetches it.
    pub client: Client,
    /// The file.
    pub file: Arc<str>,
    /// Bytes that have arrived.
    pub arrived: usize,
    /// Bytes of all.
    pub bytes: usize,
}

impl Running {
    /// How much has arrived, rounded down.
    pub fn percent(&self) -> u8 {
        percent(self.arrived, self.bytes)
    }
}

pub(crate) fn percent(part: usize, whole: usize) -> u8 {
    (part as u128 * 100).checked_div(whole as u128).map_or(100, |percent| percent.min(100) as u8)
}

/// The last events.
#[derive(Default)]
pub(crate) struct Events(VecDeque<Event>);

impl Events {
    pub fn push(&mut self, event: Event) {
        if self.0.len() == WAITING {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.0.pop_front()
    }
}
