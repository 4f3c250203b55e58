//! A value that tasks can wait on. Like tokio's `watch`, but waiters are woken in the order in
//! which they began to wait.

use parking_lot::Mutex;
use std::pin::pin;
use tokio::sync::Notify;

/// A value, and the tasks that wait for it to change.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Clone> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            changed: Notify::new(),
        }
    }

    pub(crate) fn get(&self) -> T {
        self.value.lock().clone()
    }

    /// Sets the value and returns the previous one.
    pub(crate) fn set(&self, value: T) -> T {
        self.modify(|current| std::mem::replace(current, value))
    }

    /// Changes the value in place.
    pub(crate) fn modify<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.value.lock());
        self.changed.notify_waiters();
        result
    }

    /// Waits until the value satisfies `is_such`, and returns it.
    pub(crate) async fn wait_for(&self, is_such: impl Fn(&T) -> bool) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on, a change wakes this waiter.
            changed.as_mut().enable();
            let value = self.get();
            if is_such(&value) {
                return value;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn those_who_wait_are_woken_in_their_order() {
        let watched = Arc::new(Watched::new(0));
        let woken = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..20)
            .map(|index| {
                let watched = watched.clone();
                let woken = woken.clone();
                tokio::spawn(async move {
                    watched.wait_for(|value| *value > 1).await;
                    woken.lock().push(index);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(
            (
                watched.set(1),
                watched.modify(|value| std::mem::replace(value, 2))
            ),
            (0, 1)
        );
        for task in waiting {
            assert!(task.await.is_ok());
        }
        assert_eq!(*woken.lock(), (0..20).collect::<Vec<_>>());
        assert_eq!(watched.wait_for(|value| *value == 2).await, 2);
    }
}
