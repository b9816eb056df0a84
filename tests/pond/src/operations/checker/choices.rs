//! Operations that choose: the numbers that they choose by are compared with the reference, the choice with those numbers.

use host::observe::Seen;
use model::program::Op;

use super::super::compare::{Exact, LIMIT, off_by};
use super::super::reference::{self, Score};
use super::super::{Handed, checked};
use super::{Checker, spread};

/// Room in a router's choice below which f32 sigmoids may choose otherwise.
const ROUTER_MARGIN: f64 = 1e-6;
/// Part of an indexer's scores that may lie further off in mode fp8: the Hadamard transform's last bit can turn a rounding, and with it one value of
/// eight bits, of a query (a lane's scores) or of a key (a column of them).
const TURNED: f64 = 0.02;

impl Checker {
    /// Scores, and the positions that are kept for them.
    pub(super) fn select(&mut self, seen: &Seen<'_>) {
        let Op::Select { q, weights, keys, head_scale, key_scale, keep, out } = seen.op else {
            unreachable!("called for Select only")
        };
        let shared = self.shared.clone();
        let mut shared = shared.lock().expect("no test thread panicked with it");
        let (mut compared, mut further) = (0, Vec::new());
        for (t, lane) in seen.lanes.iter().enumerate() {
            let place = self.place(seen, t);
            let (visible, kept, scores) = (lane.position + 1, &seen.kept[t], &seen.scores[t]);
            if kept.len() != visible.min(*keep) || kept.last().is_some_and(|&last| last as usize >= visible) {
                shared.findings.fault(&place, format_args!("keeps {kept:?} of {visible} positions"));
                continue;
            }
            // Beyond some number of lanes a stage has no scores left to show.
            let shown = scores.len() == visible;
            if shown && scores.iter().any(|score| !score.is_finite()) {
                shared.findings.fault(&place, "scores that are no numbers");
                continue;
            }
            if shown && *kept != reference::best(scores, *keep) {
                shared.findings.fault(&place, "keeps others than the largest of its own scores");
            }
            if !checked(t, seen.lanes.len()) {
                continue;
            }
            let mut query = self.row(*q, t).to_vec();
            if self.fp8() {
                let dim = query.len() / weights.width;
                query.chunks_mut(dim).for_each(spread);
            }
            let score = |u: usize| {
                reference::score(&query, self.row(*weights, t), &self.caches[&(keys.0, u)], [*head_scale, *key_scale])
            };
            let exact: Vec<Score> = (0..visible).map(score).collect();
            let rms = (exact.iter().map(|s| s.value * s.value).sum::<f64>() / visible as f64).sqrt();
            let size = |u: usize| rms.max(exact[u].size).max(1e-30);
            // By how much a score may lie further off in mode fp8.
            let turned = |u: usize| if self.fp8() { exact[u].largest / 4.0 } else { 0.0 };
            if !shown {
                let near = (0..visible).map(|u| LIMIT * size(u) + turned(u)).fold(0.0, f64::max);
                if !follows(kept, &exact, 2.0 * near) {
                    shared.findings.fault(&place, "keeps others than the largest of the exact scores");
                }
                continue;
            }
            let (mut near, mut want) = (scores.clone(), Exact::new(Vec::new(), false));
            for (u, exact) in exact.iter().enumerate() {
                let off = off_by(scores[u], exact.value, false);
                if off > LIMIT * size(u) && off <= turned(u) {
                    further.push((t, u, scores[u], exact.value));
                    near[u] = exact.value as f32;
                }
                want.values.push(exact.value);
            }
            compared += visible;
            shared.findings.row_with(&place, &near, &want, &size);
        }
        if further.len() as f64 > TURNED * compared as f64 + 1.0 {
            let place = self.place(seen, further[0].0);
            let what = format!(
                "{} of {compared} scores lie off by more than sums can explain; lane, key, found, exact: {:?}",
                further.len(),
                &further[..further.len().min(6)]
            );
            shared.findings.fault(&place, what);
        }
        self.selections.insert(out.0, seen.kept.to_vec());
    }

    /// Logits, experts and their weights; notes what shall be handed over.
    pub(super) fn route(&mut self, seen: &Seen<'_>) {
        let Op::Route { x, gate, bias, routing } = seen.op else { unreachable!("called for Route only") };
        let values = self.decoded(*gate);
        let bias = &*self.model.weights.vectors[bias.0 as usize];
        let shared = self.shared.clone();
        let mut shared = shared.lock().expect("no test thread panicked with it");
        shared.handed.clear();
        for t in 0..seen.lanes.len() {
            let (place, logits) = (self.place(seen, t), &seen.scores[t]);
            let chosen = t * routing.chosen..(t + 1) * routing.chosen;
            let (experts, weights) = (&seen.experts[chosen.clone()], &seen.weights[chosen]);
            shared.handed.push(Handed {
                hidden: self.row(*x, t).to_vec(),
                experts: experts.to_vec(),
                weights: weights.to_vec(),
            });
            if checked(t, seen.lanes.len()) {
                let want = self.product(self.row(*x, t), *gate, &values);
                shared.findings.row(&place, logits, &want);
            }
            let want = reference::route(logits, bias, routing);
            if want.experts.iter().copied().eq(experts.iter().map(|&e| u32::from(e))) {
                shared.findings.row(&place, weights, &Exact::new(want.weights, false));
            } else if want.margin > ROUTER_MARGIN {
                let what = format!("{experts:?} instead of {:?}, margin {:.1e}", want.experts, want.margin);
                shared.findings.fault(&place, what);
            }
        }
    }
}

/// Whether no position that was dropped has a score above one that was kept by more than `near`.
fn follows(kept: &[u32], exact: &[Score], near: f64) -> bool {
    let is_kept = |u: &usize| kept.binary_search(&(*u as u32)).is_ok();
    let (inside, outside): (Vec<usize>, Vec<usize>) = (0..exact.len()).partition(is_kept);
    let lowest = inside.iter().map(|&u| exact[u].value).fold(f64::INFINITY, f64::min);
    outside.iter().all(|&u| exact[u].value <= lowest + near)
}
