//! The tool, driven as a program: what each command does to a store, what it prints, how it ends.

mod inside;
mod work;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use reappear::{Options, Store};
use serde_json::Value;

const TOOL: &str = env!("CARGO_BIN_EXE_reappear");

/// A directory for one store, and the tool in front of it.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("jobs")
    }

    /// A command line: the command, the store, the rest.
    fn command(&self, command: &str, rest: &[&str]) -> Command {
        let mut process = Command::new(TOOL);
        process.arg(command).arg(self.store()).args(rest).stdin(Stdio::null());
        process
    }

    fn run(&self, command: &str, rest: &[&str]) -> Output {
        self.command(command, rest).output().unwrap()
    }

    /// Runs what must succeed; returns what it printed.
    fn ok(&self, command: &str, rest: &[&str]) -> String {
        let output = self.run(command, rest);
        assert_eq!(code(&output), 0, "{command} {rest:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same with `--json`, each line parsed.
    fn json(&self, command: &str, rest: &[&str]) -> Vec<Value> {
        parse(&self.ok(command, &[rest, &["--json"]].concat()))
    }

    fn code(&self, command: &str, rest: &[&str]) -> i32 {
        code(&self.run(command, rest))
    }

    fn piped(&self, command: &str, rest: &[&str], input: &[u8]) -> Output {
        let mut process = self.command(command, rest);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Receives one message; its receipt.
    fn receipt(&self, queue: &str) -> String {
        self.json("receive", &[queue])[0]["receipt"].as_str().unwrap().to_owned()
    }

    /// The one message of a queue, as `peek` shows it.
    fn only(&self, queue: &str) -> Value {
        let mut all = self.json("peek", &[queue]);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn open(&self) -> Store {
        pollster::block_on(Store::open_with(self.store(), Options::new().segment_len(8 * 1024).max_amplification(100)))
            .unwrap()
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn parse(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| {
            assert!(line.starts_with("{\"v\":1,"), "{line}");
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        })
        .collect()
}

/// Every file below `dir` with its bytes and the time it was changed.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let entries = walkdir::WalkDir::new(dir).sort_by_file_name().into_iter().map(Result::unwrap);
    entries
        .map(|entry| {
            let bytes = if entry.file_type().is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
            (entry.path().to_owned(), bytes, entry.metadata().unwrap().modified().unwrap())
        })
        .collect()
}

#[test]
fn what_is_sent_is_received_with_everything_that_was_said_of_it() {
    let bench = Bench::new();
    let sent = bench.json("send", &["q", "cat.png", "--attr", "kind=photo", "--priority", "-3", "--ttl", "1d"]);
    let seen = &bench.json("receive", &["q", "--visibility", "5m"])[0];
    assert_eq!(seen["id"], sent[0]["id"]);
    assert_eq!((&seen["body"], &seen["body_encoding"]), (&Value::from("cat.png"), &Value::from("utf8")));
    assert_eq!(seen["attributes"]["kind"], "photo");
    assert_eq!(seen["priority"], -3);
    assert_eq!((&seen["receive_count"], &seen["attempts"], &seen["epoch"]), (&1.into(), &1.into(), &1.into()));
    assert!(seen["visible_at"].as_u64() > seen["first_received_at"].as_u64());
    assert_eq!(bench.code("receive", &["q"]), 1, "it is in flight");
}

#[test]
fn each_line_becomes_a_message_and_order_is_kept() {
    let bench = Bench::new();
    let input: String = (0..2500).map(|n| format!("line {n}\n")).collect();
    let output = bench.piped("send", &["q", "--lines", "-"], input.as_bytes());
    assert_eq!(code(&output), 0, "{output:?}");
    let ids: Vec<u64> = String::from_utf8(output.stdout).unwrap().lines().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids.len(), 2500);
    assert!(ids.is_sorted());
    let received = bench.json("receive", &["q", "--max", "1000", "--ack"]);
    assert_eq!(received.len(), 1000);
    assert_eq!((&received[0]["body"], &received[999]["body"]), (&"line 0".into(), &"line 999".into()));
    assert_eq!(bench.json("queues", &[])[0]["ready"], 1500);
    assert_eq!(code(&bench.piped("send", &["q", "--lines", "-"], b"")), 1, "no line is no message");
}

#[test]
fn a_body_is_read_from_a_file_byte_for_byte() {
    let bench = Bench::new();
    let output = bench.piped("send", &["q", "--file", "-"], b"\xff\x00\n");
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(bench.only("q")["body_encoding"], "base64");
    assert_eq!(bench.json("peek", &["q", "--body", "hex"])[0]["body"], "ff000a");
    let cut = &bench.json("peek", &["q", "--body", "hex", "--max-body", "1"])[0];
    assert_eq!((&cut["body"], &cut["body_cut"], &cut["body_len"]), (&"ff".into(), &true.into(), &3.into()));
    assert_eq!(bench.json("peek", &["q", "--body", "none"])[0].get("body_len"), None);
}

#[test]
fn each_settle_has_its_effect_and_refuses_a_second_time() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    let receipt = bench.receipt("q");
    assert_eq!(bench.json("extend", &[&receipt, "--by", "1h"])[0]["result"], "extended");
    assert_eq!(bench.json("release", &[&receipt])[0]["result"], "released");
    assert_eq!((&bench.only("q")["state"], &bench.only("q")["attempts"]), (&"ready".into(), &0.into()));

    let receipt = bench.receipt("q");
    bench.ok("nack", &[&receipt, "--delay", "0s", "--error", "upstream answered 503"]);
    assert_eq!(bench.only("q")["last_error"], "upstream answered 503");

    let receipt = bench.receipt("q");
    bench.ok("reject", &[&receipt, "--reason", "no such customer"]);
    assert_eq!(bench.only("q")["dead"]["reason"], "rejected");
    let refused = bench.run("ack", &[&receipt, "--json"]);
    assert_eq!(code(&refused), 1);
    assert_eq!(parse(std::str::from_utf8(&refused.stdout).unwrap())[0]["result"], "StaleReceipt");

    assert_eq!(bench.json("redrive", &["q", "--reason", "rejected"])[0]["redriven"], 1);
    let receipt = bench.receipt("q");
    assert_eq!(bench.ok("ack", &[&receipt]).trim(), format!("{} acked", bench_id(&receipt)).replace(' ', "  "));
    let again = bench.run("ack", &[&receipt]);
    assert_eq!(code(&again), 1);
    assert!(String::from_utf8(again.stdout).unwrap().contains("NotFound"));
    assert_eq!(bench.code("peek", &["q"]), 1);
}

fn bench_id(receipt: &str) -> String {
    receipt.parse::<reappear::Receipt>().unwrap().id().to_string()
}

#[test]
fn queues_are_created_configured_paused_and_deleted() {
    let bench = Bench::new();
    bench.ok("create", &["failed"]);
    bench.ok("create", &["q", "--visibility", "5m", "--backoff", "7s", "--dead-letter", "failed"]);
    assert_eq!(bench.code("create", &["q"]), 6, "it is there already");
    bench.ok("configure", &["q", "--max-attempts", "none", "--keep-expired", "true"]);
    let stats = &bench.json("stats", &["q"])[0];
    let options = &stats["options"];
    assert_eq!(options["visibility_timeout"], 300_000);
    assert_eq!(options["backoff"]["initial"], 7000, "what is not named stays");
    assert_eq!((&options["max_attempts"], &options["dead_letter"]), (&Value::Null, &"failed".into()));
    assert_eq!(options["keep_expired"], true);
    assert_eq!(bench.code("configure", &["q"]), 2, "nothing to change");
    assert_eq!(bench.code("configure", &["q", "--visibility", "0s"]), 2);

    bench.ok("pause", &["q"]);
    bench.ok("send", &["q", "x"]);
    assert_eq!(bench.json("stats", &["q"])[0]["paused"], true);
    assert_eq!(bench.code("receive", &["q"]), 1);
    bench.ok("resume", &["q"]);
    bench.ok("receive", &["q", "--ack"]);
    bench.ok("delete", &["q"]);
    assert_eq!(bench.code("stats", &["q"]), 1);
    assert_eq!(bench.json("queues", &[]).len(), 1);
}

#[test]
fn a_destructive_command_counts_first_and_needs_a_yes() {
    let bench = Bench::new();
    for n in 0..3 {
        bench.ok("send", &["q", &n.to_string()]);
    }
    bench.receipt("q");
    let before = contents(&bench.store());
    assert_eq!(bench.json("purge", &["q", "--dry-run"])[0]["removed"], 2);
    assert_eq!(bench.json("delete", &["q", "--force", "--dry-run"])[0]["removed"], 3);
    assert!(before == contents(&bench.store()), "a dry run changed something");

    let refused = bench.run("purge", &["q"]);
    assert_eq!(code(&refused), 2);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("2 messages") && told.contains("--yes"), "{told}");
    assert_eq!(bench.json("queues", &[])[0]["ready"], 2);

    assert_eq!(bench.json("purge", &["q", "--yes"])[0]["removed"], 2);
    assert_eq!(bench.code("purge", &["q", "--yes"]), 1, "what is in flight goes only if it is named");
    assert_eq!(bench.code("delete", &["q"]), 2, "it holds a message");
    assert_eq!(bench.code("delete", &["q", "--force"]), 2, "nobody said yes");
    assert_eq!(bench.json("delete", &["q", "--force", "--yes"])[0]["removed"], 1);
}

#[test]
fn a_store_in_use_is_read_and_not_written() {
    let bench = Bench::new();
    let store = bench.open();
    pollster::block_on(store.queue("q").unwrap().send("held")).unwrap();
    for (command, rest) in
        [("send", &["q", "x"][..]), ("receive", &["q"]), ("pause", &["q"]), ("purge", &["q", "--yes"])]
    {
        let output = bench.run(command, rest);
        assert_eq!(code(&output), 5, "{command}: {output:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(&std::process::id().to_string()), "the owner is not named: {told}");
    }
    assert_eq!(bench.only("q")["body"], "held");
    assert_eq!(bench.json("queues", &[])[0]["ready"], 1);
    assert_eq!(bench.json("stats", &[])[0]["messages"], 1);
    assert_eq!(bench.json("dump", &["--kind", "sent"]).len(), 1);
    pollster::block_on(store.close()).unwrap();
}

#[test]
fn wrong_usage_a_missing_store_and_a_missing_queue_end_differently() {
    let bench = Bench::new();
    for (command, rest) in
        [("peek", &["q"][..]), ("queues", &[]), ("dump", &[]), ("receive", &["q"]), ("history", &["1"])]
    {
        assert_eq!(bench.code(command, rest), 6, "{command}");
    }
    assert!(!bench.store().exists(), "a look created a store");
    assert_eq!(bench.code("ack", &["r1-nonsense"]), 2);
    assert_eq!(bench.code("send", &["q"]), 2);
    assert_eq!(bench.code("send", &["q", "a", "--file", "b"]), 2);
    assert_eq!(bench.code("send", &["q", "a", "--delay", "soon"]), 2);
    bench.ok("send", &["q", "x"]);
    for (command, rest) in
        [("peek", &["other"][..]), ("receive", &["other"]), ("pause", &["other"]), ("stats", &["other"])]
    {
        assert_eq!(bench.code(command, rest), 1, "{command}");
    }
    assert_eq!(bench.json("queues", &[]).len(), 1, "a look created a queue");
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let bench = Bench::new();
    let input: String = (0..5000).map(|n| format!("{n}\n")).collect();
    bench.piped("send", &["q", "--lines", "-"], input.as_bytes());
    let mut child = bench.command("dump", &["--json"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn every_command_has_help_with_examples() {
    let help = Command::new(TOOL).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: Vec<&str> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() >= 20, "{names:?}");
    let manual = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md")).unwrap();
    for name in names {
        let output = Command::new(TOOL).args([name, "--help"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Examples:"), "{name} has no examples");
        assert!(manual.contains(&format!("### `{name}`")), "docs/cli.md does not describe {name}");
        for flag in text.lines().filter_map(|line| line.trim_start().strip_prefix("--")) {
            let flag = flag.split([' ', ',']).next().unwrap();
            assert!(manual.contains(&format!("--{flag}")), "docs/cli.md does not name --{flag} of {name}");
        }
    }
}
