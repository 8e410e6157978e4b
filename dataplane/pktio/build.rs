//! Compiles the C shims around DPDK, with the feature `dpdk` only.

/// What is compiled: one file per module that needs C.
const FILES: [&str; 3] = ["src/dpdk/acl.c", "src/dpdk/eal.c", "src/dpdk/port.c"];

fn main() {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
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
        .files(FILES)
        .includes(&dpdk.include_paths)
        .flag("-include")
        .flag("rte_config.h")
        .flag("-march=corei7")
        // Threads of our own are "experimental" in 22.11, and no longer in 23.
        .define("ALLOW_EXPERIMENTAL_API", None)
        .warnings(true)
        .extra_warnings(true)
        .flag("-Wno-unused-parameter")
        .compile("godwit_dpdk");
}
