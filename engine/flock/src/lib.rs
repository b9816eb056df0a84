//! Stage 1 as the host sees it: which duck holds which experts, steps out, sums back.
//!
//! A [`Flock`] takes a step whose input stage 0 has written ([`Flock::submit`]), lets its ducks work ([`Flock::poll`]) and writes the
//! sums of the top nodes back into the same [`StepIo`]. Sums are the same bits for every plan, number of threads and
//! company of lanes: the canonical tree fixes the order of additions, and a dot product's order depends on its length alone.
//!
//! Ducks are in this process so far; [`Duck`] is the interface that others are to have. Links, sessions, deadlines and taking over
//! from silent ducks are not here.
#![deny(unsafe_code)]

mod domain;
mod duck;
mod error;
mod experts;
mod holder;
mod in_process;
pub mod plan;
mod resident;
mod routing;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use model::Numerics;
use model::program::Model;
use model::step::StepIo;

use domain::Domain;
use in_process::InProcessDuck;

pub use duck::{Duck, DuckStats, Fragment};
pub use error::FlockError;
pub use experts::{bytes_per_duck, shape};
pub use plan::{Plan, PlanError};

/// The ducks of a pond.
pub struct Flock {
    plan: Plan,
    experts: Arc<experts::Experts>,
    domains: Vec<Domain>,
    next_seq: u64,
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
        let chosen = model.dims.chosen;
        if chosen == 0 || chosen > model.dims.experts {
            return Err(PlanError::Chosen { experts: expected.experts, found: chosen }.into());
        }
        let experts = Arc::new(experts::Experts::new(model, numerics)?);
        let ducks = (0..plan.holders())
            .map(|holder| {
                let nodes = plan.nodes(holder);
                let duck: Box<dyn Duck> = Box::new(InProcessDuck::new(Arc::clone(&experts), nodes));
                (holder, nodes.to_vec(), duck)
            })
            .collect();
        let domains = vec![Domain::new(expected, model.dims.hidden, 0, ducks)];
        Ok(Flock { plan, experts, domains, next_seq: 0 })
    }

    /// How many sums a step's [`StepIo`] must have room for.
    pub fn top_nodes(&self) -> usize {
        self.domains.iter().map(Domain::top_nodes).sum()
    }

    /// Takes a step on; its input is published. Several may be outstanding.
    ///
    /// # Errors
    /// An input that makes no sense, or a `StepIo` for another flock: the step is then not taken on. A duck that cannot take it: all steps
    /// under way are then forgotten.
    pub fn submit(&mut self, io: Arc<StepIo>) -> Result<(), FlockError> {
        let (expected, found) = (self.top_nodes(), io.sums.len());
        if expected != found {
            return Err(FlockError::TopNodes { expected, found });
        }
        routing::check(io.input.get().ok_or(FlockError::NoInput)?, &self.experts)?;
        let seq = self.next_seq;
        if let Some(slot) = io.sums.iter().position(|sum| sum.get().is_some()) {
            return Err(FlockError::AlreadySummed { seq, slot });
        }
        self.next_seq += 1;
        let submitted = self.domains.iter_mut().try_for_each(|domain| domain.submit(seq, &io));
        if submitted.is_err() {
            self.abandon();
        }
        submitted
    }

    /// Forgets every step under way, after a failure; the flock can then take steps again.
    pub fn abandon(&mut self) {
        self.domains.iter_mut().for_each(Domain::abandon);
    }

    /// Makes progress without waiting for anyone. Ducks in this process compute here, on the caller's rayon pool, so that when it
    /// returns with nothing left to do every submitted step's sums are published; each is as soon as it is complete.
    ///
    /// # Errors
    /// A duck's failure; a step that was submitted twice.
    pub fn poll(&mut self) -> Result<(), FlockError> {
        let mut progress = true;
        while progress {
            progress = false;
            for domain in &mut self.domains {
                progress |= domain.poll()?;
            }
        }
        Ok(())
    }

    /// Steps that some domain has not published yet.
    pub fn outstanding(&self) -> usize {
        self.domains.iter().map(Domain::outstanding).max().unwrap_or(0)
    }

    /// Who holds what.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Counters by the plan's holders.
    pub fn stats(&self) -> Vec<DuckStats> {
        let mut stats = vec![DuckStats::default(); self.plan.holders()];
        for (holder, counters) in self.domains.iter().flat_map(Domain::stats) {
            stats[holder] = counters;
        }
        stats
    }
}
