//! Who is next: clients take turns, and each client's requests are answered in the order in which they came.
//!
//! So a client with a hundred requests waiting delays another one's single request by one answer, not by a hundred. Pure: no clock, no
//! thread.

use std::collections::VecDeque;

/// Things waiting, by client.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// In the order of their turns; none without something waiting.
    clients: VecDeque<(String, VecDeque<T>)>,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue { clients: VecDeque::new(), len: 0 }
    }
}

impl<T> FairQueue<T> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of a client's wait.
    pub fn waiting(&self, client: &str) -> usize {
        self.clients.iter().find(|(name, _)| name == client).map_or(0, |(_, items)| items.len())
    }

    /// How many clients wait.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Adds one of a client's. A client without any waiting gets the last turn.
    pub fn push(&mut self, client: &str, item: T) {
        self.len += 1;
        match self.clients.iter_mut().find(|(name, _)| name == client) {
            Some((_, items)) => items.push_back(item),
            None => self.clients.push_back((client.to_owned(), VecDeque::from([item]))),
        }
    }

    /// The next one; its client goes to the end of the turns.
    pub fn pop(&mut self) -> Option<T> {
        let (client, mut items) = self.clients.pop_front()?;
        let item = items.pop_front();
        self.len -= usize::from(item.is_some());
        if !items.is_empty() {
            self.clients.push_back((client, items));
        }
        item
    }

    /// Removes what nobody waits for any more, and returns it.
    pub fn remove_if(&mut self, mut gone: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (_, items) in &mut self.clients {
            for _ in 0..items.len() {
                let Some(item) = items.pop_front() else { break };
                if gone(&item) { removed.push(item) } else { items.push_back(item) }
            }
        }
        self.clients.retain(|(_, items)| !items.is_empty());
        self.len -= removed.len();
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn clients_take_turns_and_keep_their_own_order() {
        let mut queue = FairQueue::default();
        for item in [1, 2, 3] {
            queue.push("a", item);
        }
        queue.push("b", 10);
        queue.push("c", 20);
        queue.push("b", 11);
        assert_eq!((queue.len(), queue.clients(), queue.waiting("a"), queue.waiting("d")), (6, 3, 3, 0));
        assert_eq!(drain(&mut queue), [1, 10, 20, 2, 11, 3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_newcomer_waits_for_one_of_a_busy_clients() {
        let mut queue = FairQueue::default();
        (0..100).for_each(|item| queue.push("busy", item));
        assert_eq!(queue.pop(), Some(0));
        queue.push("new", 1000);
        assert_eq!((queue.pop(), queue.pop()), (Some(1), Some(1000)));
    }

    #[test]
    fn what_is_removed_takes_no_turn() {
        let mut queue = FairQueue::default();
        queue.push("a", 1);
        queue.push("b", 2);
        queue.push("b", 3);
        assert_eq!(queue.remove_if(|&item| item != 3), [1, 2]);
        assert_eq!(queue.len(), 1);
        assert_eq!(drain(&mut queue), [3]);
    }
}
