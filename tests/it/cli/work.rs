//! `work`: what the command gets, and what its end means for the message.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Bench, TOOL, code, parse};

impl Bench {
    /// Works the queue `q` until it is empty with a shell script; one line for each message.
    fn worked(&self, flags: &[&str], script: &str) -> Vec<Value> {
        let rest = [&["q", "--until-empty", "--json"], flags, &["--", "sh", "-c", script]].concat();
        parse(&self.ok("work", &rest))
    }
}

#[test]
fn the_exit_code_decides_what_becomes_of_the_message() {
    for (exit, result, state, attempts) in
        [(1, "nacked", "delayed", 1), (65, "rejected", "dead", 1), (42, "nacked", "delayed", 1)]
    {
        let bench = Bench::new();
        bench.ok("send", &["q", "x"]);
        let lines = bench.worked(&[], &format!("echo 'it broke' >&2; exit {exit}"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!((&lines[0]["result"], &lines[0]["exit_code"]), (&result.into(), &exit.into()));
        let message = bench.only("q");
        assert_eq!((&message["state"], &message["attempts"]), (&state.into(), &attempts.into()), "exit code {exit}");
        assert_eq!(message["last_error"], "it broke");
    }
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    assert_eq!(bench.worked(&[], "exit 0")[0]["result"], "acked");
    assert_eq!(bench.code("peek", &["q"]), 1, "it is gone");
    assert_eq!(bench.code("work", &["q", "--until-empty", "--", "true"]), 1, "there is nothing to do");
}

#[test]
fn a_released_message_is_handed_out_again_with_its_attempt_refunded() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    let lines = bench.worked(&[], "[ $REAPPEAR_RECEIVE_COUNT -ge 3 ] || exit 75");
    let results: Vec<&Value> = lines.iter().map(|line| &line["result"]).collect();
    assert_eq!(results, ["released", "released", "acked"]);
    assert!(lines.iter().all(|line| line["attempts"] == 1), "{lines:?}");
}

#[test]
fn the_command_gets_the_body_and_the_facts() {
    let bench = Bench::new();
    bench.piped("send", &["q", "--file", "-", "--attr", "trace-id=a b"], b"\x00\xffbody\n");
    let dir = bench.dir.path().join("seen");
    let script = format!(
        "cat > {0}; echo $REAPPEAR_QUEUE $REAPPEAR_RECEIVE_COUNT $REAPPEAR_ATTEMPTS $REAPPEAR_ATTR_TRACE_ID >> {0}; \
         echo $REAPPEAR_ID > {0}.id",
        dir.display()
    );
    let lines = bench.worked(&[], &script);
    assert_eq!(std::fs::read(&dir).unwrap(), b"\x00\xffbody\nq 1 1 a b\n");
    let id = std::fs::read_to_string(format!("{}.id", dir.display())).unwrap();
    assert_eq!(id.trim(), lines[0]["id"].to_string());
}

#[test]
fn a_command_that_takes_too_long_is_killed_with_what_it_started() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    let lines = bench.worked(&["--timeout", "100ms"], "tail -f /dev/null; exit 0");
    assert_eq!(lines[0]["result"], "nacked");
    assert!(bench.only("q")["last_error"].as_str().unwrap().contains("longer than 100ms"));
}

#[test]
fn the_last_attempt_is_rejected_where_the_caller_says_so() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    assert_eq!(bench.worked(&["--max-attempts", "1"], "exit 1")[0]["result"], "rejected");
    assert_eq!(bench.only("q")["state"], "dead");
}

#[test]
fn a_message_stays_hidden_for_as_long_as_its_command_runs() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    // The command ends when it sees its own extension in the log.
    let script =
        format!("until {TOOL} dump {} --kind extended --count >/dev/null; do :; done", bench.store().display());
    assert_eq!(bench.worked(&["--visibility", "300ms"], &script)[0]["result"], "acked");
}

#[test]
fn several_commands_run_at_a_time_and_no_message_is_done_twice() {
    let bench = Bench::new();
    let input: String = (0..20).map(|n| format!("{n}\n")).collect();
    bench.piped("send", &["q", "--lines", "-"], input.as_bytes());
    let lines = bench.worked(&["--concurrency", "4"], "cat");
    let mut ids: Vec<u64> = lines.iter().map(|line| line["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((lines.len(), ids.len()), (20, 20));
}

#[test]
fn a_command_that_cannot_be_started_leaves_the_message_as_it_was() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    let output = bench.run("work", &["q", "--until-empty", "--", "there-is-no-such-program"]);
    assert_eq!(code(&output), 6, "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("there-is-no-such-program"));
    assert_eq!((&bench.only("q")["state"], &bench.only("q")["attempts"]), (&"ready".into(), &0.into()));
}

#[test]
fn a_signal_ends_the_work_and_gives_the_message_back() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    let mut command = bench.command("work", &["q", "--grace", "0s", "--", "sh", "-c", "echo begun; tail -f /dev/null"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let message = bench.only("q");
    assert_eq!((&message["state"], &message["attempts"]), (&"ready".into(), &0.into()));
    assert_eq!(message["receive_count"], 1);
}

#[test]
fn an_idle_worker_ends_at_a_signal() {
    let bench = Bench::new();
    bench.ok("create", &["q"]);
    bench.ok("send", &["q", "x"]);
    let mut child = bench.command("work", &["q", "--", "echo", "done"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(bench.code("peek", &["q"]), 1, "its work was finished and settled");
}
