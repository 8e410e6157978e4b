//! The time that a cache line takes from one core to another.
//!
//! Two processes that exchange packets through memory spend most of their time on it. On a virtual machine it is no constant:
//! the hypervisor moves virtual processors between neighbouring cores and distant ones. So it is measured beside each pair of
//! samples, and is in the result.

use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use net::time;

use crate::machine;

/// Number of times that the line goes forth and back between two readings of the clock.
const ROUND_TRIPS: u32 = 100;
/// Number of readings, the least of which is used: threads that lose their core for a while affect the others.
const READINGS: usize = 10;

/// A number on a cache line of its own, which the two threads increment in turn.
#[repr(align(128))]
struct Ball(AtomicU32);

/// Nanoseconds from one of the two cores to the other; `None` when they are the same.
pub(crate) fn measure([here, there]: [usize; 2]) -> Option<f64> {
    if here == there {
        return None;
    }
    let (ball, end) = (Ball(AtomicU32::new(0)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine::pin(&[there]);
            // Odd numbers are for this thread.
            let mut number = 1_u32;
            while await_number(&ball, number, &end) {
                ball.0.store(number.wrapping_add(1), Release);
                number = number.wrapping_add(2);
            }
        });
        // Not on the calling thread, which may be on either core.
        let forth = scope.spawn(|| {
            machine::pin(&[here]);
            let mut number = 0_u32;
            let mut least = f64::INFINITY;
            for _ in 0..READINGS {
                let start = time::now_std();
                for _ in 0..ROUND_TRIPS {
                    ball.0.store(number.wrapping_add(1), Release);
                    number = number.wrapping_add(2);
                    await_number(&ball, number, &end);
                }
                let each = start.elapsed().as_nanos() as f64 / f64::from(2 * ROUND_TRIPS);
                least = least.min(each);
            }
            end.store(true, Relaxed);
            least
        });
        forth.join().ok()
    })
}

/// Waits for a number; `false` when the end comes before it.
fn await_number(ball: &Ball, number: u32, end: &AtomicBool) -> bool {
    while ball.0.load(Acquire) != number {
        if end.load(Relaxed) {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_time_between_two_cores() {
        assert_eq!(measure([0, 0]), None);
        if let [here, there, ..] = machine::cores()[..] {
            assert!(measure([here, there]).is_some_and(|ns| ns > 1.0 && ns.is_finite()));
        }
    }
}
