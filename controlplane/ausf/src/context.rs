//! Authentications that wait for the UE's RES*.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use net::time::{self, Instant};
use types::{Key, Supi};

/// How long a UE may take to answer: T3560 is 6 s and runs five times (TS 24.501 table 10.2.2).
const LIFETIME: Duration = Duration::from_secs(40);
/// Most authentications under way at once (about 250 octets each). A new one replaces the oldest, so a
/// flood can neither lock others out for long nor use up memory.
const MAX_CONTEXTS: usize = 100_000;

/// One authentication under way. The AUSF keeps it from the challenge to the confirmation.
#[derive(Debug, Clone)]
pub(crate) struct Authentication {
    /// The claimed identity.
    pub(crate) supi: Supi,
    /// The expected response of the UE.
    pub(crate) xres_star: Key<16>,
    /// The key from which all others are derived.
    pub(crate) kausf: Key<32>,
    /// Name of the serving network that asked. Keys are derived from it, too.
    pub(crate) serving_network_name: String,
}

/// All authentications under way, by the identifier in their URIs. One table per AUSF.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u128, Authentication>,
    /// Identifiers in the order in which they expire, which is the order of their creation.
    ends: VecDeque<(Instant, u128)>,
}

impl Contexts {
    /// Keeps an authentication under `id`, a random number.
    pub(crate) fn insert(&self, id: u128, authentication: Authentication) {
        let now = time::now();
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while table.ends.len() >= MAX_CONTEXTS || table.ends.front().is_some_and(|(end, _)| *end <= now) {
            let Some((_, old)) = table.ends.pop_front() else { break };
            table.by_id.remove(&old);
        }
        table.ends.push_back((now + LIFETIME, id));
        table.by_id.insert(id, authentication);
    }

    /// Removes an authentication and returns it: each may be confirmed once.
    pub(crate) fn take(&self, id: u128) -> Option<Authentication> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.by_id.remove(&id)
    }

    /// Number of authentications under way.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authentication(n: u64) -> Authentication {
        Authentication {
            supi: format!("{n:015}").parse().unwrap(),
            xres_star: Key::new([0; 16]),
            kausf: Key::new([0; 32]),
            serving_network_name: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn contexts_end_after_their_time_or_when_there_are_too_many() {
        let contexts = Contexts::default();
        contexts.insert(1, authentication(1));
        assert!(contexts.take(1).is_some());
        assert!(contexts.take(1).is_none(), "each is confirmed once");
        contexts.insert(2, authentication(2));
        time::sleep(LIFETIME).await;
        contexts.insert(3, authentication(3));
        assert!(contexts.take(2).is_none());
        for id in 4..4 + MAX_CONTEXTS as u128 {
            contexts.insert(id, authentication(4));
        }
        assert_eq!(contexts.len(), MAX_CONTEXTS);
        assert!(contexts.take(3).is_none(), "the oldest made room");
        assert!(contexts.take(4).is_some());
    }
}
