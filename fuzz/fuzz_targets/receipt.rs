//! Receipts come from users: any text is refused or prints as it was given.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| reappear::testing::fuzzing::receipt(text));
