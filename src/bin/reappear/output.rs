//! Printing: what comes from messages is data and must not steer a terminal, whoever reads it.
//!
//! Results go to standard output, everything else to standard error. People at a terminal get tables,
//! everybody else plain aligned text or JSON.

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, presets};
use reappear::Timestamp;
use serde::Serialize;

use crate::args::TimeFormat;

/// Standard output.
pub struct Out {
    to: BufWriter<StdoutLock<'static>>,
    is_terminal: bool,
}

impl Out {
    pub fn new() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { to: BufWriter::new(stdout.lock()), is_terminal }
    }

    /// Prints a line, which must be escaped already.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        self.to.write_all(line.as_bytes())?;
        self.to.write_all(b"\n")
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    pub fn table(&mut self, table: &Table) -> io::Result<()> {
        let text = if self.is_terminal { table.for_people() } else { table.plain() };
        self.to.write_all(text.as_bytes())
    }
}

/// Tells the person something, on standard error.
pub fn note(text: &str) {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "reappear: {}", escape(text));
}

/// Whether a character could change what a terminal shows elsewhere, or hide what is there: control
/// characters, and those that reorder or join text without being seen.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text with everything that could disturb a terminal written as an escape, and the backslash with
/// it, so that no two texts look alike.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_unsafe(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// The same in quotation marks.
pub fn quote(text: &str) -> String {
    format!("\"{}\"", escape(text).replace('"', "\\\""))
}

/// A JSON object whose fields stay in the order in which they were put.
pub struct Json(String);

impl Json {
    /// A line of output: begins with the version of the schema.
    pub fn line() -> Self {
        let mut json = Self::object();
        json.put("v", &1);
        json
    }

    /// An object inside of another one.
    pub fn object() -> Self {
        Self("{".to_owned())
    }

    pub fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        // Strings, numbers, lists of them: none can be refused.
        self.raw(key, &serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()));
    }

    /// Puts the value if there is one.
    pub fn some<T: Serialize>(&mut self, key: &str, value: Option<T>) {
        if let Some(value) = value {
            self.put(key, &value);
        }
    }

    pub fn time(&mut self, key: &str, at: Option<Timestamp>) {
        self.some(key, at.map(Timestamp::as_millis));
    }

    /// Puts a duration in milliseconds.
    pub fn millis(&mut self, key: &str, duration: Option<Duration>) {
        self.some(key, duration.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)));
    }

    pub fn nest(&mut self, key: &str, object: Self) {
        self.raw(key, &object.end());
    }

    fn raw(&mut self, key: &str, value: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&serde_json::to_string(key).unwrap_or_default());
        self.0.push(':');
        self.0.push_str(value);
    }

    /// The text. JSON allows raw characters that can disturb a terminal; here they are escaped too.
    pub fn end(mut self) -> String {
        self.0.push('}');
        if !self.0.contains(is_unsafe) {
            return self.0;
        }
        let mut out = String::with_capacity(self.0.len());
        for c in self.0.chars() {
            if is_unsafe(c) {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            } else {
                out.push(c);
            }
        }
        out
    }
}

/// Rows under a heading. Cells are escaped when they are added.
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| escape(&cell)).collect());
    }

    /// Whether every cell of a column is a number, so that it stands better at the right.
    fn is_number(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.all(|cell| cell == "-" || cell.bytes().all(|b| b.is_ascii_digit()))
    }

    fn for_people(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(&self.head);
        table.add_rows(&self.rows);
        for (number, column) in table.column_iter_mut().enumerate() {
            if self.is_number(number) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        format!("{table}\n")
    }

    fn plain(&self) -> String {
        let head: Vec<String> = self.head.iter().map(|&name| name.to_owned()).collect();
        let lines = || std::iter::once(&head).chain(&self.rows);
        let width = |column: usize| lines().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in lines() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
                let parts = if self.is_number(column) { [&gap, cell] } else { [cell, &gap] };
                line.extend(parts.map(String::as_str));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// A moment as text.
pub fn time(at: Timestamp, format: TimeFormat) -> String {
    let millis = at.as_millis();
    match format {
        TimeFormat::UnixMs => millis.to_string(),
        TimeFormat::Rfc3339 => match i64::try_from(millis).map(jiff::Timestamp::from_millisecond) {
            Ok(Ok(moment)) => format!("{moment:.3}"),
            // Beyond the year 9999.
            _ => millis.to_string(),
        },
        TimeFormat::Relative => {
            let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
            match now.checked_sub(millis) {
                Some(ago) => format!("{} ago", span(Duration::from_millis(ago))),
                None => format!("in {}", span(Duration::from_millis(millis - now))),
            }
        }
    }
}

/// A duration in its two largest units.
pub fn span(duration: Duration) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let mut rest = duration.as_millis();
    let mut parts = Vec::new();
    for (len, name) in units {
        if rest >= len {
            parts.push(format!("{}{name}", rest / len));
            rest %= len;
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_is_left_in_text() {
        let nasty = "a\u{1b}[2J\u{9b}31m\u{7}\u{8}\r\n\t\0\u{7f}\u{202e}\u{2066}\u{200b}\u{feff}z";
        let shown = escape(nasty);
        assert!(!shown.contains(is_unsafe), "{shown:?}");
        assert_eq!(escape("\u{1b}[0m\n"), "\\u{1b}[0m\\n");
    }

    #[test]
    fn what_is_harmless_is_shown_as_it_is() {
        assert_eq!(escape("größe 大きさ ✓ \"x\""), "größe 大きさ ✓ \"x\"");
        assert_eq!(quote("say \"hi\""), "\"say \\\"hi\\\"\"");
    }

    #[test]
    fn two_different_texts_never_look_alike() {
        assert_ne!(escape("\\n"), escape("\n"));
        assert_ne!(quote("a\\"), quote("a"));
    }

    #[test]
    fn json_keeps_its_order_and_steers_no_terminal() {
        let mut json = Json::line();
        json.put("z", "\u{9b}31m\u{1b}\u{202e}\u{e0001}");
        json.some("none", None::<u8>);
        json.put("a", &2);
        let text = json.end();
        assert!(text.starts_with("{\"v\":1,\"z\":"), "{text}");
        assert!(!text.contains(is_unsafe), "{text:?}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["z"], "\u{9b}31m\u{1b}\u{202e}\u{e0001}");
        assert_eq!(value["a"], 2);
    }

    #[test]
    fn columns_are_aligned_and_numbers_stand_at_the_right() {
        let mut table = Table::new(&["name", "ready"]);
        table.row(["jobs".to_owned(), "5".to_owned()]);
        table.row(["a\u{1b}b".to_owned(), "12345".to_owned()]);
        assert_eq!(table.plain(), "name     ready\njobs         5\na\\u{1b}b  12345\n");
    }

    #[test]
    fn durations_are_told_in_two_units() {
        let told = |millis| span(Duration::from_millis(millis));
        assert_eq!(told(0), "0s");
        assert_eq!(told(1500), "1s 500ms");
        assert_eq!(told(3_600_000), "1h");
        assert_eq!(told(90_061_001), "1d 1h");
    }
}
