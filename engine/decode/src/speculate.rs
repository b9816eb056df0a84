//! Decoding with at most one draft a step.
//!
//! At the start of each round positions `0 .. n` are in the main layers' caches, `next` (chosen, not yet run) belongs to position n, and with
//! drafting `draft` is the MTP layer's proposal for position n + 1. One main pass runs both; its logits at n judge the draft by the
//! accept rule and, if it holds, those at n + 1 give one more token. If it does not hold, position n + 1 leaves every cache
//! before anything else is run. Then the MTP layer reads the positions that hold, each with the token after it, and drafts again.

use host::stage::{Choice, Chosen, Layers, PassId, PassSpec, Rule, Stage};

use crate::EngineError;
use crate::engine::{Answer, Context, Engine, lanes};

/// What tests and comparisons may look at or replace.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) logits: Option<LogitsHook>,
    pub(crate) drafts: Option<DraftHook>,
    pub(crate) chooser: Option<ChooserHook>,
}

/// Called with a position and the logits that decide its token.
pub type LogitsHook = Box<dyn FnMut(usize, &[f32]) + Send>;
/// Makes another draft of a draft.
pub type DraftHook = Box<dyn FnMut(u32) -> u32 + Send>;
/// Chooses the token for a position, given all tokens before it and the logits that decide it.
pub type ChooserHook =
    Box<dyn FnMut(usize, &[u32], &[f32]) -> Result<u32, Box<dyn std::error::Error + Send + Sync>> + Send>;

impl Hooks {
    /// Shows the logits that decide position `position`.
    pub(crate) fn show(&mut self, position: usize, stage: &dyn Stage, pass: PassId, lane: usize) {
        // Asked for only if somebody looks: a GPU's have to be fetched.
        let Some(hook) = &mut self.logits else { return };
        if let Some(logits) = stage.logits(pass, lane) {
            hook(position, logits);
        }
    }

    /// Has the hook choose where there is one, else the stage. A draft then holds if the hook chooses the same token with the draft's
    /// own place still open: what comes out does not depend on what was drafted.
    pub(crate) fn choose(
        &mut self,
        stage: &mut dyn Stage,
        pass: PassId,
        choice: Choice<'_>,
    ) -> Result<Chosen, EngineError> {
        let Some(chooser) = &mut self.chooser else { return Ok(stage.choose(pass, &[choice])?[0]) };
        let logits = stage.logits(pass, choice.lane).ok_or(EngineError::NoLogits { position: choice.position })?;
        let token = chooser(choice.position, choice.history, logits).map_err(EngineError::Chooser)?;
        Ok(Chosen { token, accepted: choice.rule == Rule::Verify { draft: token } })
    }
}

/// Generates after the first token until the answer ends.
pub(crate) fn decode(
    engine: &mut Engine,
    context: &mut Context,
    answer: &mut Answer<'_>,
    first: u32,
) -> Result<(), EngineError> {
    let mut next = first;
    if !answer.take(next, context.tokens.len(), None, false) {
        return Ok(());
    }
    let mut draft = propose(engine, context, answer, &[next])?;
    loop {
        let n = context.tokens.len();
        let (judged, bonus) = step(engine, context, answer, next, draft)?;
        context.tokens.push(next);
        if let Some(draft) = draft {
            answer.stats.drafts += 1;
            answer.stats.accepted += usize::from(judged.accepted);
            if judged.accepted {
                context.tokens.push(draft);
            } else {
                engine.compute.stage.truncate(context.sequence, n + 1, n + 1);
            }
        }
        if !answer.take(judged.token, n + 1, draft, judged.accepted) {
            return Ok(());
        }
        next = judged.token;
        let mut seen = vec![judged.token];
        if let Some(bonus) = bonus {
            if !answer.take(bonus.token, n + 2, None, false) {
                return Ok(());
            }
            next = bonus.token;
            seen.push(bonus.token);
        }
        draft = propose(engine, context, answer, &seen)?;
    }
}

/// One main pass over `next` and, if there is one, the draft behind it: the token after `next`, and the one after an accepted draft.
fn step(
    engine: &mut Engine,
    context: &Context,
    answer: &Answer<'_>,
    next: u32,
    draft: Option<u32>,
) -> Result<(Chosen, Option<Chosen>), EngineError> {
    let n = context.tokens.len();
    let (params, choice_index) = (&answer.request.sampling, answer.request.choice_index);
    let mut history = context.tokens.clone();
    history.push(next);
    history.extend(draft);
    let run = lanes(context.sequence, n, &history[n..]);
    let logits = (0..run.len()).collect();
    let hooks = &mut engine.hooks;
    engine.compute.pass(&PassSpec { layers: Layers::Main, lanes: run, logits }, |stage, pass| {
        let mut choose = |lane: usize, rule| {
            hooks.show(n + 1 + lane, stage, pass, lane);
            let history = &history[..=n + lane];
            let choice = Choice { lane, params, choice_index, history, position: n + 1 + lane, rule };
            hooks.choose(stage, pass, choice)
        };
        match draft {
            None => Ok((choose(0, Rule::Token)?, None)),
            Some(draft) => {
                let judged = choose(0, Rule::Verify { draft })?;
                let bonus = if judged.accepted { Some(choose(1, Rule::Token)?) } else { None };
                Ok((judged, bonus))
            }
        }
    })
}

/// Lets the MTP layer read the positions that it lacks, `chosen` being the latest tokens (the last of them not in the caches yet), and drafts the
/// token after them. `None` without drafting, or where a draft could not be used.
fn propose(
    engine: &mut Engine,
    context: &mut Context,
    answer: &Answer<'_>,
    chosen: &[u32],
) -> Result<Option<u32>, EngineError> {
    let n = context.tokens.len();
    let room = n + 1 < engine.max_len && answer.stats.output_len + 1 < answer.request.max_tokens;
    if !answer.request.mtp {
        return Ok(None);
    }
    let mut history = context.tokens.clone();
    history.extend(chosen.last());
    let from = context.mtp_len;
    let run = lanes(context.sequence, from, &history[from + 1..]);
    let lane = run.len() - 1;
    let choice = Choice {
        lane,
        params: &answer.request.sampling,
        choice_index: answer.request.choice_index,
        history: &history,
        position: n + 1,
        rule: Rule::Draft,
    };
    let spec = PassSpec { layers: Layers::Mtp, lanes: run, logits: if room { vec![lane] } else { Vec::new() } };
    let draft = engine.compute.pass(&spec, |stage, pass| {
        if !room {
            return Ok(None);
        }
        Ok(Some(stage.choose(pass, &[choice])?[0].token))
    })?;
    context.mtp_len = n;
    Ok(match &mut engine.hooks.drafts {
        Some(hook) => draft.map(hook),
        None => draft,
    })
}
