//! Which records `dump` shows.

use reappear::inspect::LogRecord;
use reappear::{AttributeValue, MessageId, Timestamp};
use regex::bytes::Regex;

use crate::args::{attribute, time};

/// Everything that is given must hold.
#[derive(clap::Args)]
pub struct Filter {
    /// Only records about queues whose name matches; * stands for any text, ? for any character
    #[arg(long, value_name = "GLOB")]
    queue: Option<String>,
    /// Only records about this message; may be given several times
    #[arg(long, value_name = "ID")]
    id: Vec<MessageId>,
    /// Only records of this kind, as printed; may be given several times
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    /// Only records from this LSN on
    #[arg(long, value_name = "LSN")]
    from: Option<u64>,
    /// Only records up to this LSN
    #[arg(long, value_name = "LSN")]
    to: Option<u64>,
    /// Only records written at this time or later
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    since: Option<Timestamp>,
    /// Only records written at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    until: Option<Timestamp>,
    /// Only messages with this attribute (in the records that carry it); may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    attr: Vec<(String, String)>,
    /// Only records whose body, attributes or error text match this regular expression
    #[arg(long, value_name = "REGEX")]
    grep: Option<Regex>,
}

impl Filter {
    pub fn matches(&self, record: &LogRecord) -> bool {
        let name = || record.queue_name.as_ref().map_or("", |name| name.as_str());
        self.from.is_none_or(|from| record.lsn.get() >= from)
            && self.to.is_none_or(|to| record.lsn.get() <= to)
            && self.since.is_none_or(|since| record.time >= since)
            && self.until.is_none_or(|until| record.time <= until)
            && (self.kind.is_empty() || self.kind.iter().any(|kind| kind == record.kind))
            && (self.id.is_empty() || record.id.is_some_and(|id| self.id.contains(&id)))
            && self.queue.as_ref().is_none_or(|glob| record.queue.is_some() && is_like(name(), glob))
            && self
                .attr
                .iter()
                .all(|(name, value)| record.attributes.get(name).is_some_and(|v| bytes(v) == value.as_bytes()))
            && self.grep.as_ref().is_none_or(|regex| contains(record, regex))
    }

    /// Whether no record behind this one can match.
    pub fn is_past(&self, record: &LogRecord) -> bool {
        self.to.is_some_and(|to| record.lsn.get() >= to) || self.until.is_some_and(|until| record.time > until)
    }
}

fn bytes(value: &AttributeValue) -> &[u8] {
    match value {
        AttributeValue::String(text) => text.as_bytes(),
        AttributeValue::Bytes(bytes) => bytes,
    }
}

fn contains(record: &LogRecord, regex: &Regex) -> bool {
    regex.is_match(&record.body)
        || record.fields.error.as_ref().is_some_and(|error| regex.is_match(error.as_bytes()))
        || record.attributes.iter().any(|(name, value)| regex.is_match(name.as_bytes()) || regex.is_match(bytes(value)))
}

/// Whether `text` matches `glob`, whole. One star is remembered at a time: the newest, because what an
/// earlier one could still take, the newest can take as well.
fn is_like(text: &str, glob: &str) -> bool {
    let (text, glob): (Vec<char>, Vec<char>) = (text.chars().collect(), glob.chars().collect());
    let (mut t, mut g, mut star) = (0, 0, None);
    while let Some(c) = text.get(t) {
        match glob.get(g) {
            Some('*') => {
                star = Some((t, g));
                g += 1;
            }
            Some(p) if *p == '?' || p == c => (t, g) = (t + 1, g + 1),
            _ => {
                let Some((taken, at)) = star else { return false };
                star = Some((taken + 1, at));
                (t, g) = (taken + 1, at + 1);
            }
        }
    }
    glob.get(g..).unwrap_or_default().iter().all(|p| *p == '*')
}

#[cfg(test)]
mod tests {
    use super::is_like;

    #[test]
    fn a_glob_matches_the_whole_name() {
        for (text, glob) in
            [("jobs", "jobs"), ("jobs", "*"), ("jobs", "j*s"), ("jobs", "j??s"), ("a*b", "a*b"), ("", "*")]
        {
            assert!(is_like(text, glob), "{text} {glob}");
        }
        for (text, glob) in [("jobs", "job"), ("jobs", "*x"), ("jobs", "?"), ("", "?"), ("abcabd", "a*abc")] {
            assert!(!is_like(text, glob), "{text} {glob}");
        }
        assert!(is_like(&"a".repeat(10_000), "*a*a*a*a*a*"));
        assert!(!is_like(&"a".repeat(10_000), "*a*a*a*a*b"));
    }
}
