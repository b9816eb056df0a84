//! The system calls that no safe library offers: batches of messages, packet sockets, and two counters. All unsafe code of the crate is here.

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null_mut, read_unaligned};

use crate::Mac;

/// Messages of one system call.
pub(crate) const BATCH: usize = 32;
/// Hardware types (`ARPHRD_`) whose frames have an Ethernet header.
pub(crate) const HARDWARE: [u16; 2] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];
/// `SO_MEMINFO` of Linux's asm-generic/socket.h.
const SO_MEMINFO: libc::c_int = 55;

/// A socket address as the kernel wants it.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl Address {
    const EMPTY: Address = Address {
        // SAFETY: a sockaddr_storage is integers only; zero (AF_UNSPEC) is one of its values.
        storage: unsafe { zeroed() },
        length: 0,
    };

    fn of<T: Copy>(value: T) -> Address {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        let mut address = Address { length: size_of::<T>() as libc::socklen_t, ..Address::EMPTY };
        // SAFETY: T fits, by the assertion above, and storage is aligned for every socket address; T's are integers only.
        unsafe { (&raw mut address.storage).cast::<T>().write(value) };
        address
    }

    fn read<T: Copy>(&self, family: libc::c_int) -> Option<T> {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        if i32::from(self.storage.ss_family) != family || (self.length as usize) < size_of::<T>() {
            return None;
        }
        // SAFETY: T fits, by the assertion above, and callers name one of the socket addresses, which are integers only.
        Some(unsafe { (&raw const self.storage).cast::<T>().read() })
    }

    /// Where frames of a type on an interface come from and go to.
    pub fn of_interface(index: u32, ethertype: u16) -> Address {
        // SAFETY: a sockaddr_ll is integers only.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ethertype.to_be();
        address.sll_ifindex = index as i32;
        Address::of(address)
    }

    /// Whether a frame that came from here was meant for this machine.
    pub fn is_for_us(&self) -> bool {
        self.read::<libc::sockaddr_ll>(libc::AF_PACKET)
            .is_some_and(|a| a.sll_pkttype != libc::PACKET_OTHERHOST && a.sll_pkttype != libc::PACKET_OUTGOING)
    }

    /// The internet address, if it is one; an IPv4 address that IPv6 has wrapped is unwrapped.
    pub fn to_socket_addr(self) -> Option<SocketAddr> {
        if let Some(a) = self.read::<libc::sockaddr_in>(libc::AF_INET) {
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            return Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into());
        }
        let a = self.read::<libc::sockaddr_in6>(libc::AF_INET6)?;
        let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
        if let Some(ip) = ip.to_ipv4_mapped() {
            return Some(SocketAddrV4::new(ip, u16::from_be(a.sin6_port)).into());
        }
        Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), a.sin6_flowinfo, a.sin6_scope_id).into())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        match address {
            SocketAddr::V4(from) => {
                // SAFETY: a sockaddr_in is integers only.
                let mut a: libc::sockaddr_in = unsafe { zeroed() };
                a.sin_family = libc::AF_INET as u16;
                a.sin_port = from.port().to_be();
                a.sin_addr.s_addr = u32::from(*from.ip()).to_be();
                Address::of(a)
            }
            SocketAddr::V6(from) => {
                // SAFETY: a sockaddr_in6 is integers only.
                let mut a: libc::sockaddr_in6 = unsafe { zeroed() };
                a.sin6_family = libc::AF_INET6 as u16;
                a.sin6_port = from.port().to_be();
                a.sin6_addr.s6_addr = from.ip().octets();
                a.sin6_flowinfo = from.flowinfo();
                a.sin6_scope_id = from.scope_id();
                Address::of(a)
            }
        }
    }
}

/// The result of a call that returns -1 for an error.
fn check(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Messages that were received together.
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    size: usize,
    from: [Address; BATCH],
    /// Bytes of each, `None` for a message that was longer than `size`.
    lengths: [Option<usize>; BATCH],
}

impl Inbox {
    /// For messages of up to `size` bytes.
    pub fn new(size: usize) -> Inbox {
        Inbox { bytes: vec![0; size * BATCH], size, from: [Address::EMPTY; BATCH], lengths: [None; BATCH] }
    }

    /// Receives up to [`BATCH`] messages without waiting; returns how many.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: both are integers and pointers, for which zero is a value.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) = unsafe { (zeroed(), zeroed()) };
        let buffers = self.bytes.chunks_exact_mut(self.size).zip(&mut self.from);
        for ((part, message), (buffer, from)) in parts.iter_mut().zip(&mut messages).zip(buffers) {
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_name = (&raw mut from.storage).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        }
        // SAFETY: every header points at its part and its address, every part at its own buffer with its true length; all outlive the call,
        // and nothing else refers to them during it. The kernel writes bytes, of which all patterns are values.
        let count = check(unsafe {
            libc::recvmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), BATCH as u32, libc::MSG_DONTWAIT, null_mut())
        })?;
        for ((message, from), length) in messages[..count].iter().zip(&mut self.from).zip(&mut self.lengths) {
            from.length = message.msg_hdr.msg_namelen;
            let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            *length = whole.then_some((message.msg_len as usize).min(self.size));
        }
        Ok(count)
    }

    /// A message of the last batch and where it came from; no bytes if it was too long.
    pub fn message(&self, index: usize) -> (Option<&[u8]>, &Address) {
        let start = index * self.size;
        (self.lengths[index].map(|length| &self.bytes[start..start + length]), &self.from[index])
    }
}

/// A message to send.
#[derive(Clone, Copy, Default)]
pub(crate) struct Message<'a> {
    pub bytes: &'a [u8],
    /// `None`: where the socket is bound to.
    pub to: Option<&'a Address>,
}

/// Sends the first of `messages`, at most [`BATCH`], without waiting. Returns how many left; the error is that of the first message.
pub(crate) fn send(socket: BorrowedFd<'_>, messages: &[Message<'_>]) -> io::Result<usize> {
    // SAFETY: both are integers and pointers, for which zero is a value.
    let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) = unsafe { (zeroed(), zeroed()) };
    for ((part, header), message) in parts.iter_mut().zip(&mut headers).zip(messages) {
        *part = libc::iovec { iov_base: message.bytes.as_ptr().cast_mut().cast(), iov_len: message.bytes.len() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        if let Some(to) = message.to {
            header.msg_hdr.msg_name = (&raw const to.storage).cast_mut().cast();
            header.msg_hdr.msg_namelen = to.length;
        }
    }
    let count = messages.len().min(BATCH) as u32;
    // SAFETY: the first `count` headers point at their parts and addresses, the parts at the messages' bytes with their true lengths; all outlive
    // the call. Sending only reads through these pointers.
    check(unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) })
}

/// A packet socket for whole frames that receives nothing until it is bound.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: it was opened above and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Binds a packet socket to an interface and a frame type.
pub(crate) fn bind_interface(socket: BorrowedFd<'_>, address: &Address) -> io::Result<()> {
    // SAFETY: the address is as long as it says and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address.storage).cast(), address.length) }).map(|_| ())
}

/// A filter of one step (`struct sock_filter`): what to do, where to go on if it is so and if not, with what.
fn step(code: u32, yes: u8, no: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: yes, jf: no, k: value }
}

/// Has a packet socket hear frames of these types only, at most eight, and none that this machine sends.
pub(crate) fn hear_only(socket: BorrowedFd<'_>, ethertypes: &[u16]) -> io::Result<()> {
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_PAIR: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    if ethertypes.len() > 8 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let kind = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let count = ethertypes.len() as u8;
    let mut steps = vec![step(LOAD_BYTE, 0, 0, kind), step(IF_EQUAL, count + 1, 0, libc::PACKET_OUTGOING.into())];
    steps.push(step(LOAD_PAIR, 0, 0, 12));
    steps.extend((1..).zip(ethertypes).map(|(i, &ethertype)| step(IF_EQUAL, count - i + 1, 0, ethertype.into())));
    steps.extend([step(RETURN, 0, 0, 0), step(RETURN, 0, 0, u32::MAX)]);
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let option = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the program has as many steps as it says, and outlives the call; the kernel copies it.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), option.0, option.1, (&raw const program).cast(), length) })
        .map(|_| ())
}

/// Reads a socket option of integers; returns how many bytes the kernel wrote.
fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<usize> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is writable for `length` bytes and outlives the call; both callers' T are integers only.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut *value).cast(), &raw mut length) })?;
    Ok(length as usize)
}

/// Frames that a packet socket lost for want of room since the last call.
pub(crate) fn packet_drops(socket: BorrowedFd<'_>) -> u64 {
    // tpacket_stats: packets, drops.
    let mut counts = [0u32; 2];
    option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut counts).map_or(0, |_| counts[1].into())
}

/// Messages that a socket lost for want of room since it was opened.
pub(crate) fn socket_drops(socket: BorrowedFd<'_>) -> u64 {
    let mut info = [0u32; libc::SK_MEMINFO_DROPS as usize + 1];
    option(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut info).map_or(0, |_| info[libc::SK_MEMINFO_DROPS as usize].into())
}

/// What the kernel knows of an interface.
pub(crate) struct Interface {
    pub mac: Mac,
    pub mtu: usize,
    /// `ARPHRD_`.
    pub hardware: u16,
}

/// Looks an interface up in the network namespace of `socket`.
pub(crate) fn interface(socket: BorrowedFd<'_>, name: &str) -> io::Result<Interface> {
    let mut request: MaybeUninit<libc::ifreq> = MaybeUninit::zeroed();
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    // SAFETY: an ifreq is integers and pointers, for which zero is a value.
    let request = unsafe { request.assume_init_mut() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: this request reads the name, which ends in a zero, and writes the union's `ifru_hwaddr`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut *request) })?;
    // SAFETY: the call has written it; whatever it has written is integers.
    let hardware: libc::sockaddr = unsafe { read_unaligned(&raw const request.ifr_ifru.ifru_hwaddr) };
    let mut mac = Mac::default();
    for (to, from) in mac.0.iter_mut().zip(hardware.sa_data) {
        *to = from as u8;
    }
    // SAFETY: as above; this request writes `ifru_mtu`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut *request) })?;
    // SAFETY: the call has written it.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(Interface { mac, mtu: usize::try_from(mtu).unwrap_or(0), hardware: hardware.sa_family })
}
