//! Random operations, crashes and reopenings on the simulated machine, against a plain model.
//!
//! One seed decides everything. `REAPPEAR_SEED=n` runs that one seed, `REAPPEAR_SEEDS=n` that many.

mod disorder;
mod model;
mod run;
mod seen;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds that the gate runs.
const SEEDS: u64 = 2_000;
const DISORDERLY_SEEDS: u64 = 2_000;

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}, which is not a number")))
}

/// Runs the seeds that were asked for, or so many, on two threads. Returns what each of them counted.
fn each_seed<T: Default + Send>(count: u64, run: impl Fn(u64, &mut T) + Sync) -> (u64, Vec<T>) {
    let seeds = match (setting("REAPPEAR_SEED"), setting("REAPPEAR_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        (None, None) => 0..count,
    };
    let workers = 2;
    let totals = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                let (seeds, run) = (seeds.clone(), &run);
                scope.spawn(move || {
                    let mut totals = T::default();
                    for seed in seeds.filter(|seed| seed % workers == worker) {
                        if std::env::var_os("REAPPEAR_LOUD").is_some() {
                            eprintln!("seed {seed}");
                        }
                        let result = catch_unwind(AssertUnwindSafe(|| run(seed, &mut totals)));
                        assert!(result.is_ok(), "seed {seed} failed; replay it with REAPPEAR_SEED={seed}");
                    }
                    totals
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker failed, see above")).collect()
    });
    (seeds.end - seeds.start, totals)
}

#[test]
fn every_seed_agrees_with_the_model() {
    let (count, totals) = each_seed(SEEDS, run::seed);
    let totals = totals.into_iter().fold(run::Totals::default(), run::Totals::plus);
    println!("{count} seeds: {totals:?}");
    // A count of zero would mean that something is not tested at all.
    if count >= 100 {
        totals.assert_all_happened();
    }
}

#[test]
fn every_seed_agrees_with_the_model_in_whatever_order_the_threads_run() {
    let (count, seen) = each_seed(DISORDERLY_SEEDS, disorder::seed);
    let seen = seen.into_iter().fold(seen::Seen::default(), seen::Seen::plus);
    println!("{count} seeds: {seen:?}");
    if count >= 100 {
        seen.assert_all_happened();
    }
}
