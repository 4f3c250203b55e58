//! `slowmo_chaos::fuzz::text::tensor_file` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = slowmo_chaos::fuzz::text::tensor_file(data);
});
