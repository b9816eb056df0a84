//! Stage 1 as the host sees it: which duck holds which experts, steps out, sums back.
//!
//! A [`Flock`] takes a step whose input stage 0 has written ([`Flock::submit`]), has its ducks compute it ([`Flock::poll`],
//! [`Flock::wait`]) and writes the sums back into the same [`StepIo`]. Sums are the same bits for every plan, number of threads and
//! company of lanes, and whoever takes over from whom: the canonical tree fixes the order of additions, and a dot product's order
//! depends on its length alone.
//!
//! Ducks are in this process ([`Flock::in_process`]) or behind links ([`Flock::remote`]).
#![deny(unsafe_code)]

mod error;
mod experts;
mod holder;
mod landing;
mod local;
pub mod plan;
pub mod remote;
mod resident;
mod routing;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use model::Numerics;
use model::program::Model;
use model::step::StepIo;

use local::Local;
use remote::Remote;

pub use error::FlockError;
pub use experts::{bytes_per_duck, pack, shape};
pub use local::DuckStats;
pub use plan::{Plan, PlanError};

/// The ducks of a pond.
pub struct Flock {
    plan: Plan,
    experts: Arc<experts::Experts>,
    ducks: Ducks,
    next_seq: u64,
}

/// Where they are.
enum Ducks {
    Local(Box<Local>),
    Remote(Box<Remote>),
}

impl Flock {
    /// That many ducks in this process, planned for the model. Reads every expert weight once.
    ///
    /// # Errors
    /// A number of ducks that cannot be planned, or weights that cannot be used.
    pub fn in_process(model: &Model, ducks: usize, numerics: Numerics) -> Result<Flock, FlockError> {
        let plan = Plan::for_ducks(shape(model)?, model.dims.chosen, ducks)?;
        Flock::with_plan(model, plan, numerics)
    }

    /// As [`Flock::in_process`], with a plan made elsewhere.
    ///
    /// # Errors
    /// A plan for another model, or weights that cannot be used.
    pub fn with_plan(model: &Model, plan: Plan, numerics: Numerics) -> Result<Flock, FlockError> {
        let expected = shape(model)?;
        if plan.shape() != expected {
            return Err(FlockError::PlanShape { expected, found: plan.shape() });
        }
        let experts = experts::Experts::checked(model, numerics)?;
        let local = Local::new(&experts, 0, (0..plan.holders()).map(|holder| plan.nodes(holder)));
        Ok(Flock { plan, experts, ducks: Ducks::Local(Box::new(local)), next_seq: 0 })
    }

    /// Ducks behind links. Finds them, plans, and starts to load what they lack; [`Flock::wait_ready`] says when they are ready, but steps
    /// may be submitted at once: the host computes what no duck can yet.
    ///
    /// # Errors
    /// Ducks that cannot hold the model, weights that cannot be used, threads that cannot be started.
    pub fn remote(model: &Model, numerics: Numerics, options: remote::Options) -> Result<Flock, FlockError> {
        let experts = experts::Experts::checked(model, numerics)?;
        let remote = Remote::open(Arc::clone(&experts), options)?;
        Ok(Flock { plan: remote.plan().clone(), experts, ducks: Ducks::Remote(Box::new(remote)), next_seq: 0 })
    }

    /// How many sources of sums a step's [`StepIo`] must have.
    pub fn sources(&self) -> usize {
        match &self.ducks {
            Ducks::Local(_) => 1,
            Ducks::Remote(remote) => remote.sources(),
        }
    }

    /// Most lanes of a step.
    pub fn max_lanes(&self) -> usize {
        match &self.ducks {
            Ducks::Local(_) => usize::MAX,
            Ducks::Remote(remote) => remote.max_lanes(),
        }
    }

    /// So many threads of stage 0 compute while steps are under way, 0 for a GPU. Threads that wait for ducks keep cores awake only if there
    /// are more; until this is called they sleep at once.
    pub fn beside(&self, workers: usize) {
        if let Ducks::Remote(remote) = &self.ducks {
            remote.beside(workers);
        }
    }

    /// Takes a step on; its input is published. Several may be outstanding.
    ///
    /// # Errors
    /// An input that makes no sense, or a `StepIo` for another flock: the step is then not taken on. After other failures all steps
    /// under way are forgotten.
    pub fn submit(&mut self, io: Arc<StepIo>) -> Result<(), FlockError> {
        let (expected, found) = (self.sources(), io.sums.len());
        if expected != found {
            return Err(FlockError::Sources { expected, found });
        }
        let input = io.input.get().ok_or(FlockError::NoInput)?;
        routing::check(input, &self.experts)?;
        if input.lanes > self.max_lanes() {
            return Err(FlockError::Lanes { limit: self.max_lanes(), found: input.lanes });
        }
        let seq = self.next_seq;
        if let Some(slot) = io.sums.iter().position(|sum| sum.get().is_some()) {
            return Err(FlockError::AlreadySummed { seq, slot });
        }
        self.next_seq += 1;
        match &mut self.ducks {
            Ducks::Local(local) => local.submit(seq, &io),
            Ducks::Remote(remote) => {
                let submitted = remote.submit(seq, io);
                if submitted.is_err() {
                    remote.abandon();
                }
                submitted?;
            }
        }
        Ok(())
    }

    /// Forgets every step under way, after a failure; the flock can then take steps again.
    pub fn abandon(&mut self) {
        match &mut self.ducks {
            Ducks::Local(local) => local.abandon(),
            Ducks::Remote(remote) => remote.abandon(),
        }
    }

    /// Makes progress without waiting for anyone. What this process computes is computed here, on the caller's rayon pool; a step's sums are
    /// published as soon as they are complete. Returns whether anything was done.
    ///
    /// # Errors
    /// A step that was submitted twice, or a domain that has ended.
    pub fn poll(&mut self) -> Result<bool, FlockError> {
        match &mut self.ducks {
            Ducks::Local(local) => {
                let mut progress = false;
                while local.poll()? {
                    progress = true;
                }
                Ok(progress)
            }
            Ducks::Remote(remote) => remote.poll(),
        }
    }

    /// Sleeps until something may have happened since the last [`Flock::poll`], at most so long. Does not sleep where all is computed in this process.
    pub fn wait(&mut self, most: Duration) {
        if let Ducks::Remote(remote) = &mut self.ducks {
            remote.wait(most);
        }
    }

    /// Steps that are not published yet.
    pub fn outstanding(&self) -> usize {
        match &self.ducks {
            Ducks::Local(local) => local.outstanding(),
            Ducks::Remote(remote) => remote.outstanding(),
        }
    }

    /// Who holds what when everybody is there.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The ducks behind links.
    pub fn as_remote(&mut self) -> Option<&mut Remote> {
        match &mut self.ducks {
            Ducks::Local(_) => None,
            Ducks::Remote(remote) => Some(remote),
        }
    }

    /// Counters by the plan's holders.
    pub fn stats(&self) -> Vec<DuckStats> {
        match &self.ducks {
            Ducks::Local(local) => local.stats().collect(),
            Ducks::Remote(remote) => remote.stats(),
        }
    }
}
