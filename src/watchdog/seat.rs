//! Where the present incarnation of a child is found.
//!
//! A start that was given up for dead may come back after its successor has sat down. It must not push the
//! successor off: the newest incarnation keeps the seat.

use parking_lot::RwLock;

use super::child::Generation;

/// A place for what leads to a child: its address, say.
#[derive(Debug)]
pub struct Seat<T> {
    taken: RwLock<(Generation, Option<T>)>,
}

impl<T> Default for Seat<T> {
    fn default() -> Self {
        Self {
            taken: RwLock::new((Generation::default(), None)),
        }
    }
}

impl<T: Clone> Seat<T> {
    /// An incarnation sits down, unless a newer one has before it.
    pub fn take(&self, generation: Generation, who: T) {
        let mut taken = self.taken.write();
        if generation > taken.0 {
            *taken = (generation, Some(who));
        }
    }

    /// Who sits there.
    pub fn who(&self) -> Option<T> {
        self.taken.read().1.clone()
    }

    /// Nobody does, until the next incarnation comes.
    #[cfg(test)]
    pub(crate) fn empty(&self) {
        self.taken.write().1 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_comes_back_from_the_dead_does_not_take_its_successors_seat() {
        let seat = Seat::default();
        seat.take(Generation(2), "successor");
        seat.take(Generation(1), "zombie");
        seat.take(Generation(2), "impostor");
        assert_eq!(seat.who(), Some("successor"));
        seat.take(Generation(3), "heir");
        assert_eq!(seat.who(), Some("heir"));
    }
}
