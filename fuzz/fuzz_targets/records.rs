//! Records come from disk: any bytes are refused, or are records that stay the same when written again.
#![no_main]

libfuzzer_sys::fuzz_target!(|payload: &[u8]| reappear::testing::fuzzing::records(payload));
