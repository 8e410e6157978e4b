//! Requests for authentication vectors, collected by subscriber.
//!
//! Every vector needs a sequence number of its own, and the UDR advances a subscriber's number by one request at a
//! time. Requests for the same subscriber that come together therefore share one advance: whoever asks for a
//! subscriber's vectors again and again under a false identity makes neither conflicts nor a queue for the
//! subscriber, and other subscribers are not concerned at all.
//!
//! One [`Requests`] per UDM. The first request of a subscriber starts a task ([`crate::Udm::serve_vectors`]) that
//! takes batches until none is left.

use std::collections::{HashMap, VecDeque, hash_map};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nas::aka;
use sbi::ProblemDetails;
use sbi::model::common::ResynchronizationInfo;
use tokio::sync::oneshot;
use types::Supi;

/// Vectors made with one advance of the number in the UDR. Some microseconds of arithmetic each, so that other
/// requests are not held up.
const MAX_BATCH: usize = 64;

/// One request for a vector.
#[derive(Debug)]
pub(crate) struct VectorRequest {
    pub(crate) serving_network_name: String,
    pub(crate) resynchronization: Option<ResynchronizationInfo>,
    pub(crate) reply: oneshot::Sender<Result<aka::Vector, ProblemDetails>>,
}

/// Requests that wait, by subscriber. A subscriber has an entry as long as a task serves it.
#[derive(Debug, Default)]
pub(crate) struct Requests(Mutex<HashMap<Supi, VecDeque<VectorRequest>>>);

impl Requests {
    fn table(&self) -> MutexGuard<'_, HashMap<Supi, VecDeque<VectorRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request. `true` when nobody serves the subscriber yet: the caller has to see to it.
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

    /// The next batch, oldest first, without requests whose sender has given up. `None` ends the service of the
    /// subscriber.
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
