//! Inputs that once broke a decoder, and a short run of every target.

use fuzz::{TARGETS, smoke};

#[test]
fn inputs_that_once_broke_something_no_longer_do() {
    for target in TARGETS {
        for (path, data) in smoke::regressions(target).unwrap() {
            assert_eq!(smoke::attempt(target, &data), None, "{}", path.display());
        }
    }
}

#[test]
fn every_regression_belongs_to_a_target() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/regressions")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let known = TARGETS.iter().any(|target| target.name == name);
        assert!(known || !entry.file_type().unwrap().is_dir(), "no target `{name}`");
    }
}

#[test]
fn the_driver_finds_a_decoder_that_panics() {
    let fragile = fuzz::Target {
        name: "fragile",
        run: |data| assert!(data.first() != Some(&0x7f), "first byte"),
        seeds: || vec![b"abc".to_vec()],
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let report = smoke::run(&fragile, 1, std::time::Duration::from_secs(20));
    std::panic::set_hook(hook);
    let (data, what) = report.failure.expect("the mutator reaches one of 256 values");
    assert_eq!(data[0], 0x7f);
    assert!(what.contains("first byte"), "{what}");
}
