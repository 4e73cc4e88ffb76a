//! Pure: charts of what `bench load` and `bench growth` found, as SVG.
//! Promises dark text on a white ground, so that a chart reads well on pages of any colour, and files of a few kilobytes.
//! Does not read or write files; the command does.

use plotters::prelude::*;
use serde_json::Value;

use crate::bench::Error;

/// Size of a chart, in pixels: as wide as a page of documentation shows without shrinking it.
const SIZE: (u32, u32) = (880, 480);

/// Colours that people who see few colours tell apart, all dark enough for white (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(90, 90, 90),
    RGBColor(180, 120, 0),
];

/// Text of axes and legends.
const FONT: (&str, u32) = ("sans-serif", 18);

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Its name as a file, without `.svg`.
    pub name: &'static str,
    title: &'static str,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
    /// Whether what is offered is drawn too, as the line `y = x`.
    diagonal: bool,
    legend: Corner,
}

/// Where the legend stands: where no line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Corner {
    LowerRight,
    /// In room that is made for it above the lines.
    UpperLeft,
}

/// How much higher than its lines a chart is whose legend stands above them.
const HEADROOM: f64 = 1.5;

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    name: &'static str,
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// From zero.
    Linear,
    /// By powers of ten.
    Log,
}

#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// The charts that these reports are enough for: files of `bench all`, `bench load` and `bench growth`.
pub fn charts(reports: &[Value]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for report in reports {
        let part = |name: &str| report.pointer(&format!("/reports/{name}")).unwrap_or(report);
        charts.extend(of_load(part("load")));
        charts.extend(of_growth(part("growth")));
    }
    charts
}

fn number(value: &Value, path: &str) -> Option<f64> {
    value.pointer(path)?.as_f64()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Latency and acknowledged rate, against what was offered.
fn of_load(report: &Value) -> Vec<Chart> {
    let lines = |figure: &str| {
        let line = |way: &Value| {
            let steps = list(way, "steps").iter();
            let point =
                |step: &Value| Some((number(step, "/offeredPerSecond")?, number(step, figure)?));
            let name = way.get("label").and_then(Value::as_str).unwrap_or_default().to_owned();
            Line { name, points: steps.filter_map(point).collect() }
        };
        let lines = list(report, "ways").iter().map(line);
        // A way that was offered one load only is no line.
        lines.filter(|line| line.points.len() > 1).collect::<Vec<_>>()
    };
    if list(report, "ways").is_empty() {
        return Vec::new();
    }
    vec![
        Chart {
            name: "load-latency",
            title: "p99 of acknowledged sends against offered load",
            x: Axis { name: "offered sends a second", scale: Scale::Log },
            y: Axis { name: "p99, ms", scale: Scale::Log },
            lines: lines("/round/p99Ms"),
            diagonal: false,
            legend: Corner::LowerRight,
        },
        Chart {
            name: "load-rate",
            title: "acknowledged against offered load",
            x: Axis { name: "offered sends a second", scale: Scale::Linear },
            y: Axis { name: "acknowledged a second", scale: Scale::Linear },
            lines: lines("/round/perSecond"),
            diagonal: true,
            legend: Corner::LowerRight,
        },
    ]
}

/// What more of everything costs, in multiples of the smallest size.
fn of_growth(report: &Value) -> Vec<Chart> {
    let (sends, reads) = (list(report, "sends"), list(report, "reads"));
    if sends.is_empty() && reads.is_empty() {
        return Vec::new();
    }
    let cpu = |size: &Value| {
        let all = ["server", "nats", "postgres"];
        let sum = all.iter().filter_map(|of| number(size, &format!("/cost/{of}CpuSeconds")));
        Some(sum.sum::<f64>() / number(size, "/cost/operations")?)
    };
    let p99 = |size: &Value| number(size, "/round/p99Ms");
    let lines = vec![
        relative("p99 of a send, by conversations", sends, p99),
        relative("CPU of a send, by conversations", sends, cpu),
        relative("most sends/s, by conversations", sends, |s| number(s, "/fastest/perSecond")),
        relative("p99 of an old page, by history", reads, p99),
        relative("CPU of an old page, by history", reads, cpu),
    ];
    vec![Chart {
        name: "growth",
        title: "what more conversations and a longer history cost",
        x: Axis { name: "times the smallest size", scale: Scale::Log },
        y: Axis { name: "times the figure of the smallest", scale: Scale::Linear },
        lines,
        diagonal: false,
        legend: Corner::UpperLeft,
    }]
}

fn relative(name: &str, sizes: &[Value], figure: impl Fn(&Value) -> Option<f64>) -> Line {
    let of = |size: &Value| Some((number(size, "/count")?, figure(size)?));
    let points: Vec<(f64, f64)> = sizes.iter().filter_map(of).collect();
    let (x, y) = points.first().copied().unwrap_or((1.0, 1.0));
    let scaled = |at: f64, by: f64| at / by.max(f64::MIN_POSITIVE);
    let points = points.into_iter().map(|point| (scaled(point.0, x), scaled(point.1, y)));
    Line { name: name.to_owned(), points: points.collect() }
}

impl Scale {
    /// Where a value lies on the axis.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.max(f64::MIN_POSITIVE).log10(),
        }
    }

    /// From where to where the axis goes, and what is written along it.
    fn ticks(self, values: impl Iterator<Item = f64> + Clone) -> (f64, f64, Vec<f64>) {
        let high = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        match self {
            Self::Linear => {
                let step = round_step(high / 6.0);
                let count = (high / step).ceil().max(1.0);
                let ticks =
                    (0..=20_u32).map(|n| f64::from(n) * step).filter(|t| *t <= count * step);
                (0.0, count * step, ticks.collect())
            }
            Self::Log => {
                let low = values.filter(|v| *v > 0.0).fold(high, f64::min);
                let decades = -6..=12_i32;
                let all = decades.flat_map(|n| [1.0, 2.0, 5.0].map(|m| m * 10_f64.powi(n)));
                let all: Vec<f64> = all.collect();
                let from = all.iter().rposition(|t| *t <= low).unwrap_or(0);
                let to = all.iter().position(|t| *t >= high).unwrap_or(all.len() - 1).max(from + 1);
                let ticks: Vec<f64> =
                    all[from..=to.min(all.len() - 1)].iter().map(|t| t.log10()).collect();
                (ticks[0], ticks[ticks.len() - 1], ticks)
            }
        }
    }

    /// The text of a tick.
    fn text(self, tick: f64) -> String {
        let value = match self {
            Self::Linear => tick,
            Self::Log => 10_f64.powf(tick),
        };
        match value {
            small if small < 0.995 && small > 0.0 => format!("{small:.2}"),
            part if part < 10.0 && (part - part.round()).abs() > 0.01 => format!("{part:.1}"),
            thousands if thousands >= 10_000.0 => format!("{:.0} k", thousands / 1_000.0),
            whole => format!("{whole:.0}"),
        }
    }
}

/// Steps of a unit of an axis: the library sets ticks where one wants them on axes of whole numbers only.
const STEPS: f64 = 1_000.0;

#[expect(
    clippy::cast_possible_truncation,
    reason = "no figure of a benchmark reaches two millions"
)]
fn step(value: f64) -> i32 {
    (value * STEPS).round() as i32
}

/// 1, 2 or 5 times a power of ten, not below this.
fn round_step(wanted: f64) -> f64 {
    let power = 10_f64.powf(wanted.max(f64::MIN_POSITIVE).log10().floor());
    let enough = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= wanted);
    enough.unwrap_or(10.0) * power
}

impl Chart {
    /// Draws it.
    ///
    /// # Errors
    /// When the library cannot draw it.
    pub fn draw(&self) -> Result<String, Error> {
        let mut text = String::new();
        self.draw_into(&mut text).map_err(Error::Plot)?;
        Ok(text)
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> + Clone {
        self.lines.iter().flat_map(|line| line.points.iter().copied())
    }

    fn draw_into(&self, text: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let (x, y) = (self.x.scale, self.y.scale);
        let (left, right, columns) = x.ticks(self.points().map(|point| point.0));
        let (room, corner) = match self.legend {
            Corner::LowerRight => (1.0, SeriesLabelPosition::LowerRight),
            Corner::UpperLeft => (HEADROOM, SeriesLabelPosition::UpperLeft),
        };
        let (low, high, rows) = y.ticks(self.points().map(|point| point.1 * room));
        let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut builder = ChartBuilder::on(&area);
        builder.caption(self.title, ("sans-serif", 22)).margin(14).margin_right(44);
        builder.x_label_area_size(54).y_label_area_size(76);
        let steps = |ticks: Vec<f64>| ticks.into_iter().map(step).collect();
        let mut chart = builder.build_cartesian_2d(
            (step(left)..step(right)).with_key_points(steps(columns)),
            (step(low)..step(high)).with_key_points(steps(rows)),
        )?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT).bold_line_style(RGBColor(222, 222, 222));
        mesh.x_desc(self.x.name).y_desc(self.y.name);
        mesh.label_style(FONT).axis_desc_style(FONT);
        let text = |scale: Scale, tick: i32| scale.text(f64::from(tick) / STEPS);
        let (columns, rows) = (|tick: &i32| text(x, *tick), |tick: &i32| text(y, *tick));
        mesh.x_label_formatter(&columns).y_label_formatter(&rows);
        mesh.draw()?;
        if self.diagonal {
            let end = step(right.min(high));
            let line = LineSeries::new([(0, 0), (end, end)], RGBColor(150, 150, 150));
            chart.draw_series(line)?;
        }
        for (line, colour) in self.lines.iter().zip(COLOURS.into_iter().cycle()) {
            let points: Vec<_> = line
                .points
                .iter()
                .map(|point| (step(x.place(point.0)), step(y.place(point.1))))
                .collect();
            let drawn =
                chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            drawn.label(&line.name).legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 22, y)], colour.stroke_width(3))
            });
            let dots = points.into_iter().map(|point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(dots)?;
        }
        let mut legend = chart.configure_series_labels();
        legend.position(corner).label_font(FONT);
        legend.background_style(WHITE.mix(0.9)).border_style(RGBColor(150, 150, 150));
        legend.draw()?;
        area.present()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ticks_are_round_and_hold_every_value() {
        let values = [3.0, 47.0, 810.0];
        let (low, high, ticks) = Scale::Log.ticks(values.into_iter());
        let texts: Vec<_> = ticks.iter().map(|tick| Scale::Log.text(*tick)).collect();
        assert_eq!(texts, ["2", "5", "10", "20", "50", "100", "200", "500", "1000"]);
        assert!(low <= 3.0_f64.log10() && high >= 810.0_f64.log10());
        let (low, high, ticks) = Scale::Linear.ticks(values.into_iter());
        assert!(low.abs() < 1e-9 && high >= 810.0, "{low} {high}");
        let texts: Vec<_> = ticks.iter().map(|tick| Scale::Linear.text(*tick)).collect();
        assert_eq!(texts, ["0", "200", "400", "600", "800", "1000"]);
    }

    #[test]
    fn a_chart_is_small_and_names_what_it_shows() {
        let step = |offered: u32, p99: f64| json!({"offeredPerSecond": offered, "round": {"p99Ms": p99, "perSecond": offered}});
        let way = json!({"label": "a way", "steps": [step(1_000, 2.0), step(30_000, 90.0)]});
        let charts = charts(&[json!({"reports": {"load": {"ways": [way]}}})]);
        assert_eq!(
            charts.iter().map(|c| c.name).collect::<Vec<_>>(),
            ["load-latency", "load-rate"]
        );
        for chart in charts {
            let text = chart.draw().unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
            assert!(text.contains("a way") && text.contains("offered sends a second"));
            assert!(text.len() < 100 * 1_024, "{} bytes", text.len());
        }
    }

    #[test]
    fn growth_is_told_in_multiples_of_the_smallest() {
        let size = |size: u64, p99: f64| json!({"count": size, "round": {"p99Ms": p99}});
        let sizes = [size(1_000, 4.0), size(10_000, 6.0)];
        let line = relative("a", &sizes, |size| number(size, "/round/p99Ms"));
        assert_eq!(line.points, [(1.0, 1.0), (10.0, 1.5)]);
    }
}
