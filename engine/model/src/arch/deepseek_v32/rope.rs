//! Rotary frequencies: plain, and stretched by YaRN ("YaRN: Efficient Context Window Extension of Large Language
//! Models", arXiv 2309.00071) in the form of DeepSeek's and transformers' code, which compute the table in f32: at long
//! range the rounding of a frequency turns into an angle, so it belongs to the model.

use crate::arch::config::{ConfigError, Fields};

/// How positions turn into rotation angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rope {
    /// Frequency i is theta^(-2i/d).
    Plain {
        /// The base.
        theta: f64,
    },
    /// Slow pairs are stretched by `factor`, fast ones are kept, those between are blended.
    Yarn {
        /// The base.
        theta: f64,
        /// Stretch, at least 1.
        factor: f64,
        /// Length that the unstretched model was trained for.
        original_positions: f64,
        /// Pairs that turn at least this often within that length are kept.
        beta_fast: f64,
        /// Pairs that turn at most this often are stretched in full.
        beta_slow: f64,
        /// Weight of ln(factor) in the attention scale.
        mscale_all_dim: f64,
    },
}

impl Rope {
    /// Reads `rope_scaling` (with `type`) or `rope_parameters` (with `rope_type`), whichever is present.
    pub(super) fn read(root: &Fields<'_>) -> Result<Rope, ConfigError> {
        let older = root.object("rope_scaling")?;
        let newer = root.object("rope_parameters")?;
        match (older, newer) {
            (None, None) => Ok(Rope::Plain { theta: theta(root, None)? }),
            (Some(fields), None) | (None, Some(fields)) => Rope::read_object(root, &fields),
            (Some(older), Some(newer)) => {
                let rope = Rope::read_object(root, &newer)?;
                if Rope::read_object(root, &older)? == rope {
                    return Ok(rope);
                }
                Err(ConfigError::value("rope_scaling", "different from rope_parameters", "the same in both"))
            }
        }
    }

    fn read_object(root: &Fields<'_>, fields: &Fields<'_>) -> Result<Rope, ConfigError> {
        let theta = theta(root, Some(fields))?;
        let newer_name: Option<String> = fields.optional("rope_type")?;
        let older_name: Option<String> = fields.optional("type")?;
        let key = fields.key(if newer_name.is_some() { "rope_type" } else { "type" });
        let Some(name) = newer_name.or(older_name) else { return Err(ConfigError::Missing { key }) };
        let rope = match name.as_str() {
            "default" => Rope::Plain { theta },
            "yarn" => Rope::read_yarn(fields, theta)?,
            other => return Err(ConfigError::unsupported(key, other, "yarn, default")),
        };
        for key in fields.unread(&[]) {
            tracing::warn!("config.json: {key} is not known and has no effect");
        }
        Ok(rope)
    }

    fn read_yarn(fields: &Fields<'_>, theta: f64) -> Result<Rope, ConfigError> {
        let mscale = fields.number("mscale", 0.0..=100.0)?;
        let mscale_all_dim = fields.number("mscale_all_dim", 0.0..=100.0)?;
        if mscale != mscale_all_dim {
            // The ratio of the two would scale cos and sin.
            let supported = format_args!("the same as mscale_all_dim, {mscale_all_dim}");
            return Err(ConfigError::unsupported(fields.key("mscale"), mscale, supported));
        }
        fields.only("attention_factor", 1.0)?;
        fields.only("truncate", true)?;
        let beta_fast = fields.number("beta_fast", 1e-3..=1e6)?;
        let beta_slow = fields.number("beta_slow", 1e-3..=1e6)?;
        if beta_slow > beta_fast {
            let expected = format_args!("at most beta_fast, {beta_fast}");
            return Err(ConfigError::value(fields.key("beta_slow"), beta_slow, expected));
        }
        Ok(Rope::Yarn {
            theta,
            factor: fields.number("factor", 1.0..=1e6)?,
            original_positions: fields.number("original_max_position_embeddings", 1.0..=1e9)?,
            beta_fast,
            beta_slow,
            mscale_all_dim,
        })
    }

    /// Angle of each of the `width` / 2 pairs at position 1, in radians, rounded to f32 step by step as in transformers.
    pub fn frequencies(&self, width: usize) -> Vec<f32> {
        let pairs = width / 2;
        // The power is taken in f64 and rounded: that is the correctly rounded f32 power.
        let power = |theta: f64, i: usize| theta.powf(f64::from(2.0 * i as f32 / width as f32)) as f32;
        match *self {
            Rope::Plain { theta } => (0..pairs).map(|i| 1.0 / power(theta, i)).collect(),
            Rope::Yarn { theta, factor, .. } => {
                let ramp = self.ramp(width);
                let blend = |(i, stretched): (usize, f32)| {
                    let kept = 1.0 - stretched;
                    let power = power(theta, i);
                    1.0 / (factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
                };
                ramp.into_iter().enumerate().map(blend).collect()
            }
        }
    }

    /// For each pair, how much of the stretch it takes, 0 to 1.
    fn ramp(&self, width: usize) -> Vec<f32> {
        let Rope::Yarn { theta, original_positions, beta_fast, beta_slow, .. } = *self else {
            return vec![0.0; width / 2];
        };
        // The pair that turns `turns` times within the original length.
        let pair = |turns: f64| {
            width as f64 * (original_positions / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
        };
        let low = pair(beta_fast).floor().max(0.0) as f32;
        let high = pair(beta_slow).ceil().min(width as f64 - 1.0) as f32;
        let span = if low == high { 0.001 } else { high - low };
        (0..width / 2).map(|i| ((i as f32 - low) / span).clamp(0.0, 1.0)).collect()
    }

    /// Factor on attention logits: m² / √width of a query, with m = 0.1 · mscale_all_dim · ln(factor) + 1.
    pub(super) fn softmax_scale(&self, query_width: usize) -> f32 {
        let m = match *self {
            Rope::Yarn { factor, mscale_all_dim, .. } => 0.1 * mscale_all_dim * factor.ln() + 1.0,
            Rope::Plain { .. } => 1.0,
        };
        (m * m / (query_width as f64).sqrt()) as f32
    }
}

/// `rope_theta`, which newer files keep inside `rope_parameters`.
fn theta(root: &Fields<'_>, inner: Option<&Fields<'_>>) -> Result<f64, ConfigError> {
    let range = 1.0001..=1e12;
    if let Some(fields) = inner
        && fields.optional::<f64>("rope_theta")?.is_some()
    {
        return fields.number("rope_theta", range);
    }
    root.number("rope_theta", range)
}
