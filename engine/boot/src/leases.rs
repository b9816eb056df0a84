//! Who has which address: rows of the description, and addresses for those being adopted.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use link::Mac;

use crate::config::Lease;
use crate::event::Client;

/// How long an address is promised for. A duck's own is always the same; nothing happens when this is over.
pub(crate) const TERM: Duration = Duration::from_secs(86_400);
/// How long an address is kept for one being adopted that has not yet taken it.
const OFFERED: Duration = Duration::from_secs(60);
/// How long an address stays unused that a client found in use.
const DECLINED: Duration = Duration::from_secs(600);
/// Ducks being adopted at most.
const ADOPTED: usize = 256;

/// An address of one being adopted; with no hardware address: of nobody.
struct Adopted {
    mac: Option<Mac>,
    address: Ipv4Addr,
    until: Duration,
}

/// All addresses.
pub(crate) struct Leases {
    /// Sorted by hardware address.
    rows: Vec<Lease>,
    range: Option<RangeInclusive<Ipv4Addr>>,
    own: Ipv4Addr,
    adopted: Vec<Adopted>,
}

impl Leases {
    pub fn new(mut rows: Vec<Lease>, range: Option<RangeInclusive<Ipv4Addr>>, own: Ipv4Addr) -> Leases {
        rows.sort_by_key(|lease| lease.mac);
        Leases { rows, range, own, adopted: Vec::with_capacity(ADOPTED) }
    }

    /// The row of a hardware address.
    pub fn row(&self, mac: Mac) -> Option<&Lease> {
        self.rows.binary_search_by_key(&mac, |lease| lease.mac).ok().map(|at| &self.rows[at])
    }

    pub fn client(&self, mac: Mac) -> Client {
        Client { mac, name: self.row(mac).map(|row| row.name.clone()) }
    }

    /// The address that it has or was offered.
    pub fn address(&self, now: Duration, mac: Mac) -> Option<Ipv4Addr> {
        let row = self.row(mac).map(|row| row.address);
        row.or_else(|| self.adopted.iter().find(|a| a.mac == Some(mac) && a.until > now).map(|a| a.address))
    }

    /// The address to offer.
    pub fn offer(&mut self, now: Duration, mac: Mac) -> Option<Ipv4Addr> {
        if let Some(address) = self.address(now, mac) {
            return Some(address);
        }
        let range = self.range.clone()?;
        self.adopted.retain(|adopted| adopted.until > now);
        if self.adopted.len() == ADOPTED {
            return None;
        }
        let taken = |address: &Ipv4Addr| {
            *address == self.own
                || self.rows.iter().any(|row| row.address == *address)
                || self.adopted.iter().any(|adopted| adopted.address == *address)
        };
        // Every address before the first free one belongs to one of these.
        let looked_at = self.rows.len() + ADOPTED + 1;
        let (first, last) = (range.start().to_bits(), range.end().to_bits());
        let address = (first..=last).take(looked_at).map(Ipv4Addr::from_bits).find(|address| !taken(address))?;
        self.adopted.push(Adopted { mac: Some(mac), address, until: now + OFFERED });
        Some(address)
    }

    /// It has taken its address.
    pub fn confirm(&mut self, now: Duration, mac: Mac) {
        self.adopted.iter_mut().filter(|a| a.mac == Some(mac)).for_each(|a| a.until = now + TERM);
    }

    /// It does not want its address any more.
    pub fn release(&mut self, mac: Mac) {
        self.adopted.retain(|adopted| adopted.mac != Some(mac));
    }

    /// It has found its address in use.
    pub fn decline(&mut self, now: Duration, mac: Mac) {
        for adopted in self.adopted.iter_mut().filter(|a| a.mac == Some(mac)) {
            (adopted.mac, adopted.until) = (None, now + DECLINED);
        }
    }

    /// Replaces the rows; whoever had an address of a new row's loses it.
    pub fn set_rows(&mut self, mut rows: Vec<Lease>) {
        rows.sort_by_key(|lease| lease.mac);
        self.adopted.retain(|a| !rows.iter().any(|row| Some(row.mac) == a.mac || row.address == a.address));
        self.rows = rows;
    }

    pub fn set_range(&mut self, range: Option<RangeInclusive<Ipv4Addr>>) {
        self.range = range;
    }

    /// What the row says to this duck alone.
    pub fn text(&self, mac: Mac) -> Option<&Arc<str>> {
        self.row(mac).map(|row| &row.text).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u64) -> Mac {
        Mac::from_u64(0x0200_0000_0000 | n)
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn leases(from: u8, to: u8) -> Leases {
        let row = Lease { mac: mac(1), address: [10, 0, 0, 3].into(), name: "a".into(), text: "".into() };
        let range = [from, to].map(|last| Ipv4Addr::new(10, 0, 0, last));
        Leases::new(vec![row], Some(range[0]..=range[1]), [10, 0, 0, 1].into())
    }

    #[test]
    fn strangers_get_free_addresses_and_keep_them() {
        let mut leases = leases(1, 4);
        assert_eq!(leases.offer(seconds(0), mac(1)), Some([10, 0, 0, 3].into()));
        assert_eq!(leases.offer(seconds(0), mac(2)), Some([10, 0, 0, 2].into()));
        assert_eq!(leases.offer(seconds(1), mac(3)), Some([10, 0, 0, 4].into()));
        assert_eq!(leases.offer(seconds(2), mac(2)), Some([10, 0, 0, 2].into()));
        assert_eq!(leases.offer(seconds(2), mac(4)), None);
        leases.confirm(seconds(3), mac(2));
        // What nobody took is free again.
        assert_eq!(leases.offer(seconds(62), mac(4)), Some([10, 0, 0, 4].into()));
        assert_eq!(leases.address(seconds(62), mac(2)), Some([10, 0, 0, 2].into()));
        assert_eq!(leases.address(seconds(62), mac(3)), None);
    }

    #[test]
    fn an_address_in_use_is_not_offered_again_soon() {
        let mut leases = leases(4, 5);
        assert_eq!(leases.offer(seconds(0), mac(2)), Some([10, 0, 0, 4].into()));
        leases.decline(seconds(1), mac(2));
        assert_eq!(leases.offer(seconds(2), mac(2)), Some([10, 0, 0, 5].into()));
        leases.release(mac(2));
        assert_eq!(leases.offer(seconds(3), mac(5)), Some([10, 0, 0, 5].into()));
        assert_eq!(leases.offer(seconds(700), mac(6)), Some([10, 0, 0, 4].into()));
    }

    #[test]
    fn thousands_of_strangers_take_a_bounded_number_of_addresses() {
        let range = Ipv4Addr::new(10, 0, 0, 2)..=Ipv4Addr::new(10, 255, 0, 0);
        let mut leases = Leases::new(Vec::new(), Some(range), [10, 0, 0, 1].into());
        let offered = (0..5000).filter(|n| leases.offer(seconds(0), mac(*n)).is_some()).count();
        assert_eq!((offered, leases.adopted.capacity()), (ADOPTED, ADOPTED));
        leases.set_range(None);
        assert_eq!(leases.offer(seconds(100), mac(9000)), None);
    }
}
