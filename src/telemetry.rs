//! Makes the program visible: the recorder behind `/metrics` and the subscriber behind the log lines.
//! Promises a recorder of its own for every server; only the subscriber is of the process, and only the command line sets it.
//! Does not name metrics and does not log.

use std::fmt;
use std::io::{self, IsTerminal as _};

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::metrics::{Kind, Metrics, TABLE};

/// How often [`Exporter::upkeep`] is to be called, at least. Samples of histograms gather in memory until then.
pub const UPKEEP_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// What went wrong while telemetry was set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table of metrics has a histogram without bounds.
    #[error("the recorder refuses the bounds of {metric}")]
    Bounds {
        /// The metric's name.
        metric: &'static str,
        /// What the recorder said.
        #[source]
        source: BuildError,
    },
    /// The filter of log lines cannot be read.
    #[error("the log filter {filter:?} cannot be read")]
    Filter {
        /// What was given.
        filter: String,
        /// Where it breaks.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The process has a subscriber already.
    #[error("the process already has a subscriber for log lines")]
    Installed(#[source] tracing_subscriber::util::TryInitError),
}

/// Renders one server's metrics. Clones render the same ones.
#[derive(Clone)]
pub struct Exporter(PrometheusHandle);

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

impl Exporter {
    /// The page in the Prometheus text format.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Folds the gathered samples of histograms into their buckets.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// A recorder of this server's own with handles for all of its metrics.
///
/// # Errors
/// [`Error::Bounds`] when the table has a histogram without bounds.
pub fn metrics(partitions: u16) -> Result<(Metrics, Exporter), Error> {
    let mut builder = PrometheusBuilder::new();
    for row in TABLE {
        if let Kind::Histogram(bounds) = row.kind {
            let metric = row.name;
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.to_owned()), bounds)
                .map_err(|source| Error::Bounds { metric, source })?;
        }
    }
    let recorder = builder.build_recorder();
    Ok((Metrics::register(&recorder, partitions), Exporter(recorder.handle())))
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One line a message, for people.
    #[default]
    Compact,
    /// One JSON object a line, for machines.
    Json,
}

/// Sets the process' subscriber: log lines to standard error, as the filter says (`info`, `forebay=debug,warn`, …).
///
/// # Errors
/// [`Error::Filter`] when the filter cannot be read, [`Error::Installed`] when there is a subscriber already.
pub fn install(filter: &str, format: Format) -> Result<(), Error> {
    let parsed = EnvFilter::try_new(filter)
        .map_err(|source| Error::Filter { filter: filter.to_owned(), source })?;
    let registry = tracing_subscriber::registry().with(parsed);
    let is_terminal = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(is_terminal);
    match format {
        Format::Compact => registry.with(lines.compact()).try_init(),
        Format::Json => {
            registry.with(lines.json().flatten_event(true).with_current_span(true)).try_init()
        }
    }
    .map_err(Error::Installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_count_apart_and_render_with_help_and_buckets() {
        let (mine, page) = metrics(1).unwrap();
        let (_theirs, other) = metrics(2).unwrap();
        mine.journal[0].ack_duration.record(0.003);
        mine.journal[0].conflicts.increment(7);
        page.upkeep();
        let text = page.render();
        for part in [
            "# HELP forebay_journal_conflicts_total Records that lost",
            "# TYPE forebay_journal_ack_duration_seconds histogram",
            "forebay_journal_conflicts_total{partition=\"0\"} 7",
            "forebay_journal_ack_duration_seconds_bucket{partition=\"0\",le=\"0.005\"} 1",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(other.render().contains("forebay_journal_conflicts_total{partition=\"1\"} 0"));
        assert!(!text.contains("summary"));
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        let error = install("forebay=loud", Format::Json).unwrap_err();
        assert!(error.to_string().contains("forebay=loud"), "{error}");
    }
}
