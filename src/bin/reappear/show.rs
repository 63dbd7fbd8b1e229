//! Messages and records as text and as JSON, the same fields under the same names in every command.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use reappear::inspect::{LogRecord, QueueSettings};
use reappear::{AttributeValue, Attributes, DeadLetter};

use crate::args::{Bodies, BodyMode, TimeFormat};
use crate::output::{Json, escape, quote, span, time};

/// Bytes of a body that are shown in a line of text unless told otherwise.
const TEXT_BODY_LEN: usize = 256;

/// A body as it is printed: its text, how it is encoded, and how much of it there is.
struct Shown {
    text: String,
    encoding: &'static str,
    is_cut: bool,
}

fn shown(body: &[u8], mode: BodyMode, max: usize) -> Option<Shown> {
    let cut = body.get(..max).unwrap_or(body);
    let is_cut = cut.len() < body.len();
    let (text, encoding) = match mode {
        BodyMode::None | BodyMode::Len => return None,
        BodyMode::Hex => (cut.iter().map(|byte| format!("{byte:02x}")).collect(), "hex"),
        BodyMode::Base64 => (BASE64.encode(cut), "base64"),
        BodyMode::Utf8 => (String::from_utf8_lossy(cut).into_owned(), "utf8"),
        BodyMode::Auto if std::str::from_utf8(body).is_ok() => (whole_chars(cut), "utf8"),
        BodyMode::Auto => (BASE64.encode(cut), "base64"),
    };
    Some(Shown { text, encoding, is_cut })
}

/// Text that was cut at some byte, without the part of a character at its end.
fn whole_chars(cut: &[u8]) -> String {
    let end = std::str::from_utf8(cut).map_or_else(|error| error.valid_up_to(), str::len);
    String::from_utf8_lossy(cut.get(..end).unwrap_or_default()).into_owned()
}

/// Puts `body_len`, and `body` with `body_encoding` as asked for.
pub fn put_body(json: &mut Json, body: &[u8], bodies: &Bodies) {
    if bodies.body == BodyMode::None {
        return;
    }
    json.put("body_len", &body.len());
    if let Some(shown) = shown(body, bodies.body, bodies.max_body.unwrap_or(usize::MAX)) {
        json.put("body", &shown.text);
        json.put("body_encoding", shown.encoding);
        if shown.is_cut {
            json.put("body_cut", &true);
        }
    }
}

/// A body in a line of text; empty when none is asked for.
pub fn body_text(body: &[u8], bodies: &Bodies) -> String {
    match shown(body, bodies.body, bodies.max_body.unwrap_or(TEXT_BODY_LEN)) {
        None if bodies.body == BodyMode::Len => format!("{} bytes", body.len()),
        None => String::new(),
        Some(shown) => {
            let text = if shown.encoding == "utf8" {
                quote(&shown.text)
            } else {
                format!("{}:{}", shown.encoding, shown.text)
            };
            if shown.is_cut { format!("{text}… ({} bytes)", body.len()) } else { text }
        }
    }
}

/// Puts `attributes`: text as a string, bytes as `{"base64": …}`. Nothing when there are none.
pub fn put_attributes(json: &mut Json, attributes: &Attributes) {
    if attributes.is_empty() {
        return;
    }
    let mut object = Json::object();
    for (name, value) in attributes {
        match value {
            AttributeValue::String(text) => object.put(name, text),
            AttributeValue::Bytes(bytes) => {
                let mut encoded = Json::object();
                encoded.put("base64", &BASE64.encode(bytes));
                object.nest(name, encoded);
            }
        }
    }
    json.nest("attributes", object);
}

/// Attributes in a line of text, each with a space before it.
pub fn attributes_text(attributes: &Attributes) -> String {
    let value = |value: &AttributeValue| match value {
        AttributeValue::String(text) => quote(text),
        AttributeValue::Bytes(bytes) => format!("base64:{}", BASE64.encode(bytes)),
    };
    attributes.iter().map(|(name, v)| format!(" attr.{}={}", escape(name), value(v))).collect()
}

pub fn put_dead(json: &mut Json, dead: Option<&DeadLetter>) {
    if let Some(dead) = dead {
        let mut object = Json::object();
        object.put("reason", dead.reason.as_str());
        object.time("at", Some(dead.at));
        object.put("origin", &dead.origin);
        object.put("attempts", &dead.attempts);
        object.some("error", dead.error.as_deref());
        json.nest("dead", object);
    }
}

/// A queue's options as an object.
pub fn options_json(options: &QueueSettings) -> Json {
    let mut json = Json::object();
    json.millis("visibility_timeout", Some(options.visibility_timeout));
    json.millis("max_visibility_timeout", Some(options.max_visibility_timeout));
    json.put("max_attempts", &options.max_attempts);
    let mut backoff = Json::object();
    backoff.put("initial", &options.backoff.initial_ms);
    backoff.put("factor", &options.backoff.factor);
    backoff.put("max", &options.backoff.max_ms);
    backoff.put("jitter_percent", &options.backoff.jitter_percent);
    json.nest("backoff", backoff);
    json.put("max_in_flight", &options.max_in_flight);
    json.put("dead_letter", &options.dead_letter);
    json.put("keep_expired", &options.keep_expired);
    json.put("strict_deadline", &options.strict_deadline);
    json
}

/// A queue's options in words, as pairs of name and value.
pub fn options_text(options: &QueueSettings) -> Vec<(&'static str, String)> {
    let backoff = &options.backoff;
    let limit = |limit: Option<u32>| limit.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let millis = |millis| span(std::time::Duration::from_millis(millis));
    vec![
        ("visibility_timeout", span(options.visibility_timeout)),
        ("max_visibility_timeout", span(options.max_visibility_timeout)),
        ("max_attempts", limit(options.max_attempts)),
        (
            "backoff",
            format!(
                "{} ×{} up to {}, ±{} %",
                millis(backoff.initial_ms),
                backoff.factor,
                millis(backoff.max_ms),
                backoff.jitter_percent
            ),
        ),
        ("max_in_flight", limit(options.max_in_flight)),
        ("dead_letter", options.dead_letter.as_ref().map_or_else(|| "none".to_owned(), |name| escape(name.as_str()))),
        ("keep_expired", options.keep_expired.to_string()),
        ("strict_deadline", options.strict_deadline.to_string()),
    ]
}

/// A record of the log as a line of JSON.
pub fn record_json(record: &LogRecord, bodies: &Bodies) -> String {
    let f = &record.fields;
    let mut json = Json::line();
    json.put("type", "record");
    json.put("lsn", &record.lsn);
    json.put("segment", &record.segment);
    json.put("offset", &record.offset);
    json.put("len", &record.len);
    json.put("kind", record.kind);
    if record.undecoded.is_some() {
        json.some("kind_code", record.kind_code);
    }
    json.time("time", Some(record.time));
    json.put("durable_lsn", &record.durable_lsn);
    json.put("crc_ok", &record.crc_ok);
    json.some("undecoded", record.undecoded.as_deref());
    json.some("queue", record.queue_name.as_ref());
    json.some("queue_id", record.queue);
    json.some("id", record.id);
    json.some("epoch", f.epoch);
    json.some("receive_count", f.receive_count);
    json.some("attempts", f.attempts);
    json.some("priority", f.priority);
    json.time("sent_at", f.sent_at);
    json.time("visible_at", f.visible_at);
    json.time("expires_at", f.expires_at);
    json.time("first_received_at", f.first_received_at);
    json.time("last_received_at", f.last_received_at);
    json.some("error", f.error.as_deref());
    put_dead(&mut json, f.dead.as_ref());
    json.some("to_queue", f.to_queue_name.as_ref());
    json.some("to_queue_id", f.to_queue);
    json.some("phase", f.phase);
    json.some("states", f.states.as_ref());
    json.some("name", f.name.as_deref());
    json.some("paused", f.paused);
    if let Some(options) = &f.options {
        json.nest("options", options_json(options));
    }
    if matches!(record.kind, "sent" | "relocated") && record.undecoded.is_none() {
        put_attributes(&mut json, &record.attributes);
        put_body(&mut json, &record.body, bodies);
    }
    json.end()
}

/// A record of the log as a line of text.
pub fn record_text(record: &LogRecord, bodies: &Bodies, format: TimeFormat) -> String {
    let f = &record.fields;
    let mut line = format!(
        "{:>8}  {}  {:>4}+{:<9} {:>6}  {:<16}",
        record.lsn,
        time(record.time, format),
        record.segment,
        record.offset,
        record.len,
        record.kind
    );
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(" {name}={value}"));
        }
    };
    let queue_name = |name: &Option<reappear::QueueName>, id: Option<u64>| {
        name.as_ref().map(|name| quote(name.as_str())).or_else(|| id.map(|id| format!("#{id}")))
    };
    put("queue", queue_name(&record.queue_name, record.queue));
    put("id", record.id.map(|id| id.to_string()));
    put("epoch", f.epoch.map(|n| n.to_string()));
    put("receive_count", f.receive_count.map(|n| n.to_string()));
    put("attempts", f.attempts.map(|n| n.to_string()));
    put("priority", f.priority.filter(|n| *n != 0).map(|n| n.to_string()));
    put("phase", f.phase.map(str::to_owned));
    put("visible_at", f.visible_at.filter(|at| Some(*at) != f.sent_at).map(|at| time(at, format)));
    put("expires_at", f.expires_at.map(|at| time(at, format)));
    put("to_queue", queue_name(&f.to_queue_name, f.to_queue));
    put("reason", f.dead.as_ref().map(|dead| dead.reason.to_string()));
    put("origin", f.dead.as_ref().map(|dead| quote(dead.origin.as_str())));
    put("error", f.error.as_deref().map(quote));
    put("states", f.states.as_ref().map(|states| states.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(",")));
    put("paused", f.paused.map(|paused| paused.to_string()));
    if let Some(options) = &f.options {
        for (name, value) in options_text(options) {
            put(name, Some(value));
        }
    }
    put("undecoded", record.undecoded.as_deref().map(quote));
    put("crc_ok", (!record.crc_ok).then(|| "false".to_owned()));
    line.push_str(&attributes_text(&record.attributes));
    if matches!(record.kind, "sent" | "relocated") && record.undecoded.is_none() && bodies.body != BodyMode::None {
        line.push_str(&format!(" body={}", body_text(&record.body, bodies)));
    }
    line
}
