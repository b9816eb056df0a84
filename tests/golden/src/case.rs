//! A prompt, what the model answered, and every intermediate tensor on the way.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Deref,
    path::Path,
};

use serde::Deserialize;

use crate::{Error, TensorSet, data_dir, or_fail, spec::Spec};

/// `meta.json` of a model; what only documents the run is left unread.
#[derive(Debug, Deserialize)]
pub(crate) struct Meta {
    pub(crate) spec: Spec,
    cases: BTreeMap<String, CaseMeta>,
}

#[derive(Debug, Deserialize)]
struct CaseMeta {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    greedy_margin_min: f64,
    mtp_margin_min: f64,
    mtp_trace: Vec<[u32; 5]>,
    /// Tensor name -> file.
    files: BTreeMap<String, String>,
    /// The same for what the official program computed in its fp8 mode.
    files_official_fp8: BTreeMap<String, String>,
}

impl Meta {
    pub(crate) fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("meta.json");
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        serde_json::from_str(&text).map_err(|source| Error::Json { path, source })
    }
}

impl CaseMeta {
    fn read(model: &str, case: &str) -> Result<Self, Error> {
        let mut cases = Meta::read(&data_dir().join(model))?.cases;
        cases.remove(case).ok_or_else(|| {
            let known = cases.into_keys().collect::<Vec<_>>().join(", ");
            Error::Unknown { kind: "case", name: format!("{model}/{case}"), known }
        })
    }
}

fn read_files(model: &str, files: &BTreeMap<String, String>) -> Result<TensorSet, Error> {
    let files: BTreeSet<&str> = files.values().map(String::as_str).collect();
    TensorSet::read(&data_dir().join(model), files)
}

/// What the official program computed for a case's prompt in its fp8 mode, under the names of [`Case`]; row i is position i. `README.md` says
/// how closely a layer can agree with it.
///
/// # Panics
/// If there is no such model or case, or its files cannot be read.
#[track_caller]
pub fn fp8path(model: &str, case: &str) -> TensorSet {
    or_fail(CaseMeta::read(model, case).and_then(|meta| read_files(model, &meta.files_official_fp8)))
}

/// One step of greedy decoding with one draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftStep {
    /// Position of the newest committed token.
    pub position: usize,
    /// That token.
    pub token: u32,
    /// What the MTP layer drafts for the next position.
    pub draft: u32,
    /// What the model itself chooses there.
    pub choice: u32,
    /// Whether the two are the same, so that this step commits two tokens.
    pub accepted: bool,
}

/// A recorded case. Its tensors are reached through [`TensorSet`]: `case.tensor("layers.0.hidden")`,
/// `case.ids("layers.0.index_topk")`; `README.md` gives names and shapes.
#[derive(Debug)]
pub struct Case {
    /// The prompt's token ids.
    pub prompt: Vec<u32>,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    /// Smallest distance between the two best logits among the greedy choices.
    pub greedy_margin: f64,
    /// The same for drafts.
    pub draft_margin: f64,
    /// Greedy decoding with one draft, step by step.
    pub mtp_trace: Vec<DraftStep>,
    tensors: TensorSet,
}

impl Case {
    /// Reads a case: `Case::open("deepseek-v32-tiny", "long")` or `"short"`.
    ///
    /// # Panics
    /// If there is no such model or case, or its files cannot be read.
    #[track_caller]
    pub fn open(model: &str, case: &str) -> Self {
        or_fail(Self::try_open(model, case))
    }

    fn try_open(model: &str, case: &str) -> Result<Self, Error> {
        let meta = CaseMeta::read(model, case)?;
        let tensors = read_files(model, &meta.files)?;
        let step = |[position, token, draft, choice, accepted]: [u32; 5]| DraftStep {
            position: position as usize,
            token,
            draft,
            choice,
            accepted: accepted != 0,
        };
        Ok(Self {
            prompt: meta.prompt,
            greedy: meta.greedy,
            greedy_margin: meta.greedy_margin_min,
            draft_margin: meta.mtp_margin_min,
            mtp_trace: meta.mtp_trace.into_iter().map(step).collect(),
            tensors,
        })
    }

    /// Prompt and greedy tokens: row i of every tensor belongs to the token at position i of this sequence.
    pub fn sequence(&self) -> Vec<u32> {
        [self.prompt.as_slice(), &self.greedy].concat()
    }
}

impl Deref for Case {
    type Target = TensorSet;

    fn deref(&self) -> &TensorSet {
        &self.tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cases_are_complete_and_agree_with_themselves() {
        for (name, prompt) in [("long", 160), ("short", 11)] {
            let case = Case::open("deepseek-v32-tiny", name);
            assert_eq!((case.prompt.len(), case.greedy.len()), (prompt, 64));
            let rows = prompt + 64;
            let ids: Vec<i32> = case.sequence().into_iter().map(|id| id as i32).collect();
            assert_eq!(case.ids("input_ids").data, ids);
            for layer in 0..4 {
                for part in ["hidden", "attn_out", "mlp_out"] {
                    let tensor = case.tensor(&format!("layers.{layer}.{part}"));
                    assert_eq!(tensor.shape, [rows, 256], "layer {layer} {part}");
                }
                let kept = case.ids(&format!("layers.{layer}.index_topk"));
                assert_eq!(kept.shape[0], rows);
                assert_eq!(kept.row(0)[..2], [0, -1], "position 0 sees itself alone");
            }
            let logits = case.tensor("logits");
            assert_eq!(logits.shape, [rows, 512]);
            for (at, &token) in case.greedy.iter().enumerate() {
                assert_eq!(largest(logits.row(prompt - 1 + at)), token as usize);
            }
            assert_eq!(case.tensor("mtp.logits").shape, [rows, 512]);
        }
    }

    #[test]
    fn the_fp8_recordings_are_complete_and_agree_with_themselves() {
        for (name, rows) in [("long", 160), ("short", 11)] {
            let tensors = fp8path("deepseek-v32-tiny", name);
            let prompt: Vec<i32> =
                Case::open("deepseek-v32-tiny", name).prompt.into_iter().map(|id| id as i32).collect();
            assert_eq!(tensors.ids("input_ids").data, prompt);
            // The stream is what attention and feed-forward add to it, rounded to bf16 in between; the sum itself is recorded unrounded.
            for layer in 1..4 {
                let part = |layer: usize, part: &str| tensors.tensor(&format!("layers.{layer}.{part}")).data;
                let (before, attention) = (part(layer - 1, "hidden"), part(layer, "attn_out"));
                let (added, hidden) = (part(layer, "mlp_out"), part(layer, "hidden"));
                assert_eq!(hidden.len(), rows * 256);
                let bf16 = |v: f32| half::bf16::from_f32(v).to_f32();
                for i in 0..hidden.len() {
                    let middle = bf16(bf16(before[i]) + attention[i]);
                    assert_eq!(middle + added[i], hidden[i], "layer {layer}, element {i}");
                }
            }
            assert_eq!(tensors.tensor("mtp.logits").shape, [rows, 512]);
        }
    }

    #[test]
    fn trace_follows_from_the_recorded_logits() {
        for (name, accepted, steps) in [("long", 28, 35), ("short", 21, 42)] {
            let case = Case::open("deepseek-v32-tiny", name);
            let (main, drafts) = (case.tensor("logits"), case.tensor("mtp.logits"));
            for step in &case.mtp_trace {
                assert_eq!(case.sequence()[step.position], step.token);
                assert_eq!(largest(drafts.row(step.position - 1)), step.draft as usize);
                assert_eq!(largest(main.row(step.position)), step.choice as usize);
                assert_eq!(step.accepted, step.draft == step.choice);
            }
            assert_eq!(case.mtp_trace.len(), steps);
            assert_eq!(case.mtp_trace.iter().filter(|step| step.accepted).count(), accepted);
        }
    }

    #[test]
    fn unknown_cases_and_models_are_named() {
        let error = Case::try_open("deepseek-v32-tiny", "medium").expect_err("no such case");
        let expected = "no case named \"deepseek-v32-tiny/medium\"; there are: long, short";
        assert_eq!(error.to_string(), expected);
        let error = Case::try_open("other", "long").expect_err("no such model");
        assert!(error.to_string().contains("meta.json: cannot read"), "{error}");
    }

    fn largest(row: &[f32]) -> usize {
        let best = row.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(usize::MAX, |(at, _)| at)
    }
}
