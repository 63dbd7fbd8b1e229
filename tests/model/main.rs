//! Random operations, crashes and reopenings on the simulated machine, against a plain model.
//!
//! One seed decides everything. `REAPPEAR_SEED=n` runs that one seed, `REAPPEAR_SEEDS=n` that many.

mod model;
mod run;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds that the gate runs.
const SEEDS: u64 = 2_000;

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}, which is not a number")))
}

#[test]
fn every_seed_agrees_with_the_model() {
    let seeds = match (setting("REAPPEAR_SEED"), setting("REAPPEAR_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        (None, None) => 0..SEEDS,
    };
    let workers = 2;
    let totals: Vec<run::Totals> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    let mut totals = run::Totals::default();
                    for seed in seeds.filter(|seed| seed % workers == worker) {
                        if std::env::var_os("REAPPEAR_LOUD").is_some() {
                            eprintln!("seed {seed}");
                        }
                        let result = catch_unwind(AssertUnwindSafe(|| run::seed(seed, &mut totals)));
                        assert!(result.is_ok(), "seed {seed} failed; replay it with REAPPEAR_SEED={seed}");
                    }
                    totals
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker failed, see above")).collect()
    });
    let totals = totals.into_iter().fold(run::Totals::default(), run::Totals::plus);
    println!("{} seeds: {totals:?}", seeds.end - seeds.start);
    // A count of zero would mean that something is not tested at all.
    if seeds.end - seeds.start >= 100 {
        totals.assert_all_happened();
    }
}
