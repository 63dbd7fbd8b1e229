//! The arguments: commands, options that several of them share, and how values are read.

use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use jiff::{SignedDuration, Span, SpanRelativeTo};
use reappear::{Backoff, DeadReason, QueueName, QueueOptions, State, Timestamp};

/// Durable queues in a directory: send, receive and settle messages, and look into a store.
///
/// STORE is the store's directory. Durations are written 500ms, 30s, 5m, 12h, 7d; times as
/// RFC 3339, as Unix milliseconds, or relative to now as -10m. Reading commands (queues, stats,
/// peek, dump, history) take no lock and change nothing: they also work on a store that is in use,
/// or broken. All others need the store for themselves.
///
/// Exit codes: 0 done; 1 nothing matched, or something was refused; 2 wrong usage; 3 the store is
/// damaged; 4 an invariant is broken; 5 the store is in use; 6 another failure.
#[derive(Parser)]
#[command(name = "reappear", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: crate::cmd::Command,
}

/// How results are printed.
#[derive(Args)]
pub struct Output {
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// How times are printed as text (in JSON they are Unix milliseconds)
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = TimeFormat::Rfc3339)]
    pub time: TimeFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TimeFormat {
    Rfc3339,
    UnixMs,
    Relative,
}

/// How bodies are printed.
#[derive(Args)]
pub struct Bodies {
    /// How bodies are printed; auto: as text if they are UTF-8, else in base64
    #[arg(long, value_enum, value_name = "MODE", default_value_t = BodyMode::Auto)]
    pub body: BodyMode,
    /// Print at most this many bytes of a body
    #[arg(long, value_name = "N")]
    pub max_body: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BodyMode {
    None,
    Len,
    Utf8,
    Hex,
    Base64,
    Auto,
}

/// Consent to what cannot be undone.
#[derive(Args)]
pub struct Consent {
    /// Do it without asking; needed when there is no terminal to ask on
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Say what would go, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of a queue. Those that are not given stay as they are, or have their defaults.
#[derive(Args)]
pub struct QueueSettings {
    /// How long a received message stays hidden [default: 60s]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub visibility: Option<Duration>,
    /// Longest visibility timeout a call may ask for [default: 12h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub max_visibility: Option<Duration>,
    /// Hand-outs after which an unsettled message is dead, or "none" [default: 10]
    #[arg(long, value_name = "N|none", value_parser = limit)]
    pub max_attempts: Option<Limit>,
    /// Delay after the first failed attempt [default: 1s]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub backoff: Option<Duration>,
    /// Growth of that delay per attempt [default: 2]
    #[arg(long, value_name = "N")]
    pub backoff_factor: Option<u32>,
    /// Longest such delay [default: 5m]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub backoff_max: Option<Duration>,
    /// Variation of that delay, in percent [default: 20]
    #[arg(long, value_name = "PERCENT")]
    pub backoff_jitter: Option<u8>,
    /// Most messages in flight at a time, or "none" [default: none]
    #[arg(long, value_name = "N|none", value_parser = limit)]
    pub max_in_flight: Option<Limit>,
    /// The queue that dead messages are moved to; it must exist
    #[arg(long, value_name = "QUEUE", conflicts_with = "no_dead_letter")]
    pub dead_letter: Option<QueueName>,
    /// Keep dead messages in their own queue
    #[arg(long)]
    pub no_dead_letter: bool,
    /// Whether expired messages become dead instead of going away [default: false]
    #[arg(long, value_name = "BOOL")]
    pub keep_expired: Option<bool>,
    /// Whether a receipt is stale as soon as its deadline passed [default: false]
    #[arg(long, value_name = "BOOL")]
    pub strict_deadline: Option<bool>,
}

impl QueueSettings {
    /// `options` with what was given put over it. `backoff` is the back-off of these options.
    pub fn over(&self, mut options: QueueOptions, mut backoff: Backoff) -> QueueOptions {
        if let Some(timeout) = self.visibility {
            options = options.visibility_timeout(timeout);
        }
        if let Some(timeout) = self.max_visibility {
            options = options.max_visibility_timeout(timeout);
        }
        if let Some(limit) = self.max_attempts {
            options = options.max_attempts(limit.0);
        }
        if let Some(limit) = self.max_in_flight {
            options = options.max_in_flight(limit.0);
        }
        if self.dead_letter.is_some() || self.no_dead_letter {
            options = options.dead_letter(self.dead_letter.clone());
        }
        if let Some(keep) = self.keep_expired {
            options = options.keep_expired(keep);
        }
        if let Some(strict) = self.strict_deadline {
            options = options.strict_deadline(strict);
        }
        backoff.initial_ms = self.backoff.map_or(backoff.initial_ms, millis);
        backoff.factor = self.backoff_factor.unwrap_or(backoff.factor);
        backoff.max_ms = self.backoff_max.map_or(backoff.max_ms, millis);
        backoff.jitter_percent = self.backoff_jitter.unwrap_or(backoff.jitter_percent);
        options.backoff(backoff)
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        let durations = [self.visibility, self.max_visibility, self.backoff, self.backoff_max];
        durations.iter().all(Option::is_none)
            && self.max_attempts.is_none()
            && self.max_in_flight.is_none()
            && self.backoff_factor.is_none()
            && self.backoff_jitter.is_none()
            && self.dead_letter.is_none()
            && !self.no_dead_letter
            && self.keep_expired.is_none()
            && self.strict_deadline.is_none()
    }
}

/// A number, or no limit.
#[derive(Clone, Copy)]
pub struct Limit(pub Option<u32>);

pub fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    text.parse().map(|n| Limit(Some(n))).map_err(|_| "give a number, or \"none\"".to_owned())
}

fn span(text: &str) -> Result<SignedDuration, String> {
    let bad = || format!("{text:?} is no duration; give one like 500ms, 30s, 5m, 12h or 7d");
    let span: Span = text.parse().map_err(|_| bad())?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| bad())
}

/// A duration like `500ms`, `30s`, `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    Duration::try_from(span(text)?).map_err(|_| format!("{text:?} is negative"))
}

/// A moment: RFC 3339, Unix milliseconds, or relative to now as `-10m`.
pub fn time(text: &str) -> Result<Timestamp, String> {
    let bad = || format!("{text:?} is no time; give RFC 3339, Unix milliseconds, or one relative to now like -10m");
    if let Ok(millis) = text.parse() {
        return Ok(Timestamp::from_millis(millis));
    }
    let moment = if text.starts_with(['-', '+']) {
        jiff::Timestamp::now().checked_add(span(text)?).map_err(|_| bad())?
    } else {
        text.parse().map_err(|_| bad())?
    };
    u64::try_from(moment.as_millisecond()).map(Timestamp::from_millis).map_err(|_| bad())
}

/// `NAME=VALUE`.
pub fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not of the form NAME=VALUE")),
    }
}

pub fn dead_reason(text: &str) -> Result<DeadReason, String> {
    let all = [DeadReason::MaxAttempts, DeadReason::Rejected, DeadReason::Expired, DeadReason::Unreadable];
    all.into_iter()
        .find(|reason| reason.as_str() == text)
        .ok_or_else(|| format!("give one of {}", all.map(DeadReason::as_str).join(", ")))
}

pub fn state(text: &str) -> Result<State, String> {
    text.parse().map_err(|error: reappear::Error| error.to_string())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units_and_no_sign() {
        let millis = |text| duration(text).map(|d| d.as_millis());
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("30s"), Ok(30_000));
        assert_eq!(millis("5m"), Ok(300_000));
        assert_eq!(millis("12h"), Ok(43_200_000));
        assert_eq!(millis("7d"), Ok(604_800_000));
        assert_eq!(millis("1h30m"), Ok(5_400_000));
        for bad in ["", "30", "-5s", "5 parsecs"] {
            assert!(millis(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn times_are_read_in_three_forms() {
        assert_eq!(time("1700000000123").unwrap().as_millis(), 1_700_000_000_123);
        assert_eq!(time("2023-11-14T22:13:20.123Z").unwrap().as_millis(), 1_700_000_000_123);
        let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
        let then = time("-10m").unwrap().as_millis();
        assert!(then <= now - 599_000 && then >= now - 601_000);
        for bad in ["", "yesterday", "-", "2023-13-01T00:00:00Z"] {
            assert!(time(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_attribute_has_a_name() {
        assert_eq!(attribute("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(attribute("=b").is_err() && attribute("ab").is_err());
    }
}
