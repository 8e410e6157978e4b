//! Requests for authentication vectors, queued by subscriber.
//!
//! Every vector needs its own sequence number, and the UDR changes a subscriber's number once per
//! request. So requests for the same subscriber that wait at the same time share one change. Somebody
//! who asks for a subscriber's vectors again and again under a false identity therefore causes neither
//! conflicts nor a long queue for that subscriber, and does not affect other subscribers at all.
//!
//! One [`Requests`] per UDM. The first request for a subscriber starts a task
//! ([`crate::Udm::serve_vectors`]) that takes batches until none is left.

use std::collections::{HashMap, VecDeque, hash_map};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nas::aka;
use sbi::ProblemDetails;
use sbi::model::common::ResynchronizationInfo;
use tokio::sync::oneshot;
use types::Supi;

/// Most vectors that share one change of the number in the UDR. Each takes some microseconds of
/// arithmetic, so a batch does not delay other requests.
const MAX_BATCH: usize = 64;

/// One request for a vector.
#[derive(Debug)]
pub(crate) struct VectorRequest {
    pub(crate) serving_network_name: String,
    pub(crate) resynchronization: Option<ResynchronizationInfo>,
    pub(crate) reply: oneshot::Sender<Result<aka::Vector, ProblemDetails>>,
}

/// Waiting requests by subscriber. A subscriber has an entry as long as a task serves its requests.
#[derive(Debug, Default)]
pub(crate) struct Requests(Mutex<HashMap<Supi, VecDeque<VectorRequest>>>);

impl Requests {
    fn table(&self) -> MutexGuard<'_, HashMap<Supi, VecDeque<VectorRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request. Returns `true` if no task serves the subscriber yet; the caller then has to
    /// start one.
    #[must_use]
    pub(crate) fn push(&self, supi: Supi, request: VectorRequest) -> bool {
        match self.table().entry(supi) {
            hash_map::Entry::Occupied(mut entry) => {
                entry.get_mut().push_back(request);
                false
            }
            hash_map::Entry::Vacant(entry) => {
                entry.insert(VecDeque::from([request]));
                true
            }
        }
    }

    /// The next batch, oldest first, without requests whose sender has stopped waiting. After `None`
    /// the subscriber's task ends.
    pub(crate) fn take(&self, supi: Supi) -> Option<Vec<VectorRequest>> {
        let mut table = self.table();
        let waiting = table.get_mut(&supi)?;
        waiting.retain(|request| !request.reply.is_closed());
        if waiting.is_empty() {
            table.remove(&supi);
            return None;
        }
        let count = waiting.len().min(MAX_BATCH);
        Some(waiting.drain(..count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> (VectorRequest, oneshot::Receiver<Result<aka::Vector, ProblemDetails>>) {
        let (reply, answer) = oneshot::channel();
        (VectorRequest { serving_network_name: String::new(), resynchronization: None, reply }, answer)
    }

    #[test]
    fn batches_are_bounded_and_leave_out_who_has_given_up() {
        let requests = Requests::default();
        let supi: Supi = "imsi-999700000000001".parse().unwrap();
        let mut answers = Vec::new();
        for n in 0..2 * MAX_BATCH {
            let (request, answer) = request();
            assert_eq!(requests.push(supi, request), n == 0);
            answers.push(answer);
        }
        let other: Supi = "imsi-999700000000002".parse().unwrap();
        let (one, _answer) = request();
        assert!(requests.push(other, one), "another subscriber is served by itself");
        assert_eq!(requests.take(supi).unwrap().len(), MAX_BATCH);
        answers.truncate(MAX_BATCH + 1);
        assert_eq!(requests.take(supi).unwrap().len(), 1);
        let (again, _answer) = request();
        assert!(!requests.push(supi, again), "it is still being served");
        assert_eq!(requests.take(supi).unwrap().len(), 1);
        assert!(requests.take(supi).is_none());
        assert!(requests.0.lock().unwrap().contains_key(&other));
        assert!(!requests.0.lock().unwrap().contains_key(&supi));
    }
}
