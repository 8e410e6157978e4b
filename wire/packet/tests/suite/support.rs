//! Shared by the test binaries: hex fixtures and systematic damage.

/// scapy: IP(src="10.45.0.2", dst="10.201.0.2", id=7, tos=0x28)/UDP(sport=4000, dport=5000)/b"godwit".
pub const INNER: &str = "4528002200070000401165a30a2d00020ac900020fa01388000e9255676f64776974";

/// Octets of a hex string; blanks are ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|b| *b != b' ')
        .map(|b| (b as char).to_digit(16).expect("fixtures are hex") as u8)
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Runs `decode` on every truncation, every single bit flip, and every octet set to 0 and 255.
pub fn damaged(bytes: &[u8], decode: impl Fn(&[u8])) {
    for length in 0..bytes.len() {
        decode(&bytes[..length]);
    }
    let mut copy = bytes.to_vec();
    for at in 0..bytes.len() {
        for value in (0..8).map(|bit| bytes[at] ^ (1 << bit)).chain([0, 255]) {
            copy[at] = value;
            decode(&copy);
        }
        copy[at] = bytes[at];
    }
}
