//! libFuzzer's entry: runs the target that `GODWIT_FUZZ` names, for example
//! `GODWIT_FUZZ=pfcp cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer target`.
#![no_main]

use std::sync::LazyLock;

static NAME: LazyLock<String> = LazyLock::new(|| {
    std::env::var("GODWIT_FUZZ").expect("GODWIT_FUZZ names a target of fuzz/src/targets.rs")
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::run(&NAME, data));
