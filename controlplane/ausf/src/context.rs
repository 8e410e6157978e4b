//! Authentications that wait for their RES*.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use net::time::{self, Instant};
use types::{Key, Supi};

/// How long a UE may take to answer: T3560 is 6 s and runs five times (TS 24.501 table 10.2.2).
const LIFETIME: Duration = Duration::from_secs(40);
/// Authentications under way at once; the oldest makes room for the newest, so that a flood cannot lock others out
/// for long nor take memory without bound (about 250 octets each).
const MAX_CONTEXTS: usize = 100_000;

/// One authentication under way. The AUSF owns it from the challenge to the confirmation.
#[derive(Debug, Clone)]
pub(crate) struct Authentication {
    /// Who claims to be there.
    pub(crate) supi: Supi,
    /// The answer that proves it.
    pub(crate) xres_star: Key<16>,
    /// Root of the keys.
    pub(crate) kausf: Key<32>,
    /// Network that asked; part of every key.
    pub(crate) serving_network_name: String,
}

/// All authentications under way, by the identifier in their URI. One per AUSF.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u128, Authentication>,
    /// Identifiers in the order of their end, which is the order of their begin.
    ends: VecDeque<(Instant, u128)>,
}

impl Contexts {
    /// Keeps an authentication under `id`, a random number nobody can guess.
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

    /// Takes an authentication out: each may be confirmed once.
    pub(crate) fn take(&self, id: u128) -> Option<Authentication> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.by_id.remove(&id)
    }

    /// How many wait.
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
