//! Medians and percentiles of raw samples.

/// The value below which the fraction `q` (0..=1) of the samples lies, interpolated; NaN without samples.
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| !sample.is_nan()).collect();
    if sorted.is_empty() {
        return f64::NAN;
    }
    sorted.sort_by(f64::total_cmp);
    let at = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// The median of the samples.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// A straight line through points, by least squares.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// Its value at 0.
    pub offset: f64,
    /// What a unit of x adds.
    pub slope: f64,
    /// How well it fits: Pearson's coefficient of correlation.
    pub r: f64,
}

/// The line through these points; `None` for less than two, and where all have the same x or y.
pub fn line(points: &[(f64, f64)]) -> Option<Line> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|(x, _)| *x), mean(|(_, y)| *y));
    let sum =
        |of: fn(f64, f64) -> f64| -> f64 { points.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum() };
    let (xx, yy, xy) = (sum(|x, _| x * x), sum(|_, y| y * y), sum(|x, y| x * y));
    let slope = xy / xx;
    (points.len() > 1 && xx > 0.0 && yy > 0.0).then(|| Line {
        offset: mean_y - slope * mean_x,
        slope,
        r: xy / (xx * yy).sqrt(),
    })
}

/// A number with as many digits as are useful to a reader.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v.is_nan() => "-".to_owned(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_and_lines_fit() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&samples), 2.5);
        assert_eq!(quantile(&samples, 0.0), 1.0);
        assert_eq!(quantile(&samples, 1.0), 4.0);
        assert!(median(&[]).is_nan());
        assert_eq!(line(&[(1.0, 5.0)]), None);
        assert_eq!(line(&[(1.0, 5.0), (2.0, 5.0)]), None);
        assert_eq!(
            line(&[(1.0, 5.0), (3.0, 9.0), (2.0, 7.0)]),
            Some(Line { offset: 3.0, slope: 2.0, r: 1.0 })
        );
        let through = line(&[(0.0, 1.0), (1.0, 0.0), (2.0, 1.0), (3.0, 0.0)]).unwrap();
        assert!(
            (through.r + 1.0 / 5.0_f64.sqrt()).abs() < 1e-12 && (through.slope + 0.2).abs() < 1e-12,
            "{through:?}"
        );
        assert_eq!(short(1234.5), "1234");
        assert_eq!(short(0.12345), "0.123");
    }
}
