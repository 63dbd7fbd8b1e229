//! Integration tests, all in one binary: linking one is what two cores can afford.

mod cli;
mod contract;
mod lifecycle;
mod tidy;
