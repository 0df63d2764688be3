//! Where the present incarnation of a child is found.
//!
//! A start that was given up for dead may come back after its successor has taken over. It must not push the
//! successor off: the newest incarnation keeps the office.

use parking_lot::RwLock;

use super::child::Generation;

/// A place for what leads to a child: its address, say.
#[derive(Debug)]
pub struct Office<T> {
    taken: RwLock<(Generation, Option<T>)>,
}

impl<T> Default for Office<T> {
    fn default() -> Self {
        Self {
            taken: RwLock::new((Generation::default(), None)),
        }
    }
}

impl<T: Clone> Office<T> {
    /// An incarnation takes over, unless a newer one has before it.
    pub fn take(&self, generation: Generation, who: T) {
        let mut taken = self.taken.write();
        if generation > taken.0 {
            *taken = (generation, Some(who));
        }
    }

    /// Who holds it.
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
    fn a_start_that_comes_back_from_the_dead_does_not_take_its_successors_office() {
        let office = Office::default();
        office.take(Generation(2), "successor");
        office.take(Generation(1), "zombie");
        office.take(Generation(2), "impostor");
        assert_eq!(office.who(), Some("successor"));
        office.take(Generation(3), "heir");
        assert_eq!(office.who(), Some("heir"));
    }
}
