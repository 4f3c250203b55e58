//! Curves over time.

use crate::processes::measure::{Observed, Round};
use slowmo_protocol::time::Instant;
use std::fmt::Write;

/// Width of the drawing, and the positions in it where the time axis begins and ends.
pub(super) const WIDTH: f64 = 1140.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 1130.0;
/// Height of a chart's plot.
const HEIGHT: f64 = 130.0;
/// Maximum number of points of one curve; more are averaged with their neighbours.
const POINTS: usize = 400;
/// Hues of single nodes' curves, used in turn, readable on light and dark backgrounds.
const HUES: [u16; 8] = [211, 28, 145, 340, 265, 55, 185, 0];

/// Maps time to a horizontal position.
pub(super) struct Axis {
    from: Instant,
    to: Instant,
}

impl Axis {
    pub(super) fn new(from: Instant, to: Instant) -> Self {
        Self {
            from,
            to: Instant(to.0.max(from.0 + 1)),
        }
    }

    pub(super) fn x(&self, at: Instant) -> f64 {
        let share = at.since(self.from).0 as f64 / self.to.since(self.from).0 as f64;
        LEFT + share.min(1.0) * (RIGHT - LEFT)
    }

    /// Grid lines, with seconds below a plot from `top` to `bottom`.
    pub(super) fn grid(&self, top: f64, bottom: f64) -> String {
        let seconds = self.to.since(self.from).0 as f64 / 1e6;
        let step = step_of(seconds / 12.0);
        let mut text = String::new();
        let mut at = 0.0;
        while at <= seconds {
            let x = self.x(Instant((at * 1e6) as u64));
            let _ = write!(
                text,
                "<line class='grid' x1='{x:.1}' x2='{x:.1}' y1='{top}' y2='{bottom}'/>\
                 <text x='{x:.1}' y='{:.0}' text-anchor='middle'>{at:.0} s</text>",
                bottom + 14.0
            );
            at += step;
        }
        text
    }

    /// A pale background from one time to another.
    pub(super) fn ground(
        &self,
        class: &str,
        (from, to): (Instant, Instant),
        (top, bottom): (f64, f64),
    ) -> String {
        let x = self.x(from);
        let width = self.x(to) - x;
        format!(
            "<rect class='{class}' x='{x:.1}' y='{top}' width='{width:.1}' height='{}'/>",
            bottom - top
        )
    }
}

/// A round number of seconds or other units, at least `least`.
fn step_of(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

/// A chart of curves that share one scale from 0.
struct Chart<'a> {
    axis: &'a Axis,
    most: f64,
    body: String,
}

impl<'a> Chart<'a> {
    fn new(run: &Observed, axis: &'a Axis, most: f64) -> Self {
        // Leaves a little room above the highest value.
        let most = if most > 0.0 { most * 1.06 } else { 1.0 };
        let top = 6.0;
        let bottom = 6.0 + HEIGHT;
        let mut body = axis.grid(top, bottom);
        if let Some(quiet) = run.quiet {
            body.push_str(&axis.ground("quiet", (quiet, run.over), (top, bottom)));
        }
        let mut chart = Self { axis, most, body };
        let step = step_of(most / 4.0);
        let mut value = 0.0;
        while value <= most {
            let y = chart.y(value);
            let shown = if step < 1.0 {
                format!("{value:.2}")
            } else {
                format!("{value:.0}")
            };
            let _ = write!(
                chart.body,
                "<line class='grid' x1='{LEFT}' x2='{RIGHT}' y1='{y:.1}' y2='{y:.1}'/>\
                 <text x='{:.0}' y='{:.1}' text-anchor='end'>{shown}</text>",
                LEFT - 6.0,
                y + 4.0
            );
            value += step;
        }
        chart
    }

    fn y(&self, value: f64) -> f64 {
        6.0 + HEIGHT * (1.0 - (value / self.most).clamp(0.0, 1.0))
    }

    /// A curve; with `steps`, each value stays until the next.
    fn curve(&mut self, class: &str, colour: &str, points: &[(Instant, f64)], steps: bool) {
        let mut path = String::new();
        for (index, (at, value)) in points.iter().enumerate() {
            let x = self.axis.x(*at);
            let y = self.y(*value);
            let _ = match (index, steps) {
                (0, _) => write!(path, "M{x:.1} {y:.1}"),
                (_, true) => write!(path, "H{x:.1}V{y:.1}"),
                (_, false) => write!(path, "L{x:.1} {y:.1}"),
            };
        }
        let colour = if colour.is_empty() {
            String::new()
        } else {
            format!(" style='stroke:{colour}'")
        };
        let _ = write!(
            self.body,
            "<path class='curve {class}'{colour} d='{path}'/>"
        );
    }

    fn finish(self) -> String {
        format!(
            "<svg viewBox='0 0 {WIDTH} {:.0}'>{}</svg>",
            HEIGHT + 26.0,
            self.body
        )
    }
}

/// Chart of live nodes, members and contributors.
pub(super) fn counts(run: &Observed, axis: &Axis) -> String {
    let mut times: Vec<(Instant, i64)> = run.lives.values().map(|life| (life.from, 1)).collect();
    times.extend(
        run.lives
            .values()
            .filter_map(|life| Some((life.ended?.0, -1))),
    );
    times.sort_unstable();
    let mut count = 0i64;
    let mut alive = Vec::new();
    for (at, change) in times {
        count += change;
        alive.push((at, count as f64));
    }
    alive.push((run.over, count as f64));
    let history = run.history();
    let of = |value: fn(&Round) -> usize| {
        let mut points: Vec<(Instant, f64)> = history
            .iter()
            .map(|round| (round.at, value(round) as f64))
            .collect();
        points.extend(points.last().map(|(_, last)| (run.over, *last)));
        points
    };
    let most = alive.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let mut chart = Chart::new(run, axis, most);
    chart.curve("a", "", &alive, true);
    chart.curve("m", "", &of(|round| round.next.len()), true);
    chart.curve("c", "", &of(|round| round.contributors.len()), true);
    let legend = "<p class='legend'><span><i style='background:var(--dim)'></i>alive</span>\
                  <span><i class='member' style='background:var(--member)'></i>members</span>\
                  <span><i style='background:var(--works)'></i>contributors of a decided \
                  round</span></p>";
    format!("{legend}{}", chart.finish())
}

/// Chart of the milliseconds from round to round.
pub(super) fn rounds(run: &Observed, axis: &Axis) -> String {
    let history = run.history();
    let gaps: Vec<(Instant, f64)> = history
        .windows(2)
        .map(|pair| (pair[1].at, pair[1].at.since(pair[0].at).0 as f64 / 1e3))
        .collect();
    let most = gaps.iter().map(|(_, gap)| *gap).fold(1.0, f64::max);
    let mut chart = Chart::new(run, axis, most);
    for (at, gap) in highest(&gaps) {
        let x = axis.x(at);
        let y = chart.y(gap);
        let _ = write!(
            chart.body,
            "<circle class='dot' cx='{x:.1}' cy='{y:.1}' r='1.8'/>"
        );
    }
    format!(
        "<p class='legend'><span>milliseconds</span></p>{}",
        chart.finish()
    )
}

/// Chart of the losses that workers reported, one curve per node.
pub(super) fn losses(run: &Observed, axis: &Axis) -> String {
    if run.losses.is_empty() {
        return "<p class='dim'>The training reports no loss \
                (<code>worker.report_loss</code>).</p>"
            .to_owned();
    }
    let curves: Vec<(u64, Vec<(Instant, f64)>)> = run
        .losses
        .iter()
        .map(|(node, curve)| (node.0, averaged(&curve.points)))
        .collect();
    let most = curves
        .iter()
        .flat_map(|(_, points)| points)
        .map(|(_, loss)| *loss)
        .fold(0.0, f64::max);
    let mut chart = Chart::new(run, axis, most);
    for (index, (_, points)) in curves.iter().enumerate() {
        let hue = HUES[index % HUES.len()];
        chart.curve(
            "loss",
            &format!("hsl({hue} 65% {}%)", 42 + 14 * (index / HUES.len()).min(2)),
            points,
            false,
        );
    }
    chart.finish()
}

/// Averages neighbours, so that there are at most [`POINTS`].
fn averaged(points: &[(Instant, f64)]) -> Vec<(Instant, f64)> {
    let size = points.len().div_ceil(POINTS).max(1);
    let mean = |part: &[(Instant, f64)]| {
        part.iter().map(|(_, value)| value).sum::<f64>() / part.len() as f64
    };
    points
        .chunks(size)
        .filter_map(|part| Some((part.first()?.0, mean(part))))
        .collect()
}

/// Keeps the highest of neighbours, so that there are at most three times [`POINTS`].
fn highest(points: &[(Instant, f64)]) -> Vec<(Instant, f64)> {
    let size = points.len().div_ceil(3 * POINTS).max(1);
    points
        .chunks(size)
        .filter_map(|part| {
            part.iter()
                .copied()
                .max_by(|one, other| one.1.total_cmp(&other.1))
        })
        .collect()
}
