//! Plots of a result, as SVG.
//!
//! [`draw()`] plots cumulative distributions, one curve per point of each series. They show median, spread and
//! tail of any experiment, and hide nothing. [`draw_panels`] plots medians over x with the middle half of the
//! samples, for experiments with many quantities at many sizes.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use crate::result::{Experiment, Series};
use crate::stats::{quantile, short};

const SIZE: (u32, u32) = (900, 540);
/// Colours that colour-blind readers can tell apart.
const COLOURS: &[RGBColor] = &[
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];
/// More colours, for panels with more lines.
const MORE_COLOURS: &[RGBColor] = &[
    RGBColor(0x7f, 0x3c, 0x8d),
    RGBColor(0x80, 0x80, 0x80),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x17, 0x60, 0x20),
    RGBColor(0xb0, 0xb0, 0x00),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0xff, 0x60, 0x90),
    RGBColor(0x30, 0x30, 0xa0),
    RGBColor(0x60, 0xc0, 0x90),
    RGBColor(0xa0, 0x40, 0x00),
    RGBColor(0x40, 0x70, 0x80),
    RGBColor(0xa0, 0xa0, 0xff),
];
/// Width and height of one panel.
const PANEL: (u32, u32) = (760, 460);
/// Width of a panel's legend, beside the lines.
const LEGEND: u32 = 150;

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
    // The slowest percent is cut off, as it would squeeze the rest into a corner; the legend gives its value.
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

/// Lines over a common x, both axes logarithmic.
pub struct Panel {
    title: String,
    x_label: String,
    y_label: String,
    lines: Vec<Line>,
}

/// x, with lower quartile, median and upper quartile.
type Place = (f64, [f64; 3]);

/// One line of a panel.
struct Line {
    name: String,
    points: Vec<Place>,
}

impl Panel {
    /// A panel with a line for each series for which `label` returns a name.
    pub fn of(experiment: &Experiment, title: &str, label: impl Fn(&str) -> Option<String>) -> Panel {
        let mut panel = Panel::new(title);
        for series in &experiment.series {
            let Some(name) = label(&series.name) else { continue };
            panel.x_label.clone_from(&series.x_label);
            panel.y_label = with_unit(series);
            let points = series.points.iter().filter(|point| !point.samples.is_empty());
            panel.lines.push(Line {
                name,
                points: points.map(|point| (point.x, quartiles(&point.samples))).collect(),
            });
        }
        panel
    }

    /// A panel whose lines go through several series: `label` returns a series' line and its position on the
    /// axis `x_label`, taken from the name of the series. Of each series, the point at `at` is used.
    pub fn across(
        experiment: &Experiment,
        title: &str,
        x_label: &str,
        at: f64,
        label: impl Fn(&str) -> Option<(String, f64)>,
    ) -> Panel {
        let mut panel = Panel::new(title);
        x_label.clone_into(&mut panel.x_label);
        for series in &experiment.series {
            let point = series.points.iter().find(|point| point.x == at && !point.samples.is_empty());
            let (Some((name, x)), Some(point)) = (label(&series.name), point) else { continue };
            panel.y_label = with_unit(series);
            let place = (x, quartiles(&point.samples));
            match panel.lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(place),
                None => panel.lines.push(Line { name, points: vec![place] }),
            }
        }
        for line in &mut panel.lines {
            line.points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        }
        panel
    }

    fn new(title: &str) -> Panel {
        let title = title.to_owned();
        Panel { title, x_label: String::new(), y_label: String::new(), lines: Vec::new() }
    }

    /// Moves zeros, which a logarithmic axis cannot show, to a third of the least positive value.
    fn lift_zeroes(&self) -> Vec<(&str, Vec<Place>)> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let least = |values: &mut dyn Iterator<Item = f64>| {
            values.filter(|value| *value > 0.0).min_by(f64::total_cmp).unwrap_or(3.0) / 3.0
        };
        let x = least(&mut points().map(|(x, _)| *x));
        let y = least(&mut points().flat_map(|(_, values)| *values));
        let lift = |value: f64, least: f64| if value > 0.0 { value } else { least };
        let lifted = |(at, values): &Place| (lift(*at, x), values.map(|value| lift(value, y)));
        self.lines.iter().map(|line| (line.name.as_str(), line.points.iter().map(lifted).collect())).collect()
    }

    /// Whether [`Panel::lift_zeroes`] has moved any median.
    fn has_zeroes(&self) -> bool {
        self.lines.iter().flat_map(|line| &line.points).any(|(_, values)| values.contains(&0.0))
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }
}

/// The label of a series' samples, with their unit if they have one.
fn with_unit(series: &Series) -> String {
    match series.unit.as_str() {
        "1" => series.y_label.clone(),
        unit => format!("{}, {unit}", series.y_label),
    }
}

fn quartiles(samples: &[f64]) -> [f64; 3] {
    [0.25, 0.5, 0.75].map(|q| quantile(samples, q))
}

/// Draws panels side by side, two in a row. Lines with the same name have the same colour in all panels.
///
/// # Errors
/// When the file cannot be written.
pub fn draw_panels(experiment: &Experiment, panels: &[Panel], file: &Path) -> anyhow::Result<()> {
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        let rows = panels.len().div_ceil(2).max(1);
        let size = (2 * PANEL.0, rows as u32 * PANEL.1 + 40);
        let area = SVGBackend::new(file, size).into_drawing_area();
        area.fill(&WHITE)?;
        let title = format!("{} ({}): medians and middle halves", experiment.experiment, experiment.commit);
        let area = area.titled(&title, ("sans-serif", 22))?;
        let mut names: Vec<&String> =
            panels.iter().flat_map(|panel| panel.lines.iter().map(|line| &line.name)).collect();
        names.sort();
        names.dedup();
        for (panel, area) in panels.iter().zip(area.split_evenly((rows, 2))) {
            draw_panel(panel, &names, &area)?;
        }
        area.present()?;
        Ok(())
    };
    draw().map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))
}

fn draw_panel(
    panel: &Panel,
    names: &[&String],
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let lines = panel.lift_zeroes();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        low / 1.3..high * 1.3
    };
    let x = bounds(&mut points().map(|(x, _)| *x));
    let y = bounds(&mut points().flat_map(|(_, values)| *values));
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 17))
        .margin(10)
        .margin_right(LEGEND)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    let lowest = if panel.has_zeroes() { "; zero at the bottom" } else { "" };
    chart
        .configure_mesh()
        .x_desc(&panel.x_label)
        .y_desc(format!("{}{lowest}", panel.y_label))
        .x_label_formatter(&tick)
        .y_label_formatter(&tick)
        .light_line_style(WHITE)
        .draw()?;
    for (row, (name, points)) in lines.iter().enumerate() {
        let index = names.iter().position(|of| of == name).unwrap_or(0);
        let colour = *COLOURS.iter().chain(MORE_COLOURS).cycle().nth(index).unwrap_or(&BLACK);
        let middle = points.iter().map(|(x, [_, median, _])| (*x, *median));
        chart.draw_series(LineSeries::new(middle, colour.stroke_width(2)).point_size(3))?;
        let bars = points.iter().map(|(x, [low, _, high])| {
            PathElement::new([(*x, *low), (*x, *high)], colour.mix(0.5).stroke_width(3))
        });
        chart.draw_series(bars)?;
        // An own legend, as plotters' cannot be placed beside the lines.
        let (left, top) = (PANEL.0 as i32 - LEGEND as i32 + 8, 40 + 16 * row as i32);
        area.draw(&PathElement::new([(left, top), (left + 16, top)], colour.stroke_width(3)))?;
        area.draw(&Text::new((*name).to_owned(), (left + 22, top - 5), ("sans-serif", 12)))?;
    }
    Ok(())
}

/// Text of a number at an axis.
fn tick(value: &f64) -> String {
    match *value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value if value >= 1.0 && value.fract() == 0.0 => format!("{value}"),
        value => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Point;

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

    #[test]
    fn panels_show_medians_by_size() {
        let mut experiment = Experiment::new("example", true);
        let points = [(0.0, vec![3.0, 4.0]), (4.0, vec![5.0]), (1000.0, vec![])];
        experiment.series.push(Series {
            name: "auto.acl.lookup".into(),
            x_label: "rules".into(),
            y_label: "look-up".into(),
            unit: "ns".into(),
            points: points.map(|(x, samples)| Point { x, samples }).to_vec(),
        });
        let panel =
            Panel::of(&experiment, "look-up", |name| Some(name.strip_suffix(".acl.lookup")?.to_owned()));
        let by_kind = |name: &str| {
            let (line, _) = name.split_once('.')?;
            Some((line.to_owned(), 7.0))
        };
        let across = Panel::across(&experiment, "by kind", "kind", 4.0, by_kind);
        assert_eq!((across.lines[0].name.as_str(), across.lines[0].points[0].1[1]), ("auto", 5.0));
        assert!(Panel::across(&experiment, "by kind", "kind", 5.0, by_kind).is_empty());
        assert!(!panel.is_empty());
        assert!(Panel::of(&experiment, "nothing", |_| None).is_empty());
        let file = std::env::temp_dir().join(format!("godwit-panels-{}.svg", std::process::id()));
        draw_panels(&experiment, &[panel], &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        assert!(svg.contains("auto") && svg.contains("look-up, ns"), "{svg}");
        let lines = svg.lines().filter(|line| line.contains("polyline") && line.contains("#0072B2"));
        assert!(lines.count() >= 2, "a line, and its colour in the legend");
        assert_eq!([0.5, 4.0, 20_000.0, 1e6].map(|value| tick(&value)), ["0.500", "4", "20k", "1M"]);
        std::fs::remove_file(file).unwrap();
    }
}
