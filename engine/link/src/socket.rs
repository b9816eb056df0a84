//! What UDP and packet sockets have in common: frames that wait to be sent, sending with a little patience, large buffers.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::ETHERNET;
use crate::sys::{BATCH, Message, send};

/// How long a full socket may hold up a flush before frames are lost. At 1 Gbit/s a whole batch of long frames leaves in a third of it.
const PATIENCE: Duration = Duration::from_millis(10);
/// Bytes that a socket should hold: some 6,000 frames of 9 kB, or a burst of results from 32 ducks many times over.
const BUFFER: usize = 64 << 20;

/// Frames that wait to be sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    size: usize,
    lengths: [usize; BATCH],
    count: usize,
}

/// What became of a call to fill a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    Nothing,
    /// Its length cannot be that of a frame.
    Wrong,
    Waits,
    /// Waits, and no other one can.
    Full,
}

impl Outbox {
    pub fn new(mtu: usize) -> Outbox {
        let size = ETHERNET + mtu;
        Outbox { bytes: vec![0; size * BATCH], size, lengths: [0; BATCH], count: 0 }
    }

    pub fn mtu(&self) -> usize {
        self.size - ETHERNET
    }

    /// There must be room: whoever is told [`Filled::Full`] clears.
    pub fn fill(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Filled {
        let start = self.count * self.size;
        let length = fill(&mut self.bytes[start..start + self.size]);
        if length == 0 {
            return Filled::Nothing;
        }
        if !(ETHERNET..=self.size).contains(&length) {
            return Filled::Wrong;
        }
        self.lengths[self.count] = length;
        self.count += 1;
        if self.count == BATCH { Filled::Full } else { Filled::Waits }
    }

    pub fn frames(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let lengths = &self.lengths[..self.count];
        lengths.iter().enumerate().map(|(i, &length)| &self.bytes[i * self.size..i * self.size + length])
    }

    pub fn clear(&mut self) {
        self.count = 0;
    }
}

/// How sending goes.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Patience ran out and nothing was sent since: nobody waits again until something is.
    stalled: bool,
}

impl Sender {
    /// Sends all; calls `done` for each with the error of those that did not leave.
    pub fn send_all(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: &[Message<'_>],
        done: &mut dyn FnMut(usize, Option<rustix::io::Errno>),
    ) {
        let (mut at, mut deadline) = (0, None);
        while at < messages.len() {
            match send(socket, &messages[at..]) {
                Ok(count) => {
                    self.stalled = false;
                    (at..at + count).for_each(|i| done(i, None));
                    at += count;
                }
                Err(error) => match rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO) {
                    rustix::io::Errno::INTR => {}
                    rustix::io::Errno::AGAIN if !self.stalled => {
                        let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
                        self.stalled = !writable(socket, deadline);
                    }
                    error => {
                        done(at, Some(error));
                        at += 1;
                    }
                },
            }
        }
    }
}

/// Waits until there is room to send; `false` if the time is over.
fn writable(socket: BorrowedFd<'_>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).ok();
    !left.is_zero()
        && poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], timeout.as_ref()).is_ok_and(|count| count > 0)
}

/// Makes a socket's buffers as large as the system lets us. Small ones lose frames, nothing worse, so errors are nothing to stop for.
pub(crate) fn enlarge(socket: BorrowedFd<'_>) {
    if sockopt::set_socket_recv_buffer_size_force(socket, BUFFER).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, BUFFER);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, BUFFER / 8).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, BUFFER / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_takes_what_a_frame_can_be_and_nothing_else() {
        let mut outbox = Outbox::new(100);
        for (length, filled) in [
            (0, Filled::Nothing),
            (13, Filled::Wrong),
            (14, Filled::Waits),
            (114, Filled::Waits),
            (115, Filled::Wrong),
            (usize::MAX, Filled::Wrong),
        ] {
            assert_eq!(outbox.fill(&mut |_| length), filled, "{length} bytes");
        }
        assert_eq!(outbox.frames().map(<[u8]>::len).collect::<Vec<_>>(), [14, 114]);
        for _ in 3..BATCH {
            assert_eq!(outbox.fill(&mut |_| 60), Filled::Waits);
        }
        assert_eq!(outbox.fill(&mut |_| 60), Filled::Full);
    }
}
