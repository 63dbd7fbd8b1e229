//! Looking into a store from outside: dump, history, and what a terminal must never see.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use reappear::inspect::{Item, Log, StoreState};
use reappear::{NewMessage, Store};
use serde_json::Value;

use super::{Bench, code, contents, parse};

fn kinds(records: &[Value]) -> Vec<&str> {
    records.iter().map(|record| record["kind"].as_str().unwrap()).collect()
}

/// A closed store with a life in it: sent, received, acked, several segments.
fn lived() -> Bench {
    let bench = Bench::new();
    let store = bench.open();
    pollster::block_on(async {
        let queue = store.queue("thumbs").unwrap();
        let other = store.queue("mails").unwrap();
        for n in 0..20 {
            queue.send(NewMessage::new(vec![b'a' + n; 600]).attribute("n", n.to_string())).await.unwrap();
            other.send(format!("customer={n}")).await.unwrap();
        }
        let job = queue.receive().one().await.unwrap().unwrap();
        job.extend(std::time::Duration::from_secs(100)).await.unwrap();
        job.ack().await.unwrap();
        store.close().await.unwrap();
    });
    bench
}

#[test]
fn dump_shows_every_record_once_in_order() {
    let bench = lived();
    let records = bench.json("dump", &[]);
    let lsns: Vec<u64> = records.iter().map(|record| record["lsn"].as_u64().unwrap()).collect();
    assert!(lsns.windows(2).all(|pair| pair[1] == pair[0] + 1), "{lsns:?}");
    assert!(records.iter().all(|record| record["crc_ok"] == true));
    assert!(records.iter().any(|record| record["segment"].as_u64() > Some(1)), "the test wants several segments");
    assert_eq!(kinds(&records).last(), Some(&"clean"));
    assert_eq!(bench.ok("dump", &[]).lines().count(), records.len());
    assert_eq!(bench.ok("dump", &["--count"]).trim(), records.len().to_string());
}

#[test]
fn dump_filters_by_each_of_its_filters() {
    let bench = lived();
    let count = |filter: &[&str]| {
        let output = bench.run("dump", &[filter, &["--count"]].concat());
        String::from_utf8(output.stdout).unwrap().trim().parse::<usize>().unwrap()
    };
    assert_eq!(count(&["--kind", "sent"]), 40);
    assert_eq!(count(&["--kind", "sent", "--queue", "th*"]), 20);
    assert_eq!(count(&["--kind", "extended", "--kind", "acked"]), 2);
    assert_eq!(count(&["--attr", "n=7"]), 1);
    assert_eq!(count(&["--grep", "customer=1[0-4]$"]), 5);
    assert_eq!(count(&["--from", "3", "--to", "7"]), 5);
    assert_eq!(count(&["--since", "-1h", "--kind", "acked"]), 1);
    assert_eq!(count(&["--until", "-1h"]), 0);
    assert_eq!(bench.code("dump", &["--until", "-1h"]), 1, "nothing matched");
    let newest = bench.json("dump", &["--kind", "sent", "--reverse", "--limit", "2"]);
    assert_eq!((&newest[0]["body"], &newest[1]["attributes"]["n"]), (&"customer=19".into(), &"19".into()));
    assert_eq!(bench.json("dump", &["--limit", "3"]).len(), 3);
}

#[test]
fn history_tells_a_message_s_life_and_its_end() {
    let bench = Bench::new();
    bench.ok("send", &["q", "x"]);
    let id = bench.only("q")["id"].to_string();
    let receipt = bench.receipt("q");
    bench.ok("nack", &[&receipt, "--delay", "0s"]);
    bench.ok("purge", &["q", "--yes"]);
    bench.ok("send", &["q", "another"]);
    bench.ok("purge", &["q", "--yes"]);
    let life = bench.json("history", &[&id]);
    assert_eq!(kinds(&life), ["sent", "received", "nacked", "purged"]);
    assert_eq!(bench.code("history", &["999999"]), 1);
    pollster::block_on(async {
        let store = Store::open(bench.store()).await.unwrap();
        let life = store.history(id.parse().unwrap()).await.unwrap();
        assert_eq!(life.len(), 4);
        assert_eq!((life[0].body.as_slice(), life[1].fields.attempts), (b"x".as_slice(), Some(1)));
        store.close().await.unwrap();
    });
}

#[test]
fn stats_tell_where_the_bytes_are_and_what_keeps_them() {
    let bench = lived();
    let stats = bench.json("stats", &[]).remove(0);
    let number = |key: &str| stats[key].as_u64().unwrap_or_else(|| panic!("{key}: {stats}"));
    assert_eq!(number("live_len") + number("dead_len"), number("records_len"));
    assert!(number("segments") > 1 && number("live_len") > 40 * 100 && number("index_len") > 0);
    let on_disk: u64 = contents(&bench.store().join("log")).iter().map(|(_, bytes, _)| bytes.len() as u64).sum();
    assert_eq!(number("log_len_on_disk") + number("reserve_len"), on_disk);
    let kept = stats["oldest_segment_kept_for"].as_str().unwrap();
    assert!(kept.starts_with("message ") && kept.contains("in queue"), "{kept}");
}

#[test]
fn rebuild_makes_the_index_anew_and_changes_nothing_else() {
    let bench = lived();
    let before = bench.ok("peek", &["thumbs", "--max", "100"]);
    let rebuilt = bench.json("rebuild", &[]).remove(0);
    assert_eq!(rebuilt["messages"], 39);
    assert!(bench.ok("rebuild", &[]).contains("39 messages"));
    assert_eq!(bench.ok("peek", &["thumbs", "--max", "100"]), before);
    std::fs::remove_dir_all(bench.store().join("index")).unwrap();
    assert!(bench.ok("rebuild", &[]).contains("39 messages"));
    assert_eq!(Bench::new().code("rebuild", &[]), 6, "no store");
}

#[test]
fn looking_leaves_every_byte_and_every_time_as_it_was() {
    let bench = lived();
    let before = contents(&bench.store());
    for (command, rest) in [
        ("dump", &[][..]),
        ("queues", &[]),
        ("stats", &[]),
        ("stats", &["thumbs"]),
        ("peek", &["mails"]),
        ("history", &["5"]),
    ] {
        bench.ok(command, rest);
    }
    assert!(before == contents(&bench.store()));
}

#[test]
fn following_shows_what_is_written_afterwards_over_segments() {
    let bench = Bench::new();
    let store = bench.open();
    let queue = store.queue("q").unwrap();
    pollster::block_on(queue.send("first")).unwrap();
    let mut command = bench.command("dump", &["--follow", "--json", "--kind", "sent", "--limit", "31"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(parse(&lines.next().unwrap().unwrap())[0]["body"], "first");
    for n in 0..30 {
        pollster::block_on(queue.send(vec![b'a' + n; 1000])).unwrap();
        let record = parse(&lines.next().unwrap().unwrap()).remove(0);
        assert_eq!(record["body"].as_str().unwrap().as_bytes()[0], b'a' + n);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0), "it ends at its limit");
    assert!(lines.next().is_none());
    pollster::block_on(store.close()).unwrap();
}

#[test]
fn what_a_message_says_never_steers_the_terminal() {
    let bench = Bench::new();
    let nasty = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\u{202e}\u{200b}";
    let store = bench.open();
    pollster::block_on(async {
        let queue = store.queue("q\u{202e}x").unwrap();
        queue.send(NewMessage::new(nasty).attribute(nasty, nasty)).await.unwrap();
        let job = queue.receive().one().await.unwrap().unwrap();
        job.reject(nasty).await.unwrap();
        store.close().await.unwrap();
    });
    let queue = "q\u{202e}x";
    for (command, rest) in
        [("dump", &[][..]), ("peek", &[queue]), ("queues", &[]), ("stats", &[queue]), ("history", &["2"])]
    {
        for json in [&[][..], &["--json"]] {
            let output = bench.run(command, &[rest, json].concat());
            assert_eq!(code(&output), 0, "{output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            let bad = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{200b}".contains(c);
            assert!(!text.contains(bad), "{command} {json:?}: {text:?}");
        }
    }
    assert_eq!(bench.json("peek", &[queue])[0]["body"], nasty);
    assert_eq!(bench.json("peek", &[queue])[0]["attributes"][nasty], nasty);
    let output = bench.run("peek", &["no\u{202e}such"]);
    assert!(!String::from_utf8(output.stderr).unwrap().contains('\u{202e}'));
}

#[test]
fn damage_is_told_where_it_is_and_the_rest_is_shown() {
    let bench = lived();
    let target = bench.json("dump", &["--kind", "sent", "--limit", "3"]).pop().unwrap();
    let mut segments: Vec<_> = contents(&bench.store().join("log"));
    segments.retain(|(path, ..)| path.extension().is_some_and(|extension| extension == "seg"));
    let (path, mut bytes, _) = segments.remove(0);
    bytes[target["offset"].as_u64().unwrap() as usize + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let output = bench.run("dump", &["--json"]);
    assert_eq!(code(&output), 3, "{output:?}");
    let items = parse(std::str::from_utf8(&output.stdout).unwrap());
    let damage: Vec<&Value> = items.iter().filter(|item| item["type"] == "damage").collect();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(damage[0]["first_lsn"].as_u64() <= target["lsn"].as_u64());
    assert!(damage[0]["last_lsn"].as_u64() >= target["lsn"].as_u64());
    assert_eq!(items.last().unwrap()["kind"], "clean", "it goes on to the end");
    for (command, rest) in [("queues", &[][..]), ("stats", &[]), ("peek", &["mails"])] {
        assert_eq!(bench.code(command, rest), 3, "{command}");
    }
}

#[test]
fn the_views_of_the_library_agree_with_the_store() {
    let bench = Bench::new();
    let store = bench.open();
    pollster::block_on(async {
        let queue = store.queue("q").unwrap();
        let ids = queue.send_batch((0..10).map(|n| n.to_string())).await.unwrap();
        queue.send(NewMessage::new("later").delay(std::time::Duration::from_secs(3600))).await.unwrap();
        let jobs = queue.receive().max(4).many().await.unwrap();
        jobs[0].ack().await.unwrap();
        jobs[1].reject("no").await.unwrap();
        jobs[2].release().await.unwrap();
        let stats = queue.stats().await.unwrap();
        let state = StoreState::load(bench.store()).unwrap();
        let now = state.now();
        let count = |wanted| state.messages().filter(|message| message.state(now) == wanted).count() as u64;
        let counts = reappear::State::ALL.map(count);
        assert_eq!(counts, [stats.ready, stats.delayed, stats.in_flight, stats.dead]);
        assert_eq!(counts, [7, 1, 1, 1]);
        let mut log = Log::open(bench.store()).unwrap();
        let before = log.by_ref().count();
        assert!(log.next().is_none());
        queue.send("new").await.unwrap();
        log.again();
        let Some(Ok(Item::Record(record))) = log.next() else { panic!("nothing new after {before} items") };
        assert_eq!((record.kind, record.id > ids.last().copied()), ("sent", true));
        store.close().await.unwrap();
    });
}
