//! Steps: handed to the domains, and to others where a holder is lost.

use std::sync::Arc;

use kernels::tree::Node;
use model::step::{NodeSums, StepIo};

use super::message::Command;
use super::{Chore, Duck, Remote, Step};
use crate::FlockError;

impl Remote {
    /// Takes a step on.
    pub(crate) fn submit(&mut self, id: u64, io: Arc<StepIo>) -> Result<(), FlockError> {
        self.drain()?;
        self.look();
        if self.stale {
            self.assign()?;
        }
        let assignment = Arc::clone(&self.assignment);
        for at in 0..self.domains.len() {
            if self.domains[at].thread.is_none() {
                // The assignment gives nothing to a port that has ended.
                io.sums[at].publish(NodeSums::clear);
                continue;
            }
            self.send(at, Command::Step { id, io: Arc::clone(&io), assignment: Arc::clone(&assignment) })?;
        }
        self.local.submit(id, &io);
        self.steps.push(Step { id, io });
        Ok(())
    }

    /// Handles what domains report, and computes what the host has to. Returns whether something was done.
    pub(crate) fn poll(&mut self) -> Result<bool, FlockError> {
        self.seen = self.signal.seen();
        let mut progress = self.drain()?;
        progress |= self.local.poll()?;
        while let Some(chore) = self.chores.pop_front() {
            progress = true;
            self.compute(chore)?;
        }
        let before = self.steps.len();
        self.steps.retain(|step| !step.io.is_summed());
        Ok(progress || self.steps.len() < before)
    }

    /// Forgets every step under way.
    pub(crate) fn abandon(&mut self) {
        self.local.abandon();
        self.chores.clear();
        self.steps.clear();
        for at in 0..self.domains.len() {
            // A domain that has ended is found at the next step.
            let _ = self.send(at, Command::Abandon);
        }
    }

    /// Steps that are not published.
    pub(crate) fn outstanding(&self) -> usize {
        self.steps.iter().filter(|step| !step.io.is_summed()).count()
    }

    /// Finds others for nodes of a step that have lost their holder.
    pub(super) fn take_over(&mut self, id: u64, home: usize, nodes: Vec<Node>) -> Result<(), FlockError> {
        let Some(step) = self.steps.iter().find(|step| step.id == id) else { return Ok(()) };
        let io = Arc::clone(&step.io);
        let mut asked: Vec<(usize, Vec<Node>)> = Vec::new();
        let substitutes = self.placement.substitutes(&nodes, &self.able(), &self.assignment);
        for (node, found) in nodes.into_iter().zip(substitutes) {
            self.view.told().take_overs += 1;
            let into: Vec<Node> = found.iter().map(|(_, node)| *node).collect();
            if into != [node] {
                self.send(home, Command::Split { id, node, into })?;
            }
            for (duck, node) in found {
                match duck {
                    None => self.chores.push_back(Chore { id, home, node }),
                    Some(duck) => match asked.iter_mut().find(|(of, _)| *of == duck) {
                        Some((_, nodes)) => nodes.push(node),
                        None => asked.push((duck, vec![node])),
                    },
                }
            }
        }
        for (duck, mut nodes) in asked {
            nodes.sort_by_key(|n| n.order());
            // A duck computes only so many nodes at a time; the host does the rest.
            let rest = nodes.split_off(nodes.len().min(self.limits.nodes.into()));
            self.chores.extend(rest.into_iter().map(|node| Chore { id, home, node }));
            let Duck { spec, seat, .. } = &self.ducks[duck];
            self.send(spec.port, Command::Favour { id, home, io: Arc::clone(&io), seat: *seat, nodes })?;
        }
        Ok(())
    }

    pub(super) fn compute(&mut self, chore: Chore) -> Result<(), FlockError> {
        let Some(step) = self.steps.iter().find(|step| step.id == chore.id) else { return Ok(()) };
        let io = Arc::clone(&step.io);
        let input = io.input.get().ok_or(FlockError::NoInput)?;
        let (present, values) = self.substitute.compute(chore.node, input)?;
        self.send(chore.home, Command::Land { id: chore.id, node: chore.node, present, values })
    }
}
