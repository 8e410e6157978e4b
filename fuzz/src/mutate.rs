//! A small deterministic mutator: the same seed gives the same inputs on every machine.

/// xorshift64*: small, fast, good enough to pick positions and bytes.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed; 0 is replaced, since xorshift would stay there.
    pub fn new(seed: u64) -> Self {
        Random(if seed == 0 { 0x9e37_79b9_7f4a_7c15 } else { seed })
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform enough in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.draw() % bound as u64) as usize }
    }
}

/// Values at which lengths, counters and flags often go wrong.
const INTERESTING: &[u8] =
    &[0, 1, 2, 3, 4, 7, 8, 0x0f, 0x10, 0x1f, 0x20, 0x3f, 0x40, 0x7e, 0x7f, 0x80, 0x81, 0xfe, 0xff];
/// Inputs do not grow beyond this; larger than any datagram we accept.
const LENGTH_MAX: usize = 70_000;

/// Changes `data` in one to eight places; `other` is a second input to splice with.
pub fn mutate(random: &mut Random, data: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(8) {
        step(random, data, other);
        data.truncate(LENGTH_MAX);
    }
}

fn step(random: &mut Random, data: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(data.len());
    match random.below(10) {
        _ if data.is_empty() => data.push(random.draw() as u8),
        0 => data[at] ^= 1 << random.below(8),
        1 => data[at] = random.draw() as u8,
        2 => data[at] = INTERESTING[random.below(INTERESTING.len())],
        3 => data.truncate(at),
        4 => data.insert(at, random.draw() as u8),
        5 => {
            data.remove(at);
        }
        6 => {
            // A length field of two bytes.
            let value = if random.below(2) == 0 { random.draw() as u16 } else { data.len() as u16 };
            data[at] = (value >> 8) as u8;
            if let Some(next) = data.get_mut(at + 1) {
                *next = value as u8;
            }
        }
        7 => {
            // Repeats a piece of the input, as messages repeat elements.
            let end = at + random.below(data.len() - at + 1).min(64);
            let piece = data[at..end].to_vec();
            let to = random.below(data.len() + 1);
            data.splice(to..to, piece);
        }
        8 => {
            // Joins the head of this input with the tail of the other.
            let from = random.below(other.len() + 1);
            data.truncate(at);
            data.extend_from_slice(&other[from..]);
        }
        _ => {
            let end = at + random.below(data.len() - at + 1).min(32);
            data.drain(at..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let inputs = |seed| {
            let mut random = Random::new(seed);
            (0..100)
                .map(|_| {
                    let mut data = b"some input".to_vec();
                    mutate(&mut random, &mut data, b"another");
                    data
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
    }
}
