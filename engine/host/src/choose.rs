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

/// Whether a choice is the largest logit, whatever is random.
pub(crate) fn is_greedy(choice: &Choice<'_>) -> bool {
    choice.params.is_greedy() && choice.params.repetition_penalty == 1.0
}

/// Chooses one token. `drafts` keeps draft distributions by sequence.
pub(crate) fn choose(
    choice: &Choice<'_>,
    logits: &[f32],
    sequence: SequenceId,
    drafts: &mut HashMap<SequenceId, Draft>,
) -> Result<Chosen, SamplingError> {
    let distribution = if is_greedy(choice) {
        Distribution::certain(greedy(logits)?)
    } else {
        Distribution::new(logits, choice.params, choice.history)?
    };
    Ok(choose_from(choice, distribution, sequence, drafts))
}

/// Chooses one token from a distribution.
pub(crate) fn choose_from(
    choice: &Choice<'_>,
    distribution: Distribution,
    sequence: SequenceId,
    drafts: &mut HashMap<SequenceId, Draft>,
) -> Chosen {
    let params = choice.params;
    let random = |purpose| uniform(params.seed, choice.choice_index, choice.position as u64, purpose);
    let free = |token| Chosen { token, accepted: false };
    match choice.rule {
        Rule::Token => free(distribution.sample(random(Purpose::Token))),
        Rule::Draft => {
            let token = distribution.sample(random(Purpose::Draft));
            drafts.insert(sequence, Draft { token, distribution });
            free(token)
        }
        Rule::Verify { draft } => {
            // A draft that did not come from the kept distribution was certain for whoever proposed it.
            let proposal = drafts.remove(&sequence).filter(|kept| kept.token == draft);
            let q = proposal.map_or_else(|| Distribution::certain(draft), |kept| kept.distribution);
            match verify_draft(draft, &q, &distribution, random(Purpose::Accept), random(Purpose::Residual)) {
                Verdict::Accepted => Chosen { token: draft, accepted: true },
                Verdict::Rejected(token) => free(token),
            }
        }
    }
}
