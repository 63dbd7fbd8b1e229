//! Renewal: batches come between its steps, either store fails, and the answers stay those of a plain map.

use super::disk::RealFs;
use super::model::{Model, Random};
use super::*;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const META: [u8; 1] = super::super::keys::META;

fn rows(disk: &MemDisk) -> Rows {
    let mut rows = Rows::new();
    disk.damage(|all| rows.clone_from(all));
    rows
}

/// Bytes of all rows but the meta row.
fn len_of(rows: &Rows) -> u64 {
    rows.iter().filter(|(key, _)| **key != META).map(|(key, row)| (key.len() + row.len()) as u64).sum()
}

fn all(index: &mut Index) -> Vec<Entry> {
    let mut all = vec![];
    index.for_each(&mut |entry| all.push(*entry)).unwrap();
    all
}

/// An index with some thousand messages, its model, and the disk it is on.
fn filled(random: &mut Random) -> (Index, Model, MemDisk) {
    let (mut model, disk) = (Model::new(), MemDisk::new());
    let mut index = open(disk.open());
    for _ in 0..60 {
        index.apply(&model.batch(random)).unwrap();
    }
    (index, model, disk)
}

#[test]
fn an_index_that_is_renewed_all_the_time_answers_as_one_that_never_is() {
    for seed in 0..4 {
        let (mut random, mut model) = (Random::new(seed), Model::new());
        let (mut disk, mut fresh) = (MemDisk::new(), MemDisk::new());
        let (mut index, mut never) = (open(disk.open()), open(MemKv::new()));
        let mut renewals = 0;
        for _ in 0..150 {
            let batch = model.batch(&mut random);
            index.apply(&batch).unwrap();
            never.apply(&batch).unwrap();
            if index.is_renewing() {
                let (copied, mut due) = (rows(&fresh), rows(&disk));
                due.remove(&META[..]);
                due.retain(|key, _| copied.last_key_value().is_some_and(|(last, _)| key <= last));
                assert_eq!(copied, due, "what was copied is up to date, and no more is there");
            }
            if !index.is_renewing() || random.one_in(25) {
                fresh = MemDisk::new();
                index.begin_renewal(Box::new(fresh.open()));
            }
            for _ in 0..random.below(4) {
                if index.renew(1 + random.below(6000) as usize).unwrap() {
                    renewals += 1;
                    assert!(!index.is_renewing());
                    assert_eq!(rows(&fresh), rows(&disk), "the copy is exact");
                    disk = fresh.clone();
                    assert!(!index.renew(1).unwrap(), "nothing is left to do");
                }
            }
            assert_eq!(index.rows_len(), len_of(&rows(&disk)));
            assert_eq!(all(&mut index), all(&mut never));
            if random.one_in(3) {
                model.check(&mut index, &mut random);
            }
            if random.one_in(15) {
                index = open(disk.open());
                assert_eq!(index.rows_len(), len_of(&rows(&disk)));
                model.reopened();
            }
        }
        assert!(renewals > 5, "{renewals} renewals");
    }
}

#[test]
fn a_renewal_takes_small_steps_and_the_meta_row_comes_last() {
    let mut random = Random::new(3);
    let (mut index, _, old) = filled(&mut random);
    let new = MemDisk::new();
    index.begin_renewal(Box::new(new.open()));
    let (mut steps, mut copied) = (0, 0);
    while !index.renew(2000).unwrap() {
        let so_far = rows(&new);
        assert!(!so_far.contains_key(&META[..]) && so_far.iter().all(|(key, row)| rows(&old)[key] == *row));
        let step = len_of(&so_far) - copied;
        assert!((1..2000 + 10_000).contains(&step), "a step of {step} bytes");
        (steps, copied) = (steps + 1, len_of(&so_far));
    }
    assert!(steps > 3);
    assert_eq!(rows(&new), rows(&old));
}

#[test]
fn an_empty_index_is_renewed_in_one_step() {
    let disk = MemDisk::new();
    let mut index = open(MemKv::new());
    assert!(!index.renew(1).unwrap(), "no renewal is under way");
    index.begin_renewal(Box::new(disk.open()));
    assert!(index.renew(1).unwrap());
    index.apply(&puts([place(1, 0, 1)], 1)).unwrap();
    assert_eq!(ids(&mut open(disk.open())), [1]);
}

#[test]
fn what_was_written_is_counted_from_the_beginning_of_a_store_as_the_present_one() {
    let disk = MemDisk::new();
    let mut index = open(MemKv::new());
    assert_eq!((index.written_len(), index.rows_len()), (0, 0));
    index.apply(&puts([place(1, 0, 1)], 1)).unwrap();
    let first = index.written_len();
    assert!(first > index.rows_len(), "the meta row was written, too");
    index.apply(&puts([place(1, 0, 2)], 2)).unwrap();
    assert!(index.written_len() > 2 * first, "a page is written as a whole");
    index.begin_renewal(Box::new(disk.open()));
    assert!(index.renew(usize::MAX).unwrap());
    assert_eq!((index.written_len(), index.rows_len()), (0, len_of(&rows(&disk))));
    index.apply(&removes([place(1, 0, 1), place(1, 0, 2)], 3)).unwrap();
    assert!(index.written_len() > 0);
    assert_eq!(index.rows_len(), 0);
    assert_eq!(open(disk.open()).written_len(), 0);
}

#[test]
fn when_the_new_store_fails_the_renewal_is_given_up_and_nothing_else() {
    let (mut in_renew, mut in_apply, mut never) = (0, 0, false);
    for succeed in 0.. {
        let mut random = Random::new(succeed);
        let (mut index, mut model, old) = filled(&mut random);
        let new = MemDisk::new();
        new.fail_after(Some(succeed as usize));
        index.begin_renewal(Box::new(new.open()));
        while index.is_renewing() {
            match index.renew(5000) {
                Ok(true) => never = true,
                Ok(false) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io);
                    assert!(!index.is_renewing() && index.usable().is_ok());
                    in_renew += 1;
                }
            }
            let was_renewing = index.is_renewing();
            if !never {
                index.apply(&model.batch(&mut random)).unwrap();
                in_apply += u32::from(was_renewing && !index.is_renewing());
            }
        }
        if never {
            break;
        }
        model.check(&mut index, &mut random);
        drop(index);
        let mut index = open(old.open());
        model.reopened();
        model.check(&mut index, &mut random);
        // The next one works.
        let new = MemDisk::new();
        index.begin_renewal(Box::new(new.open()));
        assert!(index.renew(usize::MAX).unwrap());
        model.reopened();
        model.check(&mut open(new.open()), &mut random);
    }
    assert!(in_renew > 1 && in_apply > 1, "{in_renew} failures in renew, {in_apply} in apply");
}

#[test]
fn when_the_old_store_fails_the_index_is_broken_as_ever() {
    let mut random = Random::new(1);
    let (mut index, mut model, old) = filled(&mut random);
    index.begin_renewal(Box::new(MemKv::new()));
    index.renew(3000).unwrap();
    old.fail_after(Some(0));
    assert_eq!(index.apply(&model.batch(&mut random)).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(index.renew(3000).unwrap_err().kind(), ErrorKind::Io);
    assert!(index.usable().is_err());
}

#[test]
fn a_damaged_row_is_found_when_it_is_copied_and_not_later() {
    let mut random = Random::new(2);
    for kind in 0..3 {
        let (mut index, _, old) = filled(&mut random);
        old.damage(|rows| {
            let keys: Vec<_> = rows.keys().filter(|key| **key != META).cloned().collect();
            let key = &keys[random.below(keys.len() as u64) as usize];
            let row = rows.get_mut(key).unwrap();
            match kind {
                0 => row[2] ^= 1,
                1 => row.truncate(9),
                _ => drop(rows.remove(key)),
            }
        });
        let new = MemDisk::new();
        index.begin_renewal(Box::new(new.open()));
        let error = loop {
            match index.renew(4000) {
                Ok(is_done) => assert!(!is_done),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(index.usable().is_err());
        assert!(!rows(&new).contains_key(&META[..]), "what was copied is no index");
    }
}

#[test]
fn a_new_store_that_was_not_empty_or_lost_a_row_does_not_take_over() {
    let mut random = Random::new(4);
    let (mut index, mut model, _) = filled(&mut random);
    let new = MemDisk::new();
    index.begin_renewal(Box::new(new.open()));
    while rows(&new).len() < 8 {
        assert!(!index.renew(1).unwrap());
    }
    new.damage(|rows| drop(rows.pop_last()));
    assert_eq!(index.renew(usize::MAX).unwrap_err().kind(), ErrorKind::Corrupt);
    let other = filled(&mut random).2;
    index.begin_renewal(Box::new(other.open()));
    assert_eq!(index.renew(usize::MAX).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!index.is_renewing());
    model.check(&mut index, &mut random);
}

#[test]
fn a_renewal_that_was_given_up_is_begun_again_from_the_start() {
    let mut random = Random::new(5);
    let (mut index, mut model, old) = filled(&mut random);
    for _ in 0..3 {
        index.begin_renewal(Box::new(MemKv::new()));
        index.renew(4000).unwrap();
        index.apply(&model.batch(&mut random)).unwrap();
    }
    index.abandon_renewal();
    assert!(!index.is_renewing());
    let new = MemDisk::new();
    index.begin_renewal(Box::new(new.open()));
    while !index.renew(4000).unwrap() {}
    assert_eq!(rows(&new), rows(&old));
    model.check(&mut index, &mut random);
}

#[test]
fn sled_is_renewed_into_a_smaller_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("1"), dir.path().join("2"));
    let (mut random, mut model) = (Random::new(6), Model::new());
    let mut index = open(SledKv::open(Arc::new(RealFs), &old).unwrap());
    for _ in 0..200 {
        index.apply(&model.batch(&mut random)).unwrap();
    }
    let len_before = index.len_on_disk();
    index.begin_renewal(Box::new(SledKv::open(Arc::new(RealFs), &new).unwrap()));
    while !index.renew(64 * 1024).unwrap() {
        index.apply(&model.batch(&mut random)).unwrap();
    }
    assert!(index.len_on_disk() < len_before, "{len_before} bytes before, {} after", index.len_on_disk());
    SledKv::remove(&RealFs, &old).unwrap();
    model.check(&mut index, &mut random);
    drop(index);
    model.reopened();
    model.check(&mut open(SledKv::open(Arc::new(RealFs), &new).unwrap()), &mut random);
}
