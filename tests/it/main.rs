//! Integration tests, all in one binary: linking one is what two cores can afford.

mod lifecycle;
mod tidy;
