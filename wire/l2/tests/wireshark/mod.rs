//! PDUs for tshark: framed in UDP, written to a capture file, and read back by field.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "says what it skipped")]

use std::process::Command;

/// Whether tshark is there. In CI it must be.
pub fn present() -> bool {
    let found = Command::new("tshark").arg("--version").output().is_ok();
    if !found {
        assert!(std::env::var_os("CI").is_none(), "tshark is missing: scripts/setup.sh test");
        eprintln!("layer 2 is not compared with tshark: it is missing; scripts/setup.sh test installs it");
    }
    found
}

/// A UDP datagram over IPv4 without checksums.
pub fn datagram(payload: &[u8], port: u16) -> Vec<u8> {
    let total = 28 + payload.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 45, 0, 1, 10, 45, 0, 2]);
    packet.extend(port.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend((total - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend_from_slice(payload);
    packet
}

/// A capture file of raw IP packets.
fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xA1B2_C3D4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for (number, packet) in packets.iter().enumerate() {
        for word in [number as u32, 0, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend_from_slice(packet);
    }
    file
}

/// What tshark reads in each frame: the values of `fields`, those of one field separated by commas. `heuristic` finds the
/// protocol in UDP.
pub fn read(frames: &[Vec<u8>], heuristic: &str, preferences: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("frames.pcap");
    let packets: Vec<_> = frames.iter().map(|frame| datagram(frame, 5000)).collect();
    std::fs::write(&file, pcap(&packets)).unwrap();
    let mut command = Command::new("tshark");
    // No settings of whoever runs the test.
    command.env("HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
    command.arg("-n").arg("-r").arg(&file).args(["--enable-heuristic", heuristic]);
    for preference in preferences {
        command.args(["-o", preference]);
    }
    command.args(["-T", "fields", "-E", "separator=|"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let reads: Vec<Vec<_>> = text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect();
    assert_eq!(reads.len(), frames.len(), "{text}");
    reads
}
