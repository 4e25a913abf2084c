//! A run as a picture (SVG), in three panels: latency by percentile,
//! throughput over time, latency over time.
//!
//! Latencies stand on a logarithmic scale, as do percentiles (by how many
//! nines they have), since what matters of a distribution is its tail.

use std::fmt::Write as _;

use super::Side;
use super::report::time;
use super::work::Kind;

const WIDTH: f64 = 860.0;
const PANEL: f64 = 190.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 72.0;
const GAP: f64 = 50.0;
/// A colour for each store, and one for the tail of each.
const COLOURS: [[&str; Kind::ALL.len()]; 2] = [
    ["#7fc4d8", "#1f6f8b", "#0f4657"],
    ["#eab08f", "#c0562b", "#7d3213"],
];

/// A place on a scale, and how it is spelled.
type Tick = (f64, String);

struct Line {
    colour: &'static str,
    name: String,
    points: Vec<(f64, f64)>,
}

/// The picture of some stores' records.
pub(super) fn plot(sides: &[Side]) -> String {
    let height = TOP + 3.0 * (PANEL + GAP);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' \
         font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
    );
    for (at, (side, [_, colour, _])) in sides.iter().zip(COLOURS).enumerate() {
        let y = 18.0 + 18.0 * at as f64;
        let name = escape(&side.name);
        let _ = writeln!(
            svg,
            "<text x='{LEFT}' y='{y}' fill='{colour}'>{name}</text>"
        );
    }
    let panels = [percentiles(sides), throughput(sides), over_time(sides)];
    for (at, (title, lines, ticks)) in panels.iter().enumerate() {
        let top = TOP + at as f64 * (PANEL + GAP);
        panel(&mut svg, top, title, lines, ticks);
    }
    svg + "</svg>\n"
}

type Panel = (&'static str, Vec<Line>, [Vec<Tick>; 2]);

fn percentiles(sides: &[Side]) -> Panel {
    let quantiles: [f64; 9] = [0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];
    let nines = |quantile: f64| -(1.0 - quantile).log10();
    let mut lines = Vec::new();
    for (side, colours) in sides.iter().zip(COLOURS) {
        for (kind, colour) in Kind::ALL.into_iter().zip(colours) {
            let Some(found) = side
                .record
                .latencies(kind)
                .filter(|found| !found.is_empty())
            else {
                continue;
            };
            let at = |quantile: f64| (nines(quantile), log(found.value_at_quantile(quantile)));
            lines.push(Line {
                colour,
                name: kind.name().to_owned(),
                points: quantiles.iter().map(|quantile| at(*quantile)).collect(),
            });
        }
    }
    let across = ["0", "50", "90", "99", "99.9", "99.99"];
    let across = across.map(|text| {
        let quantile = text.parse::<f64>().unwrap_or(0.0) / 100.0;
        (nines(quantile), format!("{text} %"))
    });
    let up = decades(&lines);
    ("latency by percentile", lines, [across.to_vec(), up])
}

fn throughput(sides: &[Side]) -> Panel {
    let lines: Vec<_> = sides
        .iter()
        .zip(COLOURS)
        .map(|(side, [_, colour, _])| Line {
            colour,
            name: String::new(),
            points: side
                .record
                .points
                .iter()
                .map(|point| (point.at, point.rate))
                .collect(),
        })
        .collect();
    let step = round_up(most(&lines, |(_, rate)| rate) / 4.0);
    let up = (0..=4).map(|at| step * f64::from(at));
    let up = up.map(|rate| (rate, format!("{rate:.0}/s"))).collect();
    let across = seconds(&lines);
    ("successful operations a second", lines, [across, up])
}

fn over_time(sides: &[Side]) -> Panel {
    let mut lines = Vec::new();
    for (side, colours) in sides.iter().zip(COLOURS) {
        for (name, colour) in ["p50", "p99"].into_iter().zip(colours) {
            let points = side.record.points.iter().filter(|point| point.p50 > 0);
            let value = |p50, p99| log(if name == "p50" { p50 } else { p99 });
            lines.push(Line {
                colour,
                name: name.to_owned(),
                points: points
                    .map(|point| (point.at, value(point.p50, point.p99)))
                    .collect(),
            });
        }
    }
    let (across, up) = (seconds(&lines), decades(&lines));
    ("latency over measured time", lines, [across, up])
}

/// Draws a panel whose scales reach from their first tick to their last.
fn panel(svg: &mut String, top: f64, title: &str, lines: &[Line], ticks: &[Vec<Tick>; 2]) {
    let [across, up] = ticks;
    let (x, y) = (scale(across), scale(up));
    let (wide, bottom) = (WIDTH - LEFT - RIGHT, top + PANEL);
    let place = |point: &(f64, f64)| (LEFT + x(point.0) * wide, bottom - y(point.1) * PANEL);
    let _ = writeln!(
        svg,
        "<text x='{LEFT}' y='{:.1}' font-weight='bold'>{title}</text>",
        top - 8.0
    );
    for (value, text) in up {
        let at = bottom - y(*value) * PANEL;
        let _ = writeln!(
            svg,
            "<path d='M{LEFT} {at:.1}h{wide}' stroke='#ddd'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='end'>{text}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (value, text) in across {
        let at = LEFT + x(*value) * wide;
        let _ = writeln!(
            svg,
            "<path d='M{at:.1} {bottom}v5' stroke='#888'/>\
             <text x='{at:.1}' y='{:.1}' text-anchor='middle'>{text}</text>",
            bottom + 18.0
        );
    }
    for line in lines {
        let places: Vec<_> = line.points.iter().map(place).collect();
        let path: Vec<_> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let colour = line.colour;
        let _ = writeln!(
            svg,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.6'/>",
            path.join(" ")
        );
    }
    // Who is who, from the right.
    let mut x = WIDTH - RIGHT;
    for line in lines.iter().rev().filter(|line| !line.name.is_empty()) {
        let (colour, name, y) = (line.colour, &line.name, top - 8.0);
        let _ = writeln!(
            svg,
            "<text x='{x:.1}' y='{y:.1}' text-anchor='end' fill='{colour}'>{name}</text>"
        );
        x -= 50.0;
    }
}

/// From a value to its place between the first tick (0) and the last (1).
fn scale(ticks: &[Tick]) -> impl Fn(f64) -> f64 {
    let first = ticks.first().map_or(0.0, |tick| tick.0);
    let last = ticks.last().map_or(1.0, |tick| tick.0);
    move |value| ((value - first) / (last - first).max(f64::EPSILON)).clamp(0.0, 1.0)
}

fn log(nanos: u64) -> f64 {
    (nanos.max(1) as f64).log10()
}

fn most(lines: &[Line], pick: impl Fn((f64, f64)) -> f64) -> f64 {
    let values = lines.iter().flat_map(|line| line.points.iter().copied());
    values.map(pick).fold(0.0, f64::max)
}

/// Powers of ten around all latencies, which are logarithms already.
fn decades(lines: &[Line]) -> Vec<Tick> {
    let values = || {
        lines
            .iter()
            .flat_map(|line| line.points.iter().map(|point| point.1))
    };
    let least = values().fold(12.0, f64::min).floor();
    let most = values().fold(least + 1.0, f64::max).ceil();
    let count = (most - least) as u32;
    let ticks = (0..=count).map(|at| least + f64::from(at));
    ticks
        .map(|power| (power, time(10f64.powf(power) as u64)))
        .collect()
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let next = steps.into_iter().find(|step| *step >= value);
    next.unwrap_or(value)
}

fn seconds(lines: &[Line]) -> Vec<Tick> {
    let most = most(lines, |(at, _)| at).max(0.1);
    let ticks = (0..=5).map(|at| most * f64::from(at) / 5.0);
    ticks.map(|at| (at, format!("{at:.1} s"))).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
