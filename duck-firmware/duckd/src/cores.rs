//! The kernels on this process's threads: core 0 is the network thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fp9::Isa;
use kernels::{Core, Hooks, Refusal, Running};
use node::{Cores, Ended, Refused};
use wire::Micros;

use crate::pool::{Others, Patience, Pool};

/// Threads that compute.
pub(crate) struct Threads {
    pub count: usize,
    pub pool: Pool,
    pub patience: Patience,
    pub isa: Isa,
}

impl Cores for Threads {
    fn count(&self) -> usize {
        self.count
    }

    fn load(&mut self, program: Option<&[u8]>) -> Result<(), Refused> {
        match program {
            None => Ok(()),
            Some(_) => Err("duckd runs the kernels that are built in, and no others".into()),
        }
    }

    fn run(&mut self, step: Running<'_>, _: Option<Micros>, serve: &mut dyn FnMut() -> bool) -> Ended {
        let (refused, isa) = (AtomicBool::new(false), self.isa);
        let work = |index: usize| {
            if step.run(Core { index, isa }, &mut Wait).is_err() {
                refused.store(true, Ordering::Relaxed);
            }
        };
        let patience = self.patience;
        let (own, panicked) = self.pool.run(&work, |others| {
            let _guard = AbortOnPanic(step);
            let mut server = Server { serve, step, others };
            let own = step.run(Core { index: 0, isa }, &mut server);
            let mut looks = 0;
            while !others.done() {
                server.boundary();
                patience.pause(looks);
                looks = looks.saturating_add(1);
            }
            (own, others.panicked())
        });
        match panicked {
            None if own.is_ok() && refused.into_inner() => Ended::Finished(Err(Refusal::Aborted)),
            None => Ended::Finished(own),
            Some(core) => Ended::Trapped { core: core as u16, trap: 0, error: 0, address: 0, instruction: 0 },
        }
    }
}

/// What other cores do while they wait at the barrier.
struct Wait;

impl Hooks for Wait {
    fn idle(&mut self) {
        thread::yield_now();
    }
}

/// What core 0 does besides computing.
struct Server<'s> {
    serve: &'s mut dyn FnMut() -> bool,
    step: Running<'s>,
    others: &'s Others<'s>,
}

impl Hooks for Server<'_> {
    fn boundary(&mut self) {
        if !(self.serve)() || self.others.panicked().is_some() {
            self.step.abort();
        }
    }

    fn idle(&mut self) {
        thread::yield_now();
    }
}

/// If core 0 panics, the others must not wait for it at the barrier for ever.
struct AbortOnPanic<'s>(Running<'s>);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_built_in_kernels_are_run() {
        let patience = Patience::new(1);
        let pool = Pool::new(0, None, patience).expect("no threads");
        let mut threads = Threads { count: 1, pool, patience, isa: Isa::Scalar };
        assert_eq!(threads.load(None), Ok(()));
        let refused = threads.load(Some(b"\x7fELF")).expect_err("a program");
        assert!(refused.to_string().contains("built in"), "{refused}");
    }
}
