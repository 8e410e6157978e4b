//! A UPF whose process may have too few addresses does not start, and says which limit to set.

use std::process::Command;

/// Set in the process with the limit.
const LIMITED: &str = "GODWIT_TEST_LIMITED";

#[test]
fn a_limit_of_addresses_is_named_at_the_start() {
    if std::env::var_os(LIMITED).is_some() {
        let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": [
            {"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;
        let config: upf::Config = serde_json::from_str(text).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(upf::start(config)).map(drop).unwrap_err();
        return println!("refused: {error}");
    }
    // Enough for each table alone, and for none but the first together.
    for megabytes in [6_000, 20_000, 40_000] {
        let program = std::env::current_exe().unwrap();
        let limited = Command::new("prlimit")
            .arg(format!("--as={}", megabytes * 1024 * 1024u64))
            .arg(program)
            .args(["--exact", "address_limit::a_limit_of_addresses_is_named_at_the_start", "--nocapture"])
            .env(LIMITED, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&limited.stdout).into_owned();
        let wanted = format!("the limit of addresses (RLIMIT_AS) is {megabytes} MB, set it to unlimited");
        assert!(limited.status.success() && said.contains(&wanted), "{limited:?}");
    }
}
