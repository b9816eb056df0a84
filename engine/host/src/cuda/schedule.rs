//! Orders tasks into as few launches as their dependencies allow.
//!
//! A list schedule: whatever is ready goes into the next launch. Row operations come first, together with those that depend on them alone:
//! what is connected is a chain that one block runs in order, so a norm, a rotation and the write to a cache cost one launch. Ready products of one
//! kernel share a launch. The hand-over goes as soon as it can, since the ducks wait for it.

use super::abi::{LINEARS, ROWS};
use super::task::{Launch, LinearTask, RowTask, Target, Task};

/// Launches that do what `tasks` do in order.
pub(crate) fn schedule(tasks: &[Task]) -> Vec<Launch> {
    let needs: Vec<Vec<usize>> =
        (0..tasks.len()).map(|j| (0..j).filter(|&i| tasks[j].depends_on(&tasks[i])).collect()).collect();
    let mut done = vec![false; tasks.len()];
    let mut launches = Vec::new();
    while let Some(first) = done.iter().position(|done| !done) {
        let is_ready = |j: usize, done: &[bool]| !done[j] && needs[j].iter().all(|&i| done[i]);
        let ready: Vec<usize> = (first..tasks.len()).filter(|&j| is_ready(j, &done)).collect();
        let taken = next(tasks, &needs, &done, &ready);
        launches.extend(launches_of(tasks, &needs, &taken));
        taken.into_iter().for_each(|j| done[j] = true);
    }
    launches
}

/// Which tasks go next; never none, since the first that is left is ready.
fn next(tasks: &[Task], needs: &[Vec<usize>], done: &[bool], ready: &[usize]) -> Vec<usize> {
    if let Some(&route) = ready.iter().find(|&&j| matches!(tasks[j], Task::Route(_))) {
        return vec![route];
    }
    if ready.iter().any(|&j| matches!(tasks[j], Task::Row(_))) {
        let mut reached = done.to_vec();
        let mut rows = Vec::new();
        for j in 0..tasks.len() {
            if !done[j] && matches!(tasks[j], Task::Row(_)) && needs[j].iter().all(|&i| reached[i]) {
                reached[j] = true;
                rows.push(j);
            }
        }
        return rows;
    }
    let linears = |kind: (bool, bool)| -> Vec<usize> {
        ready.iter().copied().filter(|&j| matches!(&tasks[j], Task::Linear(task) if kind_of(task) == kind)).collect()
    };
    let best = [(true, false), (false, false), (true, true), (false, true)]
        .map(linears)
        .into_iter()
        .max_by_key(Vec::len)
        .filter(|list| !list.is_empty());
    match best {
        Some(mut list) => {
            list.truncate(LINEARS);
            list
        }
        None => vec![ready[0]],
    }
}

/// Which kernel, and whether only wanted lanes.
fn kind_of(task: &LinearTask) -> (bool, bool) {
    (task.fast, task.out == Target::Logits)
}

fn launches_of(tasks: &[Task], needs: &[Vec<usize>], taken: &[usize]) -> Vec<Launch> {
    match &tasks[taken[0]] {
        Task::Row(_) => rows(tasks, needs, taken),
        Task::Linear(_) => {
            let linear = |&j: &usize| match &tasks[j] {
                Task::Linear(task) => task.clone(),
                _ => unreachable!("products are taken together"),
            };
            vec![Launch::Linears(taken.iter().map(linear).collect())]
        }
        Task::Select(task) => vec![Launch::Select(task.clone())],
        Task::Attend(task) => vec![Launch::Attend(task.clone())],
        Task::Route(task) => vec![Launch::Route(task.clone())],
    }
}

/// Connected row operations as chains, packed into launches.
fn rows(tasks: &[Task], needs: &[Vec<usize>], taken: &[usize]) -> Vec<Launch> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for &j in taken {
        let (mut mine, others): (Vec<_>, Vec<_>) =
            chains.into_iter().partition(|chain| chain.iter().any(|i| needs[j].contains(i)));
        let mut chain: Vec<usize> = mine.drain(..).flatten().collect();
        chain.sort_unstable();
        chain.push(j);
        chains = others;
        chains.push(chain);
    }
    chains.sort_unstable_by_key(|chain| chain[0]);
    let row = |&j: &usize| match &tasks[j] {
        Task::Row(row) => row.clone(),
        _ => unreachable!("row operations are taken together"),
    };
    let mut launches: Vec<Vec<Vec<RowTask>>> = Vec::new();
    for chain in &chains {
        // A chain longer than a launch goes on in the next one.
        for piece in chain.chunks(ROWS) {
            let piece: Vec<RowTask> = piece.iter().map(row).collect();
            let room = launches.last().map_or(0, |l| ROWS - l.iter().map(Vec::len).sum::<usize>());
            if chain.len() <= ROWS && piece.len() <= room {
                launches.last_mut().expect("there is room in it").push(piece);
            } else {
                launches.push(vec![piece]);
            }
        }
    }
    launches.into_iter().map(Launch::Rows).collect()
}

#[cfg(test)]
mod tests {
    use model::program::{Buffer, MatrixId, View};

    use super::*;
    use crate::cuda::task::{Cut, WeightKey};

    fn view(buffer: u16, start: usize, width: usize) -> View {
        View { buffer: Buffer(buffer), start, width }
    }

    fn gated(a: View, b: View, out: View) -> Task {
        Task::Row(RowTask::Gated { gate: a, up: b, out })
    }

    fn linear(x: View, out: View) -> Task {
        let weight = WeightKey { matrix: MatrixId(0), cut: Cut::Whole, decoded: false };
        Task::Linear(LinearTask {
            x,
            x_group: 0,
            groups: 1,
            rows: out.width,
            k: x.width,
            weight,
            out: Target::View(out),
            round: false,
            quantise: false,
            fast: true,
        })
    }

    #[test]
    fn what_follows_from_each_other_is_one_chain_and_the_rest_runs_beside_it() {
        let (a, b, c, d) = (view(0, 0, 8), view(1, 0, 8), view(2, 0, 8), view(3, 0, 8));
        let tasks = [gated(a, a, b), gated(b, b, c), gated(a, a, d)];
        let [Launch::Rows(chains)] = &schedule(&tasks)[..] else { panic!("one launch") };
        assert_eq!(chains.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn columns_that_do_not_overlap_do_not_wait_for_each_other() {
        let (x, left, right) = (view(0, 0, 8), view(1, 0, 4), view(1, 4, 4));
        let tasks = [linear(x, left), linear(x, right), gated(left, right, view(2, 0, 4))];
        let launches = schedule(&tasks);
        assert!(matches!(&launches[..], [Launch::Linears(list), Launch::Rows(_)] if list.len() == 2), "{launches:?}");
    }

    #[test]
    fn a_value_is_not_overwritten_while_it_is_still_read() {
        let (a, b, c) = (view(0, 0, 8), view(1, 0, 8), view(2, 0, 8));
        // The second writes what the first reads, so it may not share its launch.
        let launches = schedule(&[linear(a, b), linear(c, a)]);
        assert_eq!(launches.len(), 2);
    }

    #[test]
    fn more_than_a_launch_holds_goes_into_several() {
        let tasks: Vec<Task> = (0..20).map(|i| gated(view(0, 0, 8), view(0, 0, 8), view(i + 1, 0, 8))).collect();
        let counts = |launches: &[Launch]| -> Vec<usize> {
            launches
                .iter()
                .map(|launch| match launch {
                    Launch::Rows(chains) => chains.iter().map(Vec::len).sum(),
                    _ => 0,
                })
                .collect()
        };
        assert_eq!(counts(&schedule(&tasks)), [16, 4]);
        let chain: Vec<Task> = (0..20).map(|i| gated(view(i, 0, 8), view(i, 0, 8), view(i + 1, 0, 8))).collect();
        assert_eq!(counts(&schedule(&chain)), [16, 4]);
    }
}
