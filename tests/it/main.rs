//! Integration tests, all in one binary: linking one is what two cores can afford.

mod cli;
mod lifecycle;
mod tidy;
