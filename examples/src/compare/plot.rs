//! Loss curves as SVG: one panel for even shards, one for skewed shards, and the legend below both.

use super::{BOTH_SHARDS, Figures};
use crate::digits::Shards;
use crate::method::{Base, Method, Wire};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// Width and height of the picture, in pixels.
const SIZE: (u32, u32) = (1200, 680);
const TITLE_HEIGHT: u32 = 56;
const LEGEND_HEIGHT: u32 = 124;
const LEGEND_COLUMNS: u32 = 4;
/// Outer rounds of at most this many inner steps are drawn as solid lines, longer ones as dashed.
const SHORT_ROUND: u64 = 12;
/// Length of a line in the legend.
const SAMPLE_WIDTH: i32 = 44;
const FONT: &str = "sans-serif";
/// Minimum range of the loss axis, in nats.
const LOSS_RANGE: (f64, f64) = (0.009, 2.5);

/// The picture could not be drawn or written. Nothing else was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plot was not written: {0}")]
pub struct PlotError(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Writes the curves of `figures` to `path`; `subtitle` describes the measurement.
///
/// # Errors
/// The file cannot be written.
pub fn plot(path: &Path, figures: &[Figures], subtitle: &str) -> Result<(), PlotError> {
    let mut svg = String::new();
    draw(&mut svg, figures, subtitle).map_err(|error| PlotError(error.to_string()))?;
    std::fs::write(path, svg).map_err(|error| PlotError(format!("{}: {error}", path.display())))
}

fn draw(svg: &mut String, figures: &[Figures], subtitle: &str) -> Drawn {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (top, rest) = root.split_vertically(TITLE_HEIGHT);
    let (middle, legend) = rest.split_vertically(SIZE.1 - TITLE_HEIGHT - LEGEND_HEIGHT);
    top.draw(&Text::new(
        "Training loss of the averaged model, handwritten digits",
        (24, 12),
        (FONT, 22).into_font(),
    ))?;
    top.draw(&Text::new(
        subtitle.to_owned(),
        (24, 38),
        (FONT, 14).into_font().color(&BLACK.mix(0.65)),
    ))?;
    for (shards, panel) in BOTH_SHARDS
        .into_iter()
        .zip(middle.split_evenly((1, BOTH_SHARDS.len())))
    {
        draw_panel(&panel, figures, shards)?;
    }
    draw_legend(&legend, figures)?;
    root.present()
}

fn draw_panel(panel: &Area<'_>, figures: &[Figures], shards: Shards) -> Drawn {
    let title = match shards {
        Shards::Even => "Even shards",
        Shards::Skewed => "Label-skewed shards",
    };
    let (steps, losses) = ranges(figures);
    let mut chart = ChartBuilder::on(panel)
        .caption(title, (FONT, 18))
        .margin_left(14)
        .margin_right(26)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0..steps, (losses.0..losses.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("inner steps")
        .y_desc("cross-entropy (nats, log scale)")
        .x_labels(7)
        .y_label_formatter(&|loss| format!("{loss}"))
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 13))
        .bold_line_style(BLACK.mix(0.16))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for figures in figures.iter().filter(|figures| figures.shards == shards) {
        let style = line_style(&figures.method);
        let points = figures
            .curve
            .iter()
            .copied()
            .filter(|(_, loss)| loss.is_finite());
        match dashes(&figures.method) {
            Some((length, gap)) => {
                chart.draw_series(DashedLineSeries::new(points, length, gap, style))?
            }
            None => chart.draw_series(LineSeries::new(points, style))?,
        };
    }
    Ok(())
}

/// Ranges of the axes, equal in both panels: all steps, and decades of losses that contain all
/// curves.
fn ranges(figures: &[Figures]) -> (u64, (f64, f64)) {
    let points = || {
        figures
            .iter()
            .flat_map(|figures| figures.curve.iter())
            .filter(|point| point.1.is_finite() && point.1 > 0.0)
    };
    let steps = points().map(|point| point.0).max().unwrap_or(1);
    let lowest = points().map(|point| point.1).fold(LOSS_RANGE.0, f64::min);
    let highest = points().map(|point| point.1).fold(LOSS_RANGE.1, f64::max);
    (steps, (lowest, highest))
}

fn draw_legend(legend: &Area<'_>, figures: &[Figures]) -> Drawn {
    let mut methods: Vec<Method> = Vec::new();
    for figures in figures {
        if methods
            .iter()
            .all(|method| method.name != figures.method.name)
        {
            methods.push(figures.method);
        }
    }
    let column_width = (SIZE.0 / LEGEND_COLUMNS) as i32 - 10;
    let encodes = methods.iter().any(|method| method.wire != Wire::Float32);
    for method in &methods {
        let column = if encodes {
            method.wire as i32
        } else {
            outer_column(method)
        };
        let row = family(method);
        draw_entry(legend, method, (40 + column * column_width, 24 + row * 32))?;
    }
    Ok(())
}

/// Row of a method in the legend.
fn family(method: &Method) -> i32 {
    match method.base {
        Base::AllReduce | Base::LocalSgd { .. } => 0,
        Base::Sgp { staleness: 0 } => 1,
        Base::Sgp { .. } => 2,
    }
}

/// Column of a method in the legend: methods with the same outer rounds are aligned.
fn outer_column(method: &Method) -> i32 {
    match (method.base, method.slow) {
        (Base::AllReduce, _) => 0,
        (_, None) => 1,
        (_, Some(slow)) if slow.tau <= SHORT_ROUND => 2,
        (_, Some(_)) => 3,
    }
}

fn draw_entry(legend: &Area<'_>, method: &Method, (left, middle): (i32, i32)) -> Drawn {
    let (length, gap) = dashes(method).unwrap_or((SAMPLE_WIDTH as u32, 0));
    let length = length as i32;
    let mut start = 0;
    while start < SAMPLE_WIDTH {
        let end = (start + length).min(SAMPLE_WIDTH);
        legend.draw(&PathElement::new(
            vec![(left + start, middle), (left + end, middle)],
            line_style(method),
        ))?;
        start = end + (gap as i32).max(1);
    }
    legend.draw(&Text::new(
        method.name,
        (left + SAMPLE_WIDTH + 10, middle - 8),
        (FONT, 15).into_font(),
    ))
}

/// Style of a curve: one hue per base, distinguishable without red and green; each curve is thinner
/// than the one drawn before it, so that coinciding curves all stay visible.
fn line_style(method: &Method) -> ShapeStyle {
    let (colour, width) = match method.base {
        Base::AllReduce => (RGBColor(170, 170, 170), 7),
        Base::LocalSgd { .. } => (RGBColor(230, 120, 0), 5),
        Base::Sgp { staleness: 0 } => (RGBColor(0, 90, 160), 4),
        Base::Sgp { .. } => (RGBColor(240, 80, 160), 2),
    };
    colour.stroke_width(width)
}

/// Dash pattern: dots without SlowMo or for int8, dashes for long rounds or bfloat16, else a solid
/// line.
fn dashes(method: &Method) -> Option<(u32, u32)> {
    match (method.slow, method.base, method.wire) {
        (None, Base::AllReduce, _) => None,
        (None, ..) | (_, _, Wire::Int8) => Some((3, 5)),
        (Some(slow), ..) => {
            (slow.tau > SHORT_ROUND || method.wire == Wire::BFloat16).then_some((14, 6))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::method::Methods;

    /// Curves that fall like 1/steps to about the losses known for this task.
    fn synthetic() -> Vec<Figures> {
        let ends = [
            0.053, 0.0528, 0.0206, 0.0164, 0.0528, 0.0204, 0.0165, 0.0535, 0.0208, 0.0169,
        ];
        let figures = |(shards, method, end): (Shards, Method, f64)| Figures {
            method,
            shards,
            outcomes: Vec::new(),
            sent_bytes_per_node: None,
            step_ms: None,
            curve: (1..=25)
                .map(|point| (24 * point, end * (25.0 / point as f64).powf(1.2)))
                .collect(),
        };
        let panel = |shards, factor: f64| {
            Methods::Algorithms
                .all()
                .into_iter()
                .zip(ends)
                .map(move |(method, end)| (shards, method, factor * end))
        };
        panel(Shards::Even, 1.0)
            .chain(panel(Shards::Skewed, 2.0))
            .map(figures)
            .collect()
    }

    #[test]
    fn the_plot_is_svg_with_titles_axes_and_every_method_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        plot(&path, &synthetic(), "4 nodes, 3 seeds").unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(
            svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"),
            "{}",
            &svg[..80]
        );
        for text in [
            "Even shards",
            "Label-skewed shards",
            "inner steps",
            "cross-entropy (nats, log scale)",
            "4 nodes, 3 seeds",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        for method in Methods::Algorithms.all() {
            assert_eq!(
                svg.matches(&format!("\n{}\n", method.name)).count(),
                1,
                "{}",
                method.name
            );
        }
        // For visual inspection: run cargo test … -- with this variable set to a file name.
        if let Some(copy) = std::env::var_os("PLOT_COPY") {
            std::fs::copy(&path, copy).unwrap();
        }
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let folder = tempfile::tempdir().unwrap();
        plot(&folder.path().join("plot.svg"), &[], "").unwrap();
        assert!(plot(&folder.path().join("missing/plot.svg"), &[], "").is_err());
    }
}
