//! Fitting a non-decreasing function of few straight pieces to points: the training of one submodel.

/// A value at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub x: u64,
    pub y: u32,
}

/// A straight piece from `x` on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Piece {
    pub x: u64,
    /// Value at `x`.
    pub y: f64,
    /// Never negative.
    pub slope: f64,
}

/// At most `limit` pieces that stay as close to the points as pieces that start at a point can.
///
/// The points rise in `x` and do not fall in `y`. The greatest deviation allowed is doubled until the pieces
/// suffice, then halved in.
pub(super) fn fit(points: &[Point], limit: usize) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(limit);
    let mut refused = 0;
    let mut allowed = 1;
    while !cover(points, limit, f64::from(allowed), &mut pieces) {
        refused = allowed;
        allowed *= 2;
    }
    while allowed - refused > 1 {
        let middle = refused + (allowed - refused) / 2;
        if cover(points, limit, f64::from(middle), &mut pieces) {
            allowed = middle;
        } else {
            refused = middle;
        }
    }
    cover(points, limit, f64::from(allowed), &mut pieces);
    pieces
}

/// Covers the points with pieces that miss none by more than `allowed`; `false` when it takes more than `limit`.
///
/// Each piece starts at a point and narrows the cone of slopes that still reach the following points; where the cone
/// closes, the next piece starts. One pass, no point looked at twice.
fn cover(points: &[Point], limit: usize, allowed: f64, pieces: &mut Vec<Piece>) -> bool {
    pieces.clear();
    let mut rest = points;
    while let Some((first, others)) = rest.split_first() {
        if pieces.len() == limit {
            return false;
        }
        let (x, y) = (first.x, f64::from(first.y));
        let (mut least, mut most) = (0.0_f64, f64::INFINITY);
        let mut covered = 0;
        for point in others {
            let (right, up) = ((point.x - x) as f64, f64::from(point.y) - y);
            let (below, above) = ((up - allowed) / right, (up + allowed) / right);
            if below > most || above < least {
                break;
            }
            (least, most) = (least.max(below), most.min(above));
            covered += 1;
        }
        let slope = if most.is_finite() { (least + most) / 2.0 } else { 0.0 };
        pieces.push(Piece { x, y, slope });
        rest = &others[covered..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(points: &[Point], pieces: &[Piece]) -> f64 {
        let miss = |point: &Point| {
            let piece = pieces[pieces.partition_point(|piece| piece.x <= point.x) - 1];
            (piece.y + (point.x - piece.x) as f64 * piece.slope - f64::from(point.y)).abs()
        };
        points.iter().map(miss).fold(0.0, f64::max)
    }

    #[test]
    fn straight_points_take_one_piece() {
        let points: Vec<_> = (0..1000).map(|at| Point { x: u64::from(at) * 7, y: at }).collect();
        let pieces = fit(&points, 8);
        assert_eq!(pieces.len(), 1);
        assert!(worst(&points, &pieces) <= 1.0);
    }

    #[test]
    fn bent_points_stay_near() {
        let points: Vec<_> = (1..1000_u32).map(|at| Point { x: u64::from(at).pow(3), y: at }).collect();
        let (few, many) = (fit(&points, 2), fit(&points, 8));
        assert!(few.len() <= 2 && many.len() <= 8);
        assert!(worst(&points, &many) < worst(&points, &few));
        assert!(worst(&points, &many) < 40.0, "{}", worst(&points, &many));
    }

    #[test]
    fn nothing_is_covered_by_nothing() {
        assert!(fit(&[], 8).is_empty());
        assert_eq!(fit(&[Point { x: 9, y: 4 }], 1), [Piece { x: 9, y: 4.0, slope: 0.0 }]);
    }
}
