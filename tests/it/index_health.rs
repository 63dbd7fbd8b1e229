//! Opening and running never depend on the health of the index on disk: it fails at any of its writes, and
//! the store answers as before and says so.

use reappear::IndexReport;

use super::machine::{Machine, STOPS, secs, small};

/// Whichever write or sync of an index fails that is made at open, the store opens and is whole.
#[test]
fn a_new_index_that_fails_at_any_write_while_opening_is_replaced_by_one_in_memory() {
    let machine = Machine::with(small());
    machine.rig.run(machine.queue("q").send_batch((0..500).map(|n| format!("{n}")))).unwrap();
    let held = machine.take_many("q", 20);
    let before = machine.recount();
    let (mut in_memory, mut on_disk) = (0, 0);
    for writes in 0..12 {
        for stop in STOPS {
            machine.stop(stop);
            machine.rig.lose_index();
            machine.rig.fail_new_index_after(Some(writes));
            let report = machine.open();
            assert!(matches!(report.index, IndexReport::Rebuilt { .. }), "{writes} {stop:?}: {report}");
            assert!(machine.recount() == before, "{writes} {stop:?}");
            let stats = machine.rig.run(machine.store().stats()).unwrap();
            if stats.index_in_memory {
                in_memory += 1
            } else {
                on_disk += 1
            }
            machine.rig.fail_new_index_after(None);
            machine.pass(secs(0));
        }
    }
    assert!(in_memory > 4 && on_disk > 4, "{in_memory} in memory, {on_disk} on disk");
    held.iter().for_each(|job| machine.rig.run(machine.store().ack(&job.receipt())).unwrap());
    assert_eq!(machine.counts("q"), [480, 0, 0, 0]);
}

/// Whichever write of a new generation fails while the store runs, nothing is lost, and there is an index on
/// disk again in the end.
#[test]
fn a_renewal_that_fails_at_any_write_is_tried_again() {
    for writes in 0..10 {
        let machine = Machine::with(small());
        machine.rig.run(machine.queue("q").send_batch((0..300).map(|n| format!("{n}")))).unwrap();
        machine.rig.fail_new_index_after(Some(writes));
        machine.rig.fail_index_after(Some(0));
        for round in 0..10 {
            machine.send("q", format!("{}", 300 + round));
            machine.pass(secs(11));
        }
        assert_eq!(machine.counts("q"), [310, 0, 0, 0]);
        machine.rig.fail_new_index_after(None);
        for _ in 0..4 {
            machine.send("other", "x");
            machine.pass(secs(11));
        }
        let stats = machine.rig.run(machine.store().stats()).unwrap();
        assert!(!stats.index_in_memory, "after {writes} writes: {stats:?}");
        assert_eq!(machine.drain("q"), (0..310).map(|n| n.to_string()).collect::<Vec<_>>());
    }
}
