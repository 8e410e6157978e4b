//! `godwit demo` as a user runs it: the whole network in namespaces, with the kernel of this machine.
//!
//! Needs root (or CAP_SYS_ADMIN), /dev/net/tun, ping and curl; `make test` provides them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

/// Lets one test run at a time: each needs the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of one test. It is also the demo's folder for temporary files, so that files left behind
/// are noticed.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        self.godwit(&["demo"], arguments)
    }

    fn godwit(&self, command: &[&str], arguments: &[&str]) -> Command {
        let mut godwit = Command::new(env!("CARGO_BIN_EXE_godwit"));
        godwit.args(command).args(arguments).env("TMPDIR", self.0.path());
        godwit
    }

    /// Checks that nothing of the lab is left: no folder, and no process that uses it.
    fn assert_clean(&self) {
        let left: Vec<_> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().starts_with("godwit-lab-"))
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        assert_eq!(self.processes(), Vec::<String>::new(), "processes left behind");
    }

    /// Command lines of all processes started, directly or indirectly, with this folder for temporary
    /// files.
    fn processes(&self) -> Vec<String> {
        let variable = format!("TMPDIR={}\0", self.0.path().display());
        let started_here = |process: &Path| {
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&variable)
        };
        std::fs::read_dir("/proc")
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|process| started_here(process))
            .map(|process| {
                std::fs::read_to_string(process.join("cmdline")).unwrap_or_default().replace('\0', " ")
            })
            .collect()
    }
}

/// Runs the demo to its end and returns the report; the exit code must agree with its checks.
fn report(mut demo: Command, file: &Path) -> Value {
    let output = demo.arg("--json").arg(file).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    let report = std::fs::read_to_string(file).unwrap_or_else(|_| panic!("no report:\n{text}"));
    let report: Value = serde_json::from_str(&report).unwrap();
    let failed: Vec<&Value> =
        report["checks"].as_array().unwrap().iter().filter(|check| check["ok"] != true).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{text}");
    assert!(output.status.success(), "{text}");
    report
}

/// Checks the numbers that every successful demo has.
fn assert_complete(report: &Value, ues: u64, download: u64) {
    for member in ["ues", "registered", "sessions"] {
        assert_eq!(report[member], ues, "{member}");
    }
    assert_eq!(
        (&report["ping"]["sent"], &report["ping"]["received"]),
        (&(3 * ues).into(), &(3 * ues).into())
    );
    assert_eq!(report["download"]["bytes"], download);
    for positive in [
        &report["registration_ms"]["p50"],
        &report["registration_ms"]["p99"],
        &report["session_ms"]["p50"],
        &report["ping"]["rtt_ms"],
        &report["download"]["mbps"],
    ] {
        assert!(positive.as_f64().is_some_and(|value| value > 0.0), "{report:#}");
    }
    for reason in ["source_address", "unknown_teid", "no_pdr", "gtpu_malformed", "tx_error"] {
        assert_eq!(report["drops"].get(reason), None, "{reason}");
    }
}

#[test]
fn three_ues_use_the_network() {
    let _turn = alone();
    let scratch = Scratch::new();
    let report = report(scratch.demo(&["--download-mb", "20"]), &scratch.file("report.json"));
    assert_complete(&report, 3, 20_000_000);
    scratch.assert_clean();
}

/// `godwit demo --4g`: the same with S-GW and P-GW, then idle mode, paging and a service request.
#[test]
fn ues_of_4g_become_idle_and_come_back() {
    let _turn = alone();
    let scratch = Scratch::new();
    let demo = scratch.demo(&["--4g", "--ues", "2", "--download-mb", "20"]);
    let report = report(demo, &scratch.file("report.json"));
    assert_complete(&report, 2, 20_000_000);
    let idle_mode = &report["idle_mode"];
    for positive in [
        &idle_mode["release_ms"]["p50"],
        &idle_mode["service_ms"]["p50"],
        &idle_mode["paging_ping_ms"],
        &idle_mode["service_ping_ms"],
    ] {
        assert!(positive.as_f64().is_some_and(|value| value > 0.0), "{report:#}");
    }
    let checks: Vec<&str> =
        report["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for check in ["attach", "S/P-GW", "idle", "paging", "service request", "detach"] {
        assert!(checks.contains(&check), "{check}: {checks:?}");
    }
    scratch.assert_clean();
}

/// `godwit mec demo`: a user, an application and a pair at another anchor, and back (DIV-1, DIV-5, SW-1, SW-3 to SW-5).
#[test]
fn users_are_moved_to_an_edge_and_back() {
    let _turn = alone();
    let scratch = Scratch::new();
    let captures = scratch.file("captures");
    let mut demo = scratch.godwit(&["mec", "demo"], &["--json", "--pcap"]);
    let output = demo.arg(&captures).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"));
    let failed: Vec<&Value> = checks.iter().filter(|check| check["ok"] != true).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{text}");
    assert!(output.status.success(), "{text}");
    assert_eq!(checks.len(), 21, "{checks:#?}");
    for side in ["gnb", "central"] {
        let file = captures.join(side).join("n3.pcapng");
        let mut tshark = Command::new("tshark");
        tshark.args(["-Q", "-r"]).arg(file).args([
            "-Y",
            "_ws.malformed",
            "-T",
            "fields",
            "-e",
            "frame.number",
        ]);
        let malformed = tshark.output().unwrap();
        assert!(malformed.status.success() && malformed.stdout.is_empty(), "{malformed:?}");
    }
    scratch.assert_clean();
}

/// What `godwit mec demo --move` with these options says of its steps. The exit code must agree, nothing may be left, and each step's packets must
/// be carried by the right anchor.
fn moves(options: &[&str]) -> (Vec<Value>, String) {
    let _turn = alone();
    let scratch = Scratch::new();
    let output = scratch.godwit(&["mec", "demo", "--move", "--json"], options).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let steps: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"));
    assert_eq!(output.status.success(), steps.iter().all(|step| step["ok"] == true), "{steps:#?}\n{text}");
    let served: Vec<&Value> = steps.iter().map(|step| &step["carried_by"]).collect();
    let expected = ["central", "edge", "central", "edge", "edge2", "central"].map(|anchor| json!([anchor]));
    assert_eq!(served, expected.each_ref(), "{text}");
    scratch.assert_clean();
    (steps, text)
}

/// Checks that nothing was lost or doubled in a step, of the UE that is moved and of the other one.
fn assert_all_arrived(step: &Value) {
    for flow in
        ["/moved/up", "/moved/down", "/stays/up", "/stays/down"].map(|flow| step.pointer(flow).unwrap())
    {
        assert_eq!([&flow["lost"], &flow["doubled"]], [&json!(0); 2], "{step:#}");
        assert!(flow["sent"].as_u64().unwrap() > 0, "{step:#}");
    }
    assert_eq!(step["pings"], json!({"sent": 100, "lost": 0}), "{step:#}");
    assert!(step["tcp"]["octets"].as_u64().unwrap() > 0, "{step:#}");
}

/// With these options all steps are well, and nothing was lost or doubled.
fn nothing_is_lost(options: &[&str]) {
    let (steps, text) = moves(options);
    steps.iter().for_each(assert_all_arrived);
    assert!(steps.iter().all(|step| step["ok"] == true), "{steps:#?}\n{text}");
}

/// `godwit mec demo --move`: a UE is moved with its sessions while it downloads, pings and plays; nothing is lost (MEO-1 to MEO-6, EV-9).
#[test]
fn a_ue_is_moved_to_edges_and_back_while_it_talks() {
    nothing_is_lost(&[]);
}

/// The same in 5G: the sessions of a UPF are moved.
#[test]
fn a_ue_of_5g_is_moved_to_edges_and_back_while_it_talks() {
    nothing_is_lost(&["--5g"]);
}

/// The same with Open vSwitch as both switches: packets may be overtaken, and a few lost, but the UE is served by one anchor at a time.
#[test]
fn a_ue_is_moved_by_open_vswitch() {
    let (steps, text) = moves(&["--switch", "ovs"]);
    assert!(steps.iter().all(|step| step["ok"] == true), "{steps:#?}\n{text}");
}

/// The same with go-gtp's gateways in the center and at both edges. They let uplink packets overtake one another also when nobody moves, but
/// nothing is lost or doubled, nor overtaken downlink. Left out where Go is missing.
#[test]
fn a_ue_is_moved_between_go_gtps_gateways() {
    if !gogtp::is_possible() {
        return;
    }
    nothing_is_lost(&["--gateway", gogtp::program().unwrap().to_str().unwrap()]);
}

/// The same with go-gtp's MME as well: it keeps tunnels and TEIDs, wherever its UE is, and its UEs leave at the end. Left out where Go is missing.
#[test]
fn a_ue_of_go_gtps_mme_is_moved_between_go_gtps_gateways() {
    if !gogtp::is_possible() {
        return;
    }
    let program = gogtp::program().unwrap().to_str().unwrap();
    nothing_is_lost(&["--gateway", program, "--mme", program]);
}

/// Between our own gateways a UE of go-gtp's MME loses nothing either, and nothing is overtaken.
#[test]
fn a_ue_of_go_gtps_mme_is_moved_between_our_gateways() {
    if !gogtp::is_possible() {
        return;
    }
    nothing_is_lost(&["--mme", gogtp::program().unwrap().to_str().unwrap()]);
}

#[test]
fn every_network_function_in_its_own_process_and_several_gnbs() {
    let _turn = alone();
    let scratch = Scratch::new();
    let demo = scratch.demo(&["--processes", "--ues", "6", "--gnbs", "2", "--download-mb", "5"]);
    let report = report(demo, &scratch.file("report.json"));
    assert_complete(&report, 6, 5_000_000);
    scratch.assert_clean();
}

/// UEs, DU, CU and core, each in processes of their own; packets go through the kernel, partly past it, or all past it.
#[test]
fn a_gnb_in_parts_serves_ues_in_each_model() {
    let _turn = alone();
    for (model, memifs) in [("kernel", [false; 2]), ("hybrid", [true, false]), ("bypass", [true, true])] {
        let scratch = Scratch::new();
        let pcap = scratch.file("pcap");
        let mut demo = scratch.demo(&["--split", "--model", model, "--ues", "2", "--download-mb", "5"]);
        demo.arg("--pcap").arg(&pcap);
        let report = report(demo, &scratch.file("report.json"));
        assert_complete(&report, 2, 5_000_000);
        let named =
            |name: &str| report["checks"].as_array().unwrap().iter().any(|check| check["name"] == name);
        for name in ["ping over IPv6", "video", "CU", "F1-U of the CU", "DU", "deregistration", "end"] {
            assert!(named(name), "{model}: {name}\n{report:#}");
        }
        let octets = |file: &str| std::fs::metadata(pcap.join(file)).unwrap().len();
        for (file, least) in [("cu/f1c", 1000), ("cu/n2", 1000), ("cu/f1u", 5_000_000), ("cu/n3", 5_000_000)]
        {
            assert!(octets(&format!("{file}.pcapng")) > least, "{model}: {file}");
        }
        assert!(octets("du/uu.pcapng") > 5_000_000, "{model}");
        // Frames of a memif carry the addresses that only the two programs know.
        for (file, link, expected) in [("cu/f1u", 212, memifs[0]), ("cu/n3", 210, memifs[1])] {
            let bytes = std::fs::read(pcap.join(format!("{file}.pcapng"))).unwrap();
            let found = bytes.windows(8).any(|part| part == [10, link, 0, 1, 10, link, 0, 2]);
            assert_eq!(found, expected, "{model}: {file} by memif");
        }
        scratch.assert_clean();
    }
}

#[test]
fn a_gnb_in_parts_that_is_interrupted_leaves_nothing() {
    let _turn = alone();
    for (what, file) in [("CU", "run/cu.sock"), ("DU", "run/du.sock"), ("simulator", "ran.log")] {
        let scratch = Scratch::new();
        let mut demo = scratch.demo(&["--split", "--model", "bypass", "--ues", "20", "--serve"]);
        let mut child = demo.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for(&scratch, &mut child, what, |folder| folder.join(file).exists());
        signal(&child, "INT");
        assert_eq!(child.wait().unwrap().code(), Some(130), "at {what}");
        scratch.assert_clean();
    }
}

/// The demo as a user without any rights runs it: in a user namespace.
fn of_an_ordinary_user(scratch: &Scratch, arguments: &[&str]) -> Command {
    // The user may not be able to open the build folder and this machine's /dev/net/tun. The user gets
    // a copy of each that is closed; the device is put in place in a separate mount namespace.
    let program = scratch.file("godwit");
    std::fs::copy(env!("CARGO_BIN_EXE_godwit"), &program).unwrap();
    let script = format!(
        "set -e; cd {folder}; mknod tun c 10 200; chmod 0666 tun; mount --bind tun /dev/net/tun; chmod 0777 .; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups ./godwit demo \"$@\"",
        folder = scratch.0.path().display()
    );
    let mut demo = Command::new("unshare");
    demo.args(["--mount", "sh", "-c", &script, "sh"]).args(arguments).env("TMPDIR", scratch.0.path());
    demo
}

#[test]
fn an_ordinary_user_can_run_it() {
    let _turn = alone();
    let scratch = Scratch::new();
    let demo = of_an_ordinary_user(&scratch, &["--download-mb", "5"]);
    let report = report(demo, &scratch.file("report.json"));
    assert_complete(&report, 3, 5_000_000);
    scratch.assert_clean();
}

/// With links of the kernel, and with memifs, whose memory and sockets need no rights either.
#[test]
fn an_ordinary_user_can_run_it_with_a_gnb_in_parts() {
    let _turn = alone();
    for model in ["kernel", "bypass"] {
        let scratch = Scratch::new();
        let arguments = ["--split", "--model", model, "--ues", "1", "--download-mb", "1"];
        let demo = of_an_ordinary_user(&scratch, &arguments);
        let report = report(demo, &scratch.file("report.json"));
        assert_complete(&report, 1, 1_000_000);
        scratch.assert_clean();
    }
}

/// Waits until the running lab has written a file.
fn wait_for(scratch: &Scratch, child: &mut Child, what: &str, reached: impl Fn(&Path) -> bool) {
    for _ in 0..600 {
        assert!(child.try_wait().unwrap().is_none(), "the demo ended before {what}");
        let folders = std::fs::read_dir(scratch.0.path()).unwrap().map(|entry| entry.unwrap().path());
        if folders.into_iter().any(|folder| reached(&folder)) {
            return;
        }
        net::time::sleep_thread(Duration::from_millis(50));
    }
    panic!("no {what}");
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn interrupted_at_any_point_it_leaves_nothing() {
    let _turn = alone();
    type Reached = fn(&Path) -> bool;
    let points: [(&str, Reached); 3] = [
        ("configuration", |folder| folder.join("godwit.yaml").exists()),
        ("AMF", |folder| folder.join("run/amf.sock").exists()),
        ("simulator", |folder| folder.join("ran.log").exists()),
    ];
    for (what, reached) in points {
        for name in ["INT", "TERM"] {
            let scratch = Scratch::new();
            let mut demo = scratch.demo(&["--ues", "20", "--serve"]);
            // A process group of its own, as a terminal creates one; the output is discarded.
            let mut child =
                demo.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            wait_for(&scratch, &mut child, what, reached);
            signal(&child, name);
            assert_eq!(child.wait().unwrap().code(), Some(130), "SIG{name} at {what}");
            scratch.assert_clean();
        }
    }
}

/// Even `kill -9` leaves no process, and so no namespace, link or socket; only the folder stays.
#[test]
fn killed_it_takes_everything_along() {
    let _turn = alone();
    let scratch = Scratch::new();
    let mut demo = scratch.demo(&["--processes", "--serve"]);
    let mut child = demo.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(&scratch, &mut child, "simulator", |folder| folder.join("ran.log").exists());
    // Eight network functions, the simulator and the demo itself.
    assert!(scratch.processes().len() >= 10, "{:?}", scratch.processes());
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..100 {
        if scratch.processes().is_empty() {
            return;
        }
        net::time::sleep_thread(Duration::from_millis(50));
    }
    panic!("left behind: {:?}", scratch.processes());
}

#[test]
fn nonsense_is_refused_before_anything_starts() {
    let scratch = Scratch::new();
    for arguments in [["--ues", "0"], ["--ues", "many"], ["--download-mb", "-1"]] {
        assert_eq!(scratch.demo(&arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
    for arguments in [["--model", "hybrid"], ["--split", "--gnbs=2"], ["--split", "--model=none"]] {
        assert_eq!(scratch.demo(&arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
    let output = scratch.demo(&["--json", "/nonexistent/report.json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("write /nonexistent/report.json"), "{text}");
    assert!(!text.contains("network and core"), "nothing was started: {text}");
    scratch.assert_clean();
}
