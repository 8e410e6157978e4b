//! Collects samples by series and position on the x axis.

use std::collections::BTreeMap;

use crate::result::{Point, Series};
use crate::stats::median;

/// Axes of a series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Axes {
    /// Meaning of x.
    pub(crate) x: &'static str,
    /// Meaning of the samples.
    pub(crate) y: &'static str,
    /// Unit of the samples.
    pub(crate) unit: &'static str,
}

/// Samples of one series.
struct Curve {
    axes: Axes,
    /// By x, in the order taken.
    points: BTreeMap<u64, Vec<f64>>,
}

/// Samples of all series.
#[derive(Default)]
pub(crate) struct Results {
    series: BTreeMap<String, Curve>,
}

impl Results {
    /// Adds a sample.
    pub(crate) fn add(&mut self, name: String, axes: Axes, x: usize, sample: f64) {
        let curve = self.series.entry(name).or_insert_with(|| Curve { axes, points: BTreeMap::new() });
        curve.points.entry(x as u64).or_default().push(sample);
    }

    /// The samples of a series at one x; empty when it was not measured.
    pub(crate) fn samples(&self, name: &str, x: usize) -> &[f64] {
        let point = self.series.get(name).and_then(|curve| curve.points.get(&(x as u64)));
        point.map_or(&[], Vec::as_slice)
    }

    /// The median of these samples, if there are any.
    pub(crate) fn median(&self, name: &str, x: usize) -> Option<f64> {
        let samples = self.samples(name, x);
        (!samples.is_empty()).then(|| median(samples))
    }

    /// The mean of these samples, if there are any.
    pub(crate) fn mean(&self, name: &str, x: usize) -> Option<f64> {
        let samples = self.samples(name, x);
        (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
    }

    /// Where a series has samples, in order.
    pub(crate) fn places(&self, name: &str) -> Vec<usize> {
        let curve = self.series.get(name);
        curve.map(|curve| curve.points.keys().map(|x| *x as usize).collect()).unwrap_or_default()
    }

    /// Samples of two series that were taken in turn.
    pub(crate) fn pairs(&self, of: &str, than: &str, x: usize) -> impl Iterator<Item = (f64, f64)> {
        self.samples(of, x).iter().copied().zip(self.samples(than, x).iter().copied())
    }

    /// The median of `of` divided by `than`, pair by pair.
    pub(crate) fn ratio(&self, of: &str, than: &str, x: usize) -> Option<f64> {
        let ratios: Vec<f64> = self.pairs(of, than, x).map(|(of, than)| of / than).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }

    /// Adds a series whose samples are made of the pairs of two others, at every x; none if there are no pairs.
    pub(crate) fn add_pairs(
        &mut self,
        name: &str,
        axes: Axes,
        (of, than): (&str, &str),
        make: impl Fn(f64, f64) -> f64,
    ) {
        let places: Vec<u64> =
            self.series.get(of).map(|curve| curve.points.keys().copied().collect()).unwrap_or_default();
        for x in places {
            let samples: Vec<f64> =
                self.pairs(of, than, x as usize).map(|(of, than)| make(of, than)).collect();
            for sample in samples {
                self.add(name.to_owned(), axes, x as usize, sample);
            }
        }
    }

    /// The median of a series at one x divided by the same series at another x, round by round.
    pub(crate) fn slowdown(&self, name: &str, at: usize, than: usize) -> Option<f64> {
        let pairs = self.samples(name, at).iter().zip(self.samples(name, than));
        let ratios: Vec<f64> = pairs.map(|(at, than)| at / than).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }

    /// Converts to the form of result files.
    pub(crate) fn into_series(self) -> Vec<Series> {
        let series = |(name, curve): (String, Curve)| {
            let Axes { x, y, unit } = curve.axes;
            let point = |(x, samples): (u64, Vec<f64>)| Point {
                x: x as f64,
                samples: samples.into_iter().map(rounded).collect(),
            };
            Series {
                name,
                x_label: x.to_owned(),
                y_label: y.to_owned(),
                unit: unit.to_owned(),
                points: curve.points.into_iter().map(point).collect(),
            }
        };
        self.series.into_iter().map(series).collect()
    }
}

/// Rounds to a hundredth of a unit or to four digits, which suffices and keeps the files small.
fn rounded(sample: f64) -> f64 {
    let digits = if sample == 0.0 { 2.0 } else { (3.0 - sample.abs().log10().floor()).clamp(2.0, 9.0) };
    let unit = 10_f64.powf(digits);
    (sample * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXES: Axes = Axes { x: "rules", y: "look-up", unit: "ns" };

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let mut results = Results::default();
        for (list, auto) in [(10.0, 1.0), (40.0, 2.0), (90.0, 3.0)] {
            results.add("list".to_owned(), AXES, 4, list);
            results.add("auto".to_owned(), AXES, 4, auto);
        }
        assert_eq!(results.ratio("list", "auto", 4), Some(20.0));
        assert_eq!(results.median("auto", 4), Some(2.0));
        assert_eq!(results.ratio("list", "other", 4), None);
        results.add_pairs("more", AXES, ("list", "auto"), |list, auto| list - auto);
        results.add_pairs("none", AXES, ("list", "other"), |list, auto| list - auto);
        assert_eq!(
            (results.samples("more", 4), results.samples("none", 4)),
            (&[9.0, 38.0, 87.0][..], &[][..])
        );
        assert_eq!(results.into_series().len(), 3);
        assert_eq!([1234.567, 12.3456, 0.076543, 0.0].map(rounded), [1234.57, 12.35, 0.07654, 0.0]);
    }
}
