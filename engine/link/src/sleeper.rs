//! Sleep on a socket that a [`Waker`] ends.
//!
//! An eventfd write costs a system call, so a waker makes one only when somebody sleeps or is about to: both sides exchange flags in one atomic
//! word first. Whichever comes second sees the other. A wake before the sleep is found by the sleeper, which then does not sleep; a wake after it
//! finds the sleeper and writes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::Waker;

const WOKEN: u32 = 1;
const ASLEEP: u32 = 2;

#[derive(Debug)]
struct Shared {
    flags: AtomicU32,
    event: OwnedFd,
}

/// The sleeping side.
#[derive(Debug)]
pub(crate) struct Sleeper {
    shared: Arc<Shared>,
}

impl Sleeper {
    pub fn new() -> io::Result<Sleeper> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Sleeper { shared: Arc::new(Shared { flags: AtomicU32::new(0), event }) })
    }

    pub fn waker(&self) -> Waker {
        let shared = Arc::clone(&self.shared);
        Waker::new(move || {
            if shared.flags.fetch_or(WOKEN, Ordering::SeqCst) == ASLEEP {
                // Fails only if 2^64 - 2 writes were never read.
                let _ = rustix::io::write(&shared.event, &1u64.to_ne_bytes());
            }
        })
    }

    /// Sleeps until `socket` is readable or in error, a waker was used, or the time is over.
    pub fn wait(&self, socket: impl AsFd, timeout: Option<Duration>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if self.shared.flags.fetch_or(ASLEEP, Ordering::SeqCst) & WOKEN == 0 {
            while self.poll(&socket, deadline) {}
        }
        self.shared.flags.store(0, Ordering::SeqCst);
    }

    /// Polls once; whether it was for nothing.
    fn poll(&self, socket: &impl AsFd, deadline: Option<Instant>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::new(&self.shared.event, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => return false,
            Ok(_) => {}
        }
        if !fds[0].revents().is_empty() {
            return false;
        }
        let _ = rustix::io::read(&self.shared.event, &mut [0; 8]);
        // A waker that found the previous sleep may write only after that sleep has ended otherwise: its write is stale here.
        self.shared.flags.load(Ordering::SeqCst) & WOKEN == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Never readable, as nobody writes to it.
    fn silence() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
    }

    #[test]
    fn a_wake_before_the_sleep_ends_it_without_a_system_call() {
        let (sleeper, silence) = (Sleeper::new().expect("a sleeper"), silence());
        sleeper.waker().wake();
        sleeper.wait(&silence, None);
        let mut value = [0; 8];
        assert_eq!(rustix::io::read(&sleeper.shared.event, &mut value), Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn a_wake_ends_one_sleep_only() {
        let (sleeper, silence) = (Sleeper::new().expect("a sleeper"), silence());
        sleeper.waker().wake();
        sleeper.waker().wake();
        sleeper.wait(&silence, None);
        let started = Instant::now();
        sleeper.wait(&silence, Some(Duration::from_millis(20)));
        assert!(started.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_stale_write_does_not_end_a_sleep() {
        let (sleeper, silence) = (Sleeper::new().expect("a sleeper"), silence());
        rustix::io::write(&sleeper.shared.event, &1u64.to_ne_bytes()).expect("a write");
        let started = Instant::now();
        sleeper.wait(&silence, Some(Duration::from_millis(20)));
        assert!(started.elapsed() >= Duration::from_millis(20));
    }

    /// Hands a token to and fro, each side sleeping until it has it: one lost wake and it hangs.
    #[test]
    fn no_wake_is_lost_in_a_race() {
        let (a, b) = (Sleeper::new().expect("a sleeper"), Sleeper::new().expect("a sleeper"));
        let (wake_a, wake_b) = (a.waker(), b.waker());
        let token = AtomicBool::new(false);
        let run = |sleeper: &Sleeper, other: &Waker, mine: bool| {
            let silence = silence();
            for _ in 0..20_000 {
                while token.load(Ordering::SeqCst) != mine {
                    sleeper.wait(&silence, None);
                }
                token.store(!mine, Ordering::SeqCst);
                other.wake();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(&a, &wake_b, false));
            run(&b, &wake_a, true);
        });
    }
}
