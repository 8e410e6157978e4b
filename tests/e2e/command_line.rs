//! The command line: configurations with mistakes, subscribers, listings of a running core, exit codes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use testkit::world::{establish, plain};

fn godwit(arguments: &[&str]) -> Output {
    Command::new(lab::find_godwit().unwrap()).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn mistakes_in_the_configuration_name_line_key_and_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("godwit.yaml");
    let shipped =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../godwit.yaml")).unwrap();
    let cases = [
        ("  ngap: 127.0.0.5:38412", "  ngpa: 127.0.0.5:38412", "amf.ngpa: unknown key; did you mean `ngap`?"),
        ("gtpu: 127.0.0.7:2152", "gtpu: 127.0.0.7", "upf.gtpu: `127.0.0.7`: invalid socket address"),
        ("mcc: \"999\"", "mcc: \"9x9\"", "plmn: "),
        ("sctp: auto", "sctp: kernal", "amf.sctp: "),
        ("ipv4: 10.45.0.0/16", "ipv4: 10.45.0.0/40", "smf.dnn[0].ue_pool.ipv4: "),
        ("log: info", "\tlog: info", "not valid YAML"),
    ];
    for (right, wrong, expected) in cases {
        assert!(shipped.contains(right), "{right}");
        let line = shipped[..shipped.find(right).unwrap()].matches('\n').count() + 1;
        std::fs::write(&file, shipped.replacen(right, wrong, 1)).unwrap();
        for command in ["check", "run"] {
            let output = godwit(&[command, "-c", file.to_str().unwrap()]);
            let text = said(&output);
            assert_eq!(output.status.code(), Some(3), "{command} {wrong}: {text}");
            assert!(text.contains(expected) && text.contains("nothing was started"), "{wrong}: {text}");
            assert!(text.contains(&format!("godwit.yaml:{line}: ")), "{wrong} is on line {line}: {text}");
        }
    }
    std::fs::write(&file, &shipped).unwrap();
    assert!(godwit(&["check", "-c", file.to_str().unwrap()]).status.success());
}

/// The sections of a gNB in parts, appended to the shipped configuration.
const IN_PARTS: &str = r#"
cu:
  f1c: 127.0.0.21:38472
  n2: {address: 127.0.0.21, amf: ["127.0.0.5:38412"]}
  f1u: [{gtpu: "10.9.0.1:2152"}]
  n3: {gtpu: "10.9.1.1:2152"}
du:
  cell: 4097
  f1c: {local: 127.0.0.22, cu: "127.0.0.21:38472"}
  f1u: {gtpu: "10.9.2.1:2152"}
  uu: {gtpu: "10.9.3.1:38321"}
ran:
  uu: {gtpu: "10.9.4.1:38321"}
  cells: [{id: 4097, du: "10.9.3.1:38321"}]
"#;

/// The links of a gNB in parts: key, address, and the command that serves them.
const LINKS: [(&str, &str, &[&str]); 5] = [
    ("cu.f1u", "10.9.0.1:2152", &["run", "--nf", "cu"]),
    ("cu.n3", "10.9.1.1:2152", &["run", "--nf", "cu"]),
    ("du.f1u", "10.9.2.1:2152", &["run", "--nf", "du"]),
    ("du.uu", "10.9.3.1:38321", &["run", "--nf", "du"]),
    ("ran.uu", "10.9.4.1:38321", &["ran", "--split"]),
];

/// The configuration in which the link at an address has further keys; and the number of its line.
fn with_link(address: &str, keys: &str) -> (String, usize) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../godwit.yaml");
    let text = std::fs::read_to_string(shipped).unwrap() + IN_PARTS;
    let link = format!("{{gtpu: \"{address}\"}}");
    let line = text[..text.find(&link).unwrap()].matches('\n').count() + 1;
    (text.replacen(&link, &format!("{{gtpu: \"{address}\", {keys}}}"), 1), line)
}

#[test]
fn a_backend_that_a_link_of_a_gnb_cannot_have_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("godwit.yaml");
    let config = file.to_str().unwrap();
    let wrong = [
        ("backend: netmap", "netmap"),
        ("backend: af_xdp", "the backend af_xdp needs a device, such as `device: eth0`"),
        (
            "device: eth0",
            "device means nothing to the backend kernel; leave it out, or choose `backend: af_xdp`",
        ),
        ("backend: dpdk, device: net_null0", "the backend dpdk needs addresses, such as `addresses: ["),
        ("backend: memif, device: \"m0,socket=/run/m.sock\"", "the backend memif needs addresses, such as"),
        (
            "backend: memif, device: \"m0,role=server\", addresses: [10.9.9.1/24]",
            "device: a memif needs the path of a socket",
        ),
        (
            "backend: memif, device: \"m0,socket=/run/m.sock\", addresses: [10.99.9.1/24]",
            "addresses lack 10.9.",
        ),
    ];
    for (key, address, serves) in LINKS {
        for (keys, expected) in wrong {
            let (text, line) = with_link(address, keys);
            std::fs::write(&file, text).unwrap();
            for command in [&["check"], serves] {
                let output = godwit(&[command, &["-c", config]].concat());
                let text = said(&output);
                assert_eq!(output.status.code(), Some(3), "{command:?} {key} {keys}: {text}");
                assert!(
                    text.contains(expected) && text.contains("nothing was started"),
                    "{key} {keys}: {text}"
                );
                assert!(text.contains(&format!("godwit.yaml:{line}: {key}")), "{key} on line {line}: {text}");
            }
        }
    }
    std::fs::write(&file, with_link(LINKS[0].1, "backend: kernel").0).unwrap();
    let output = godwit(&["check", "-c", config]);
    assert!(output.status.success(), "{}", said(&output));
}

/// What only the machine can tell: the device is not there, or the folder of a socket. The unit ends and says what to do.
#[test]
fn a_backend_that_this_machine_does_not_have_ends_the_start_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("godwit.yaml");
    let godwit_path = lab::find_godwit().unwrap().display().to_string();
    for (key, address, serves) in LINKS {
        let host = address.split(':').next().unwrap();
        let memif = format!(
            "backend: memif, device: \"m0,role=server,socket={}/none/m.sock\", addresses: [{host}/24]",
            folder.path().display()
        );
        for (keys, expected) in [
            ("backend: af_xdp, device: eth9", "eth9"),
            (memif.as_str(), "make the folder of the socket first"),
        ] {
            let (text, _) = with_link(address, keys);
            let text =
                text.replacen("run_dir: /run/godwit", &format!("run_dir: {}", folder.path().display()), 1);
            std::fs::write(&file, text).unwrap();
            // The addresses of the other links are there.
            let command = format!(
                "ip link set lo up && ip addr add 10.9.0.1/16 dev lo && for n in 1 2 3 4; do \
                 ip addr add 10.9.$n.1/32 dev lo; done && exec {godwit_path} {} -c {}",
                serves.join(" "),
                file.display()
            );
            let output = Command::new("unshare").args(["-n", "sh", "-c", &command]).output().unwrap();
            let text = said(&output);
            assert_eq!(output.status.code(), Some(1), "{key} {keys}: {text}");
            let key = key.replace("ran.", "ue.");
            assert!(text.contains(&key) && text.contains(expected), "{key} {keys}: {text}");
        }
    }
}

#[test]
fn subscribers_are_added_listed_shown_imported_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (store, key) = (folder.path().join("godwit.db"), folder.path().join("store.key"));
    let subscriber = |verb: &str, rest: &[&str]| {
        let places = ["--store", store.to_str().unwrap(), "--store-key", key.to_str().unwrap()];
        let output = godwit(&[&["subscriber", verb], &places[..], rest].concat());
        (output.status.code().unwrap(), said(&output))
    };
    // Without a store, only `add` and `import` create one.
    for (verb, rest) in [("show", ["999700000000001"]), ("remove", ["999700000000001"]), ("list", ["--json"])]
    {
        let (code, text) = subscriber(verb, &rest);
        assert!(code == 1 && text.contains("there is no store at"), "{verb}: {text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let keys = ["--k", "465B5CE8B199B49FAA5F0A2EE238A6BC", "--opc", "E8ED289DEBA952E4283B54E88E6183CA"];
    let add = |rest: &[&str]| subscriber("add", &[&["999700000000001"], &keys[..], rest].concat());
    assert_eq!(add(&["--count", "0"]).0, 2);
    assert_eq!(add(&["--count", "3"]).0, 0);
    let (code, text) = add(&[]);
    assert!(code == 1 && text.contains("--replace"), "{text}");
    assert_eq!(add(&["--replace"]).0, 0);
    let (_, listed) = subscriber("list", &["--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert!(!listed.to_string().to_uppercase().contains("465B5C"), "no keys in a listing");

    // What `show --json` prints, `import` reads.
    let (_, shown) = subscriber("show", &["--json", "imsi-999700000000002"]);
    let file = folder.path().join("subscribers.json");
    std::fs::write(&file, format!("[{shown}]")).unwrap();
    assert_eq!(subscriber("remove", &["999700000000002"]).0, 0);
    assert_eq!(subscriber("show", &["999700000000002"]).0, 1);
    assert_eq!(subscriber("import", &[file.to_str().unwrap()]).0, 0);
    assert_eq!(subscriber("show", &["999700000000002"]).0, 0);

    std::fs::write(&file, "imsi,k,opc\n999700000000009,xyz,E8ED289DEBA952E4283B54E88E6183CA\n").unwrap();
    let (code, text) = subscriber("import", &[file.to_str().unwrap()]);
    assert!(code == 1 && text.contains("line 2"), "{text}");
    assert_eq!(subscriber("remove", &["999700000000009"]).0, 1);
}

/// The key of the store: created, required, refused with a wrong mode, changed.
#[test]
fn the_key_of_the_store_is_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (store, key, new_key) = (path("godwit.db"), path("store.key"), path("new.key"));
    let subscriber = |verb: &str, key: &str, rest: &[&str]| {
        let output = godwit(&[&["subscriber", verb, "--store", &store, "--store-key", key], rest].concat());
        (output.status.code().unwrap(), said(&output))
    };
    let k = "465b5ce8b199b49faa5f0a2ee238a6bc";
    let new = ["999700000000001", "--k", k, "--opc", "e8ed289deba952e4283b54e88e6183ca"];
    let (code, text) = subscriber("add", &key, &new);
    assert_eq!(code, 0, "{text}");
    let mode = std::fs::metadata(&key).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let on_disk = std::fs::read(&store).unwrap();
    assert!(!on_disk.windows(k.len()).any(|text| text.eq_ignore_ascii_case(k.as_bytes())));

    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, text) = subscriber("list", &key, &[]);
    assert!(code == 1 && text.contains("chmod 0600"), "{text}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let (code, text) = subscriber("list", &path("none.key"), &[]);
    assert!(code == 1 && text.contains("is missing: restore it"), "{text}");

    let (code, text) = subscriber("change-key", &key, &[&new_key]);
    assert!(code == 0 && text.contains("restart the core"), "{text}");
    let (code, text) = subscriber("list", &key, &[]);
    assert!(code == 1 && text.contains("is not the key that the store is encrypted with"), "{text}");
    let (code, shown) = subscriber("show", &new_key, &["999700000000001", "--json"]);
    assert!(code == 0 && shown.contains(k), "{shown}");
    // As systemd passes it to a service.
    std::fs::create_dir(path("credentials")).unwrap();
    std::fs::rename(&new_key, path("credentials/store.key")).unwrap();
    let mut list = Command::new(lab::find_godwit().unwrap());
    list.args(["subscriber", "list", "--store", &store]).env("CREDENTIALS_DIRECTORY", path("credentials"));
    let output = list.output().unwrap();
    assert!(output.status.success() && said(&output).contains("999700000000001"), "{}", said(&output));
}

/// A start that fails because of the machine or its files names the problem and the remedy.
#[test]
fn a_core_refuses_to_start_on_a_damaged_store_or_with_too_few_files() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../godwit.yaml");
    let mut text = std::fs::read_to_string(shipped).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (key, from, to) in [
        ("run_dir", "/run/godwit", path("run")),
        ("store", "/var/lib/godwit/godwit.db", path("godwit.db")),
        ("store_key", "/etc/godwit/store.key", path("store.key")),
    ] {
        let line = format!("\n{key}: {from}");
        assert!(text.contains(&line), "{line}");
        text = text.replace(&line, &format!("\n{key}: {to}"));
    }
    let config = path("godwit.yaml");
    std::fs::write(&config, text).unwrap();
    let godwit_path = lab::find_godwit().unwrap().display().to_string();
    let run = |before: &str| {
        let command = format!("{before} exec {godwit_path} run -c {config} --nf udr");
        Command::new("unshare").args(["-n", "sh", "-c", &command]).output().unwrap()
    };
    let output = run("ulimit -Sn 64; ulimit -Hn 100;");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("`ulimit -n` is 100"), "{}", said(&output));

    let keys = ["--k", "465B5CE8B199B49FAA5F0A2EE238A6BC", "--opc", "E8ED289DEBA952E4283B54E88E6183CA"];
    let add =
        [&["subscriber", "add", "-c", &config, "999700000000001", "--count", "2000"], &keys[..]].concat();
    assert!(godwit(&add).status.success());
    let mut octets = std::fs::read(path("godwit.db")).unwrap();
    let middle = octets.len() / 2 / 4096 * 4096;
    octets[middle..][..512].fill(0x5A);
    std::fs::write(path("godwit.db"), octets).unwrap();
    let output = run("");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("is damaged") && said(&output).contains(".recover"), "{}", said(&output));
}

#[test]
fn a_core_that_does_not_run_is_a_case_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = folder.path().to_str().unwrap();
    let status = godwit(&["status", "--run-dir", run_dir]);
    assert_eq!(status.status.code(), Some(4), "{}", said(&status));
    assert_eq!(said(&status).matches("not running").count(), 8, "{}", said(&status));
    for command in [["ue", "list"], ["session", "list"], ["upf", "stats"]] {
        let output = godwit(&[&command[..], &["--run-dir", run_dir]].concat());
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        assert!(said(&output).contains("is it running"), "{}", said(&output));
    }
    assert_eq!(godwit(&["no-such-command"]).status.code(), Some(2));
}

#[test]
fn a_running_core_is_listed() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 5).await.unwrap();
        let run_dir = world.lab.folder().join("run");
        let ask = |arguments: &[&str]| {
            let output = godwit(&[arguments, &["--run-dir", run_dir.to_str().unwrap()]].concat());
            assert!(output.status.success(), "{arguments:?}: {}", said(&output));
            String::from_utf8(output.stdout).unwrap()
        };
        let supi = ue.supi().to_string();
        assert!(ask(&["ue", "list"]).contains(&supi));
        assert!(ask(&["session", "list"]).contains(&supi));
        let shown: serde_json::Value =
            serde_json::from_str(&ask(&["session", "show", &supi, "5", "--json"])).unwrap();
        assert_eq!(shown.as_array().map(Vec::len), Some(1), "{shown}");
        assert!(ask(&["upf", "sessions"]).contains(&ue.sessions().next().unwrap().ipv4.unwrap().to_string()));
        let status = ask(&["status"]);
        assert_eq!(status.matches(" running ").count(), 8, "{status}");
    });
}

/// A service manager may stop a service at any time, also while an NF still looks for its NRF.
#[test]
fn a_signal_stops_a_core_that_is_not_ready_yet() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../godwit.yaml");
    let text = std::fs::read_to_string(shipped).unwrap();
    let config = folder.path().join("godwit.yaml");
    let run_dir = folder.path().join("run");
    std::fs::write(&config, text.replace("run_dir: /run/godwit", &format!("run_dir: {}", run_dir.display())))
        .unwrap();
    let command = format!(
        "ip link set lo up && exec {} run -c {} --nf udm",
        lab::find_godwit().unwrap().display(),
        config.display()
    );
    let mut core = Command::new("unshare").args(["-n", "sh", "-c", &command]).spawn().unwrap();
    let patience = |done: &mut dyn FnMut() -> bool| (0..100).any(|_| done() || pause());
    assert!(patience(&mut || run_dir.join("udm.sock").exists()), "the UDM did not start");
    let killed = Command::new("kill").args(["-TERM", &core.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut ended = None;
    let stopped = patience(&mut || {
        ended = core.try_wait().unwrap();
        ended.is_some()
    });
    if !stopped {
        core.kill().unwrap();
    }
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "one signal must be enough");
}

/// Waits 100 ms and returns `false`, so that it reads as "not yet" in a condition.
fn pause() -> bool {
    Command::new("sleep").arg("0.1").status().is_err()
}
