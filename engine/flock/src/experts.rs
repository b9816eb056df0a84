//! All units of a model, ready for the kernels, as every in-process holder reads them.
//!
//! A converted model's units are mapped from its slice files. A checkpoint that is small enough is packed here, in memory, without loss: e4m3 stays e4m3 and
//! bf16 stays bf16, so that what is computed does not depend on whether a model was converted (unless it was converted to fp9
//! from bf16, which rounds).

use std::sync::Arc;

use kernels::tree::Shape;
use model::Numerics;
use model::checkpoint::DType;
use model::converted::{FormatChoice, Slices};
use model::program::Model;

use crate::FlockError;
use crate::plan::{Plan, PlanError};

/// Columns of an expert's intermediate dimension in one unit.
const SLICE: usize = kernels::unit::SLICE;

/// The experts of every layer, and how their activations are rounded.
#[derive(Debug)]
pub(crate) struct Experts {
    pub shape: Shape,
    pub hidden: usize,
    pub chosen: usize,
    pub numerics: Numerics,
    pub isa: fp9::Isa,
    pub slices: Arc<Slices>,
}

/// The units of one layer of the model.
///
/// # Errors
/// More units than a tree can number, or none.
pub fn shape(model: &Model) -> Result<Shape, PlanError> {
    let (slices, experts) = (model.dims.expert_width / SLICE, model.dims.experts);
    model.dims.shape().ok_or(PlanError::Units { slices, experts })
}

/// Bytes of kernel-ready weights (scales included) that each holder has, over all layers: what it needs memory for. For a checkpoint that
/// is not converted, what its experts are on disk.
pub fn bytes_per_duck(model: &Model, plan: &Plan) -> Vec<u64> {
    let shape = plan.shape();
    let units = u64::from(shape.slices) * u64::from(shape.experts);
    let all = match &model.slices {
        Some(slices) => slices.bytes(),
        None => model
            .experts
            .iter()
            .flat_map(|layer| &layer.experts)
            .flat_map(|e| [&e.gate, &e.up, &e.down])
            .map(|m| m.data.bytes().len() as u64 + m.scale.as_ref().map_or(0, |s| size_of_val(s.values()) as u64))
            .sum(),
    };
    (0..plan.holders()).map(|holder| all * u64::from(plan.units(holder)) / units.max(1)).collect()
}

/// Packs the experts of a model that is not converted, and leaves them in it, so that flocks made of it need not. `progress` is told, from
/// any thread, how many units are packed so far, and of how many; of a converted model it hears nothing, since that is read when it is used.
///
/// # Errors
/// Weights that cannot be used, or too many for memory.
pub fn pack(model: &mut Model, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<(), FlockError> {
    if model.slices.is_none() {
        model.slices = Some(packed(model, progress)?);
    }
    Ok(())
}

/// Without loss.
fn packed(model: &Model, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Arc<Slices>, FlockError> {
    let first = model.experts.first().and_then(|layer| layer.experts.first());
    let exact = match first.map(|expert| expert.gate.dtype()) {
        Some(DType::BF16) => FormatChoice::Only(fp9::Format::Bf16),
        _ => FormatChoice::Auto,
    };
    Ok(Slices::in_memory_with(&model.experts, exact, progress)?.0)
}

impl Experts {
    /// As [`Experts::new`], with the number of experts that a lane chooses checked as well.
    pub fn checked(model: &Model, numerics: Numerics) -> Result<Arc<Experts>, FlockError> {
        let (chosen, shape) = (model.dims.chosen, shape(model)?);
        if chosen == 0 || chosen > model.dims.experts {
            return Err(PlanError::Chosen { experts: shape.experts, found: chosen }.into());
        }
        Ok(Arc::new(Experts::new(model, numerics)?))
    }

    /// Takes the model's units, packing them first if it is not converted.
    pub fn new(model: &Model, numerics: Numerics) -> Result<Experts, FlockError> {
        let shape = shape(model)?;
        let (hidden, width) = (model.dims.hidden, model.dims.expert_width);
        if hidden == 0 || !width.is_multiple_of(SLICE) {
            return Err(FlockError::Sizes { hidden, width });
        }
        let slices = match &model.slices {
            Some(slices) => Arc::clone(slices),
            None => packed(model, &|_, _| ())?,
        };
        let found = (slices.layout().hidden(), slices.slices(), slices.experts());
        let expected = (hidden, usize::from(shape.slices), usize::from(shape.experts));
        if found != expected {
            return Err(FlockError::Units { expected, found });
        }
        let isa = fp9::Isa::detect();
        tracing::debug!(isa = isa.name(), format = ?slices.format(), "experts are ready");
        Ok(Experts { shape, hidden, chosen: model.dims.chosen, numerics, isa, slices })
    }

    /// How the kernels round.
    pub fn mode(&self) -> kernels::Mode {
        match self.numerics {
            Numerics::Exact => kernels::Mode::Exact,
            // What ducks multiply has been quantised by stage 0 in mode fp8, and is exact in bf16.
            Numerics::Bf16 | Numerics::Fp8 => kernels::Mode::Bf16,
        }
    }
}
