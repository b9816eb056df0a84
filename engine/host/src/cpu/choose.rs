//! Choosing tokens from logits, drafts included.

use std::collections::HashMap;

use model::sampling::{Distribution, Purpose, SamplingError, Verdict, greedy, uniform, verify_draft};

use crate::stage::{Choice, Chosen, Rule, SequenceId};

/// What is remembered of a sequence's draft until it is verified.
#[derive(Debug)]
pub(crate) struct Draft {
    token: u32,
    distribution: Distribution,
}

/// Chooses one token. `drafts` keeps draft distributions by sequence.
pub(crate) fn choose(
    choice: &Choice<'_>,
    logits: &[f32],
    sequence: SequenceId,
    drafts: &mut HashMap<SequenceId, Draft>,
) -> Result<Chosen, SamplingError> {
    let params = choice.params;
    let random = |purpose| uniform(params.seed, choice.choice_index, choice.position as u64, purpose);
    let distribution = if params.is_greedy() && params.repetition_penalty == 1.0 {
        Distribution::certain(greedy(logits)?)
    } else {
        Distribution::new(logits, params, choice.history)?
    };
    let free = |token| Chosen { token, accepted: false };
    match choice.rule {
        Rule::Token => Ok(free(distribution.sample(random(Purpose::Token)))),
        Rule::Draft => {
            let token = distribution.sample(random(Purpose::Draft));
            drafts.insert(sequence, Draft { token, distribution });
            Ok(free(token))
        }
        Rule::Verify { draft } => {
            // A draft that did not come from the kept distribution was certain for whoever proposed it.
            let proposal = drafts.remove(&sequence).filter(|kept| kept.token == draft);
            let q = proposal.map_or_else(|| Distribution::certain(draft), |kept| kept.distribution);
            let verdict = verify_draft(draft, &q, &distribution, random(Purpose::Accept), random(Purpose::Residual));
            Ok(match verdict {
                Verdict::Accepted => Chosen { token: draft, accepted: true },
                Verdict::Rejected(token) => free(token),
            })
        }
    }
}
