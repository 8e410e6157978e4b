//! A plot of a result: the distribution of each series' samples, as SVG.
//!
//! Cumulative distributions show median, spread and tail at once and hide nothing, whatever the experiment
//! measured; one curve per point of each series.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use crate::result::Experiment;
use crate::stats::{quantile, short};

const SIZE: (u32, u32) = (900, 540);
/// Colours that stay apart for readers who see few of them.
const COLOURS: &[RGBColor] = &[
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];

/// Draws every point of every series as a cumulative distribution.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(experiment: &Experiment, file: &Path) -> anyhow::Result<()> {
    render(experiment, file).map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))
}

fn render(experiment: &Experiment, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let curves: Vec<(String, Vec<f64>)> = experiment
        .series
        .iter()
        .flat_map(|series| {
            series.points.iter().map(move |point| {
                let name = format!("{}, {} = {}", series.name, series.x_label, short(point.x));
                (name, point.samples.clone())
            })
        })
        .filter(|(_, samples)| !samples.is_empty())
        .collect();
    // The last percent would squeeze everything else into a corner; the legend names it.
    let right = curves.iter().map(|(_, samples)| quantile(samples, 0.99)).fold(0.0, f64::max);
    let right = if right > 0.0 { right * 1.1 } else { 1.0 };
    let title = format!("{} ({})", experiment.experiment, experiment.commit);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..right, 0.0..1.0)?;
    let first = experiment.series.first();
    let label = first.map(|series| format!("{}, {}", series.y_label, series.unit)).unwrap_or_default();
    chart.configure_mesh().x_desc(label).y_desc("share of samples").light_line_style(WHITE).draw()?;
    for (index, (name, mut samples)) in curves.into_iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let legend = format!(
            "{name}: p50 {}, p99 {}",
            short(quantile(&samples, 0.5)),
            short(quantile(&samples, 0.99))
        );
        samples.sort_by(f64::total_cmp);
        let total = samples.len() as f64;
        let steps = samples.iter().enumerate().flat_map(|(rank, value)| {
            let below = rank as f64 / total;
            [(*value, below), (*value, below + 1.0 / total)]
        });
        let steps: Vec<(f64, f64)> = steps.filter(|(value, _)| *value <= right).collect();
        chart
            .draw_series(LineSeries::new(steps, colour.stroke_width(2)))?
            .label(legend)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Point, Series};

    #[test]
    fn a_result_becomes_json_and_a_plot_with_its_legend() {
        let mut experiment = Experiment::new("example", true);
        experiment.series.push(Series {
            name: "registration".into(),
            x_label: "UEs at once".into(),
            y_label: "core time".into(),
            unit: "ms".into(),
            points: vec![Point { x: 1.0, samples: vec![1.0, 2.0, 3.0] }, Point { x: 100.0, samples: vec![] }],
        });
        experiment.check("samples", true, "3");
        let folder = std::env::temp_dir().join(format!("godwit-bench-{}", std::process::id()));
        let (json, svg) = crate::write(&experiment, &folder).unwrap();
        let read: Experiment = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(read, experiment);
        let svg = std::fs::read_to_string(svg).unwrap();
        assert!(svg.contains("registration, UEs at once = 1.00: p50 2.00"), "{svg}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
