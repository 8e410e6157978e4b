//! Compiles the C shims around DPDK, with the feature `dpdk` only.

fn main() {
    println!("cargo::rerun-if-changed=src/dpdk/acl.c");
    #[cfg(feature = "dpdk")]
    dpdk();
}

#[cfg(feature = "dpdk")]
fn dpdk() {
    let dpdk = match pkg_config::Config::new().atleast_version("22.11").probe("libdpdk") {
        Ok(dpdk) => dpdk,
        Err(error) => {
            println!("cargo::error=the feature `dpdk` needs DPDK (Debian: libdpdk-dev): {error}");
            return;
        }
    };
    // The crate pkg-config passes on neither `-include rte_config.h` nor `-march`, which DPDK's headers rely on.
    cc::Build::new()
        .file("src/dpdk/acl.c")
        .includes(&dpdk.include_paths)
        .flag("-include")
        .flag("rte_config.h")
        .flag("-march=corei7")
        .warnings(true)
        .extra_warnings(true)
        .flag("-Wno-unused-parameter")
        .compile("godwit_dpdk");
}
