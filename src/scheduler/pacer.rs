//! A bell that rings at an instant, to a few dozen microseconds.
//!
//! The runtime's own timers count in whole milliseconds and round up, which would make half of all tasks a
//! millisecond late. A thread that waits on a condition variable is woken by the kernel's fine timer instead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Rings when it is time. Dropping it ends its thread.
#[derive(Debug)]
pub struct Pacer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    target: Mutex<Target>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Target {
    at: Option<Instant>,
    closed: bool,
}

impl Pacer {
    /// Starts the thread; `ring` is called on it.
    ///
    /// # Errors
    /// When the machine gives no thread.
    pub fn start(ring: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let waits = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("pacer".to_owned())
            .spawn(move || waits.run(&ring))?;
        Ok(Self { shared })
    }

    /// Rings once, after `length`; replaces a ring that is still to come.
    pub fn ring_after(&self, length: Duration) {
        self.shared.target.lock().at = Some(Instant::now() + length);
        self.shared.changed.notify_one();
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.shared.target.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self, ring: &dyn Fn()) {
        let mut target = self.target.lock();
        while !target.closed {
            match target.at {
                None => self.changed.wait(&mut target),
                Some(at) if Instant::now() < at => {
                    self.changed.wait_until(&mut target, at);
                }
                Some(_) => {
                    target.at = None;
                    ring();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_rings_once_per_target_never_early_and_the_latest_target_counts() {
        let (tell, hear) = mpsc::channel();
        let pacer = Pacer::start(move || tell.send(Instant::now()).expect("the test hears"))
            .expect("a thread");
        let asked = Instant::now();
        pacer.ring_after(Duration::from_secs(3600));
        pacer.ring_after(Duration::from_millis(20));
        let rang = hear
            .recv_timeout(Duration::from_secs(10))
            .expect("it rings");
        assert!(rang - asked >= Duration::from_millis(20));
        drop(pacer);
        // Its thread is gone, and with it the sender: nothing was rung a second time.
        assert!(hear.recv_timeout(Duration::from_secs(10)).is_err());
    }
}
