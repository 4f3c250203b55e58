//! `slowmo_chaos::fuzz::wire::framing` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = slowmo_chaos::fuzz::wire::framing(data);
});
