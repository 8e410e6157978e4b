//! Requests that differ from one another, and the answers that belong to them.
//!
//! An answer repeats its request up to the required size, so that a client can tell from every octet whether
//! the answer is its own. Bodies are made before the measurement begins.

use bytes::{Bytes, BytesMut};

/// A request above this size is its own answer.
pub const LARGE: usize = 32 << 10;
/// Different requests of a worker, which it sends in turn.
const TURNS: usize = 16;

/// The requests of one worker.
#[derive(Clone, Debug)]
pub struct Requests {
    bodies: Vec<Bytes>,
    turn: usize,
}

impl Requests {
    /// Requests of `size` octets for worker `worker`.
    pub fn new(worker: u32, size: usize) -> Requests {
        // Large requests differ enough with two; more would fill the caches.
        let turns = if size > 1024 { 2 } else { TURNS };
        let body = |turn: usize| {
            let seed = worker.wrapping_mul(TURNS as u32).wrapping_add(turn as u32);
            let word = seed.wrapping_mul(0x9e37_79b1).to_be_bytes();
            Bytes::from(word.iter().copied().cycle().take(size).collect::<Vec<u8>>())
        };
        // The first clone of fresh `Bytes` allocates a reference count; later clones only increment it.
        let bodies = (0..turns).map(body).inspect(|body| drop(body.clone())).collect();
        Requests { bodies, turn: 0 }
    }

    /// The next request.
    pub fn turn(&mut self) -> &Bytes {
        self.turn = (self.turn + 1) % self.bodies.len();
        self.current()
    }

    /// The request that was taken last.
    pub fn current(&self) -> &Bytes {
        &self.bodies[self.turn]
    }
}

/// The answer to a request; the request itself when the sizes agree.
pub fn answer(request: Bytes, size: usize) -> Bytes {
    if request.len() == size || request.len() > LARGE {
        return request;
    }
    if request.len() > size {
        return request.slice(..size);
    }
    let mut answer = BytesMut::with_capacity(size);
    fill(&request, size, &mut answer);
    answer.freeze()
}

/// Appends the answer of `size` octets to a small request.
pub fn fill(request: &[u8], size: usize, answer: &mut BytesMut) {
    if request.is_empty() {
        answer.resize(answer.len() + size, 0);
        return;
    }
    let mut left = size;
    while left > 0 {
        let part = request.len().min(left);
        answer.extend_from_slice(&request[..part]);
        left -= part;
    }
}

/// Whether this is the answer of `size` octets to the request.
pub fn is_answer(request: &[u8], answer: &[u8], size: usize) -> bool {
    let size = if request.len() > LARGE { request.len() } else { size };
    answer.len() == size
        && !request.is_empty()
        && answer.chunks(request.len()).all(|part| *part == request[..part.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_known_from_every_other() {
        let mut all: Vec<Bytes> = Vec::new();
        for worker in 0..500 {
            let mut requests = Requests::new(worker, 10);
            all.extend((0..TURNS).map(|_| requests.turn().clone()));
        }
        let distinct: std::collections::BTreeSet<&Bytes> = all.iter().collect();
        assert_eq!(distinct.len(), 500 * TURNS);
        for size in [0, 4, 10, 25] {
            let given = answer(all[7].clone(), size);
            assert!(is_answer(&all[7], &given, size));
            assert!(!is_answer(&all[7], &given, size + 1));
            assert_eq!(is_answer(&all[8], &given, size), size == 0);
        }
        let large = Requests::new(3, 1 << 20).turn().clone();
        assert!(is_answer(&large, &answer(large.clone(), 10), 10));
    }
}
