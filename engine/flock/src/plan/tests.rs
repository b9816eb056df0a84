use super::*;

const DUCKLING: Shape = Shape { slices: 4, experts: 8 };
const V32: Shape = Shape { slices: 32, experts: 256 };

#[test]
fn every_number_of_ducks_gets_a_partition() {
    let shapes = [
        (DUCKLING, 2),
        (Shape { slices: 3, experts: 5 }, 5),
        (Shape { slices: 1, experts: 1 }, 1),
        (Shape { slices: 7, experts: 1 }, 1),
        (Shape { slices: 2, experts: 20 }, 3),
    ];
    for (shape, chosen) in shapes {
        for ducks in 1..=shape.units().expect("small") as usize {
            let plan = Plan::for_ducks(shape, chosen, ducks).expect("a valid number of ducks");
            assert_eq!(plan.check(), Ok(()), "{shape:?} {ducks}");
            assert_eq!(plan.holders(), ducks);
            let idle = (0..ducks).filter(|&h| plan.nodes(h).is_empty()).count();
            assert!(idle < ducks && plan.summary(chosen).contains("units"), "{shape:?} {ducks}");
        }
    }
}

#[test]
fn large_shapes_get_partitions_too() {
    for ducks in [1, 5, 24, 31, 32, 33, 48, 64, 100, 1000, 8191, 8192] {
        let plan = Plan::for_ducks(V32, 8, ducks).expect("a valid number of ducks");
        assert_eq!(plan.check(), Ok(()), "{ducks}");
    }
}

#[test]
fn natural_plans_report_one_vector_each() {
    let qwen = Shape { slices: 12, experts: 128 };
    for (shape, chosen, ducks, units, nodes) in [
        (V32, 8, 32, 256, 1),
        (V32, 8, 16, 512, 1),
        (V32, 8, 64, 128, 1),
        (qwen, 8, 24, 64, 1),
        (DUCKLING, 2, 4, 8, 1),
        (DUCKLING, 2, 32, 1, 1),
    ] {
        let plan = Plan::for_ducks(shape, chosen, ducks).expect("a valid number of ducks");
        for holder in 0..ducks {
            assert_eq!((plan.units(holder), plan.nodes(holder).len()), (units, nodes), "{shape:?} {ducks} {holder}");
        }
    }
}

#[test]
fn no_ducks_and_too_many_are_refused_with_the_limit() {
    for found in [0, 33, usize::MAX] {
        let error = Plan::for_ducks(DUCKLING, 2, found).expect_err("32 units");
        assert_eq!(error, PlanError::Ducks { allowed: 32, found });
        assert!(error.to_string().ends_with("from 1 to 32"), "{error}");
    }
    assert!(matches!(Plan::for_ducks(DUCKLING, 9, 4), Err(PlanError::Chosen { experts: 8, found: 9 })));
    assert!(matches!(Plan::for_ducks(DUCKLING, 0, 4), Err(PlanError::Chosen { .. })));
    assert!(matches!(Plan::for_ducks(Shape { slices: 0, experts: 8 }, 1, 1), Err(PlanError::Units { .. })));
    assert!(matches!(Plan::for_ducks(Shape { slices: 65_535, experts: 9 }, 1, 1), Err(PlanError::Units { .. })));
}

#[test]
fn the_expected_maximum_lies_between_the_even_share_and_the_worst_case() {
    for ducks in 1..=32 {
        let plan = Plan::for_ducks(DUCKLING, 2, ducks).expect("a valid number of ducks");
        let (found, even) = (plan.expected_max(2), 8.0 / ducks as f64);
        assert!(found >= even - 1e-9 && (1.0..=8.0).contains(&found), "{ducks}: {found}");
    }
    assert_eq!(Plan::for_ducks(V32, 8, 32).expect("natural").expected_max(8), 8.0);
}

/// Two of eight experts in halves of four: both in one half with probability 3/7, so the busier half has 10/7 units.
#[test]
fn the_draws_agree_with_a_maximum_known_in_closed_form() {
    let shape = Shape { slices: 1, experts: 8 };
    let (even, odd) = shape.root().children(shape).expect("eight experts");
    let plan = Plan::from_nodes(shape, vec![vec![even], vec![odd]]).expect("two halves");
    let found = plan.expected_max(2);
    assert!((found - 10.0 / 7.0).abs() < 0.04, "{found}");
}

#[test]
fn an_uneven_number_of_ducks_beats_whole_slices() {
    // Whole slices would leave a duck with two of them: 16 units.
    for ducks in [20, 24, 28] {
        let plan = Plan::for_ducks(V32, 8, ducks).expect("a valid number of ducks");
        let nodes = (0..ducks).map(|h| plan.nodes(h).len()).max();
        assert!(plan.expected_max(8) < 15.0 && nodes <= Some(5), "{}", plan.summary(8));
    }
}

#[test]
fn spare_ducks_idle_rather_than_slow_a_natural_plan_down() {
    let plan = Plan::for_ducks(V32, 8, 33).expect("a valid number of ducks");
    assert!(plan.expected_max(8) <= 8.0, "{}", plan.summary(8));
}

#[test]
fn random_plans_are_partitions_and_differ() {
    let plans: Vec<Plan> = (0..50).map(|seed| Plan::random(DUCKLING, 3, seed).expect("three holders")).collect();
    plans.iter().for_each(|plan| assert_eq!(plan.check(), Ok(())));
    assert!(plans.iter().any(|plan| *plan != plans[0]));
}

#[test]
fn broken_plans_are_refused_with_what_is_wrong() {
    let root = DUCKLING.root();
    let (left, right) = root.children(DUCKLING).expect("four slices");
    let from = |holders| Plan::from_nodes(DUCKLING, holders);
    assert!(from(vec![vec![right], vec![left]]).is_ok());
    assert_eq!(from(vec![vec![left]]), Err(PlanError::Incomplete { expected: 32, found: 16 }));
    assert!(matches!(from(vec![vec![left, right], vec![right]]), Err(PlanError::Overlap { .. })));
    assert!(matches!(from(vec![vec![root], vec![DUCKLING.unit(3, 7)]]), Err(PlanError::Overlap { .. })));
    let bogus = [
        Node { slices: 0, ..root },
        Node { slices: 5, ..root },
        Node { slice: 1, slices: 2, ..root },
        Node { slice: 65_535, slices: 65_535, ..root },
        Node { depth: 1, ..root },
        Node { slices: 1, depth: 4, ..root },
        Node { slices: 1, depth: 200, ..root },
        Node { slices: 1, depth: 1, residue: 5, ..root },
        Node { slices: 1, depth: 3, residue: 9, ..root },
    ];
    for node in bogus {
        assert!(matches!(from(vec![vec![node]]), Err(PlanError::NoSuchNode { .. })), "{node:?}");
    }
}

#[test]
fn merging_finds_the_fewest_nodes() {
    let units: Vec<Node> =
        (0..4).flat_map(|slice| [0, 4, 2, 6, 1, 5, 3, 7].map(|expert| DUCKLING.unit(slice, expert))).collect();
    assert_eq!(merged(DUCKLING, &units), [DUCKLING.root()]);
    assert_eq!(merged(DUCKLING, &units[8..20]).len(), 2);
    assert_eq!(merged(DUCKLING, &[]), []);
}
