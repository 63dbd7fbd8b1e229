//! Typed bodies come from other programs: any bytes are refused or decode, without a panic or a huge allocation.
#![no_main]

libfuzzer_sys::fuzz_target!(|body: &[u8]| reappear::testing::fuzzing::body(body));
