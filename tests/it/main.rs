//! Integration tests, all in one binary: linking one is what two cores can afford.

mod cli;
mod index_health;
mod lifecycle;
mod limits;
mod tidy;

#[cfg(feature = "testing")]
mod cancellation;
#[cfg(feature = "testing")]
mod cases_backlog;
#[cfg(feature = "testing")]
mod cases_clock;
#[cfg(feature = "testing")]
mod cases_content;
#[cfg(feature = "testing")]
mod cases_dead;
#[cfg(feature = "testing")]
mod cases_end;
#[cfg(feature = "testing")]
mod cases_index;
#[cfg(feature = "testing")]
mod cases_index_files;
#[cfg(feature = "testing")]
mod cases_many_queues;
#[cfg(feature = "testing")]
mod cases_order;
#[cfg(feature = "testing")]
mod cases_races;
#[cfg(feature = "testing")]
mod cases_sync;
#[cfg(feature = "testing")]
mod cases_visibility;
#[cfg(feature = "testing")]
mod cases_waiting;
mod contract;
#[cfg(feature = "testing")]
mod contract_verbs;
#[cfg(feature = "testing")]
#[cfg(feature = "testing")]
mod failing_disk;
#[cfg(all(feature = "testing", feature = "json"))]
mod failures;
#[cfg(feature = "testing")]
mod history;
#[cfg(feature = "testing")]
mod machine;
#[cfg(feature = "testing")]
mod purge_races;
#[cfg(feature = "testing")]
mod reclaim_races;
#[cfg(feature = "testing")]
mod script;
mod space;
#[cfg(feature = "testing")]
mod wakeups;
