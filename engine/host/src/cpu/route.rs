//! The router's choice from its logits.

use model::program::Routing;

/// Chooses experts for one lane from router logits `[experts]` (DeepSeek-V3's rule): scores are sigmoids; the choice, first of groups by the sum of their
/// two largest, then of experts, is by score + bias; weights are the chosen scores without the bias. Of equals the lower id wins.
/// Ids come out ascending.
pub(crate) fn route(logits: &[f32], bias: &[f32], routing: &Routing, experts: &mut [u16], weights: &mut [f32]) {
    let scores: Vec<f32> = logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect();
    let biased: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
    let size = routing.experts / routing.groups;
    let group_scores: Vec<f32> = biased
        .chunks(size)
        .map(|group| {
            let [mut first, mut second] = [f32::NEG_INFINITY; 2];
            for &c in group {
                (first, second) = if c > first { (c, first) } else { (first, second.max(c)) };
            }
            if size > 1 { first + second } else { first }
        })
        .collect();
    let groups = super::select::best(&group_scores, routing.kept_groups);
    let candidates: Vec<u32> = groups.iter().flat_map(|g| g * size as u32..(g + 1) * size as u32).collect();
    let candidate_scores: Vec<f32> = candidates.iter().map(|&e| biased[e as usize]).collect();
    let chosen = super::select::best(&candidate_scores, routing.chosen);
    for ((expert, weight), c) in experts.iter_mut().zip(weights.iter_mut()).zip(chosen) {
        *expert = candidates[c as usize] as u16;
        *weight = scores[usize::from(*expert)];
    }
    let sum = if routing.normalise { weights.iter().sum::<f32>() + 1e-20 } else { 1.0 };
    weights.iter_mut().for_each(|w| *w = *w / sum * routing.scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTING: Routing = Routing { experts: 6, chosen: 2, groups: 3, kept_groups: 1, normalise: true, scale: 2.5 };

    fn chosen(logits: [f32; 6], bias: [f32; 6]) -> ([u16; 2], [f32; 2]) {
        let (mut e, mut w) = ([0; 2], [0.0; 2]);
        route(&logits, &bias, &ROUTING, &mut e, &mut w);
        (e, w)
    }

    #[test]
    fn a_group_wins_by_its_two_best_together() {
        // Expert 0 is the best alone, but group 1 has the larger pair.
        assert_eq!(chosen([4.0, -4.0, 1.0, 1.5, 0.0, 0.0], [0.0; 6]).0, [2, 3]);
    }

    #[test]
    fn the_bias_selects_but_does_not_weigh() {
        let (e, w) = chosen([0.0; 6], [0.0, 0.0, 0.0, 0.0, 9.0, 8.0]);
        assert_eq!((e, w), ([4, 5], [1.25, 1.25]));
    }

    #[test]
    fn groups_are_masked_even_when_all_scores_are_negative() {
        let (e, _) = chosen([0.0; 6], [-3.0, -3.0, -2.0, -2.0, -4.0, -4.0]);
        assert_eq!(e, [2, 3]);
    }

    #[test]
    fn of_equal_experts_the_lower_ids_are_chosen() {
        assert_eq!(chosen([0.0; 6], [0.0; 6]).0, [0, 1]);
    }
}
