//! Compiles the programs of `bpf/` with clang, with the feature `clang` only.

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    #[cfg(feature = "clang")]
    if let Err(error) = compile() {
        println!(
            "cargo::error=the feature `clang` needs clang that knows the target bpf (Debian: clang): {error}"
        );
    }
}

/// `bpf/NAME.bpf.c` becomes `NAME.o` in cargo's folder for output.
#[cfg(feature = "clang")]
fn compile() -> Result<(), String> {
    use std::path::PathBuf;
    use std::process::Command;

    let variable = |name: &str| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let out = PathBuf::from(variable("OUT_DIR")?);
    let clang = variable("CLANG").unwrap_or_else(|_| "clang".to_owned());
    // Debian keeps `asm/types.h` in a folder for the processor, in which clang does not look for the target bpf.
    let asm = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH")?);
    for name in ["steer", "steer_inside", "steer_rewrite", "steer_bench", "generate"] {
        let status = Command::new(&clang)
            .args([
                "-target",
                "bpf",
                "-mcpu=v3",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-idirafter",
                &asm,
                "-c",
            ])
            .arg(format!("bpf/{name}.bpf.c"))
            .arg("-o")
            .arg(out.join(format!("{name}.o")))
            .status()
            .map_err(|error| format!("{clang}: {error}"))?;
        if !status.success() {
            return Err(format!("{name}.bpf.c does not compile"));
        }
    }
    Ok(())
}
