//! The guest: Debian's kernel, and a file system in memory with busybox, the kernel's modules for its network, and `godwit` with its libraries.
//!
//! It is made beside this program in the folder `guest`. The kernel's package is downloaded once and not installed.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

/// The package that depends on Debian's newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

/// In the order in which they need one another.
const MODULES: [&str; 9] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "tun",
];

/// The address that QEMU's user network forwards to.
pub(super) const ADDRESS: &str = "10.0.2.15";

const INIT: &str = "#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module.ko; done
ip link set lo up
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
exec godwit run --config /etc/godwit.yaml --nf upf,spgw
";

/// What a machine starts.
pub(super) struct Guest {
    pub(super) kernel: PathBuf,
    pub(super) files: PathBuf,
}

impl Guest {
    pub(super) async fn make() -> anyhow::Result<Guest> {
        ensure!(cfg!(target_arch = "x86_64"), "left out: the guest is for x86-64");
        for program in ["qemu-system-x86_64", "busybox"] {
            let found =
                run(Command::new(program).arg(if program == "busybox" { "true" } else { "-version" }));
            found.with_context(|| format!("left out: {program} is missing: scripts/setup.sh bench"))?;
        }
        let folder = std::env::current_exe()?.with_file_name("guest");
        tokio::task::spawn_blocking(move || make(&folder)).await?
    }

    /// Of the gateway.
    pub(super) fn configuration(&self) -> Value {
        configuration()["spgw"].take()
    }
}

fn make(folder: &Path) -> anyhow::Result<Guest> {
    std::fs::create_dir_all(folder)?;
    let package = folder.join("kernel");
    if !package.exists() {
        download(folder, &package).context("left out: Debian's kernel")?;
    }
    let boot = std::fs::read_dir(package.join("boot"))?.flatten().map(|entry| entry.path());
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"));
    let kernel = boot.into_iter().find(is_kernel).context("no kernel in the package")?;
    let root = folder.join("root");
    let _ = std::fs::remove_dir_all(&root);
    for name in ["bin", "dev", "etc", "modules", "proc", "run", "sys", "tmp"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    for name in MODULES {
        let module = find(&package.join("lib/modules"), &format!("{name}.ko"));
        std::fs::copy(
            module.with_context(|| format!("no module {name}"))?,
            root.join(format!("modules/{name}.ko")),
        )?;
    }
    std::fs::write(root.join("modules/order"), MODULES.join(" "))?;
    std::fs::write(root.join("etc/godwit.yaml"), configuration().to_string())?;
    std::fs::write(root.join("init"), INIT)?;
    std::fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755))?;
    let busybox = run(Command::new("which").arg("busybox"))?;
    let godwit = lab::find_godwit()?;
    std::fs::copy(busybox.trim(), root.join("bin/busybox"))?;
    // Without its debugging information it is a quarter as large. A guest without `strip` on the host has it all.
    let own = root.join("bin/godwit");
    if run(Command::new("strip").arg("-o").arg(&own).arg(&godwit)).is_err() {
        std::fs::copy(&godwit, &own)?;
    }
    let mut libraries = BTreeSet::new();
    for program in [&own, &root.join("bin/busybox")] {
        // Fails for a static program, which needs none.
        let said = run(Command::new("ldd").arg(program)).unwrap_or_default();
        libraries.extend(said.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned));
    }
    for library in libraries {
        let to = root.join(library.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().context("a library in no folder")?)?;
        std::fs::copy(&library, to)?;
    }
    let files = folder.join("files.cpio");
    let pack = format!("find . | busybox cpio -o -H newc >'{}'", files.display());
    run(Command::new("sh").args(["-c", &pack]).current_dir(&root))?;
    Ok(Guest { kernel, files })
}

/// Fetches the kernel's package with the system's package manager, and unpacks it.
fn download(folder: &Path, to: &Path) -> anyhow::Result<()> {
    let depends = run(Command::new("apt-cache").args(["depends", KERNEL]))?;
    let package =
        depends.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).context("no package")?;
    run(Command::new("apt-get").args(["download", package]).current_dir(folder))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let file = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).find(is_package);
    let file = file.context("nothing was downloaded")?;
    let unpacked = folder.join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&unpacked))?;
    std::fs::remove_file(file)?;
    std::fs::rename(unpacked, to)?;
    Ok(())
}

/// A file with this name, anywhere in a folder.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) if entry.file_name() == name => return Some(entry.path()),
                _ => {}
            }
        }
    }
    None
}

/// Runs a program to its end. Returns what it has written.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output =
        command.stdin(std::process::Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn configuration() -> Value {
    let pool = json!({"ipv4": "10.45.0.0/16"});
    json!({
        "plmn": {"mcc": "999", "mnc": "70"},
        "run_dir": "/run",
        "store": "/run/godwit.db",
        "store_key": "/run/store.key",
        "log": "info",
        "slices": [{"sst": 1}],
        "sbi": {"trust": "/run/trust"},
        "nrf": {"sbi": "127.0.0.10:7777"},
        "amf": {
            "sbi": "127.0.0.5:7777", "ngap": format!("{ADDRESS}:38412"), "amf_id": {"region": 2, "set": 1, "pointer": 0},
            "tac": [1], "integrity": ["NIA2"], "ciphering": ["NEA2"],
        },
        "smf": {
            "sbi": "127.0.0.4:7777", "pfcp": "127.0.0.4:8805", "gtpu": "127.0.0.4:2152", "upf": [lab::UPF_PFCP],
            "dnn": [{"name": "internet", "ue_pool": {"ipv4": "10.45.0.0/17"}}],
        },
        "upf": {
            "pfcp": lab::UPF_PFCP, "gtpu": format!("{ADDRESS}:2152"),
            "dnn": [{"name": "internet", "tun": "gw0", "ue_pool": pool, "nat": false}],
        },
        "ausf": {"sbi": "127.0.0.11:7777"},
        "udm": {"sbi": "127.0.0.12:7777"},
        "udr": {"sbi": "127.0.0.20:7777"},
        "pcf": {"sbi": "127.0.0.13:7777"},
        "spgw": {
            "gtpc": format!("{ADDRESS}:2123"), "pfcp": "127.0.0.6:8805", "gtpu": "127.0.0.6:2152", "upf": [lab::UPF_PFCP],
            "apn": [{"name": "internet", "ue_pool": {"ipv4": "10.45.128.0/17"}}],
        },
    })
}
