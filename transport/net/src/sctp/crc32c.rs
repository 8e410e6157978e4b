//! The checksum of SCTP: CRC32c (RFC 9260 appendix A), computed for eight bytes at a time with tables.

const POLYNOMIAL: u32 = 0x82f6_3b78; // reflected Castagnoli

/// `TABLES[k][b]`: the register after byte `b` followed by `k` zero bytes.
const TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = if register & 1 == 1 { (register >> 1) ^ POLYNOMIAL } else { register >> 1 };
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
};

/// Continues a checksum with `bytes` (start with `!0`, finish with a complement).
fn update(mut register: u32, bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let low = register ^ u32::from_le_bytes([eight[0], eight[1], eight[2], eight[3]]);
        register = TABLES[7][(low & 0xff) as usize]
            ^ TABLES[6][(low >> 8 & 0xff) as usize]
            ^ TABLES[5][(low >> 16 & 0xff) as usize]
            ^ TABLES[4][(low >> 24) as usize]
            ^ TABLES[3][eight[4] as usize]
            ^ TABLES[2][eight[5] as usize]
            ^ TABLES[1][eight[6] as usize]
            ^ TABLES[0][eight[7] as usize];
    }
    for byte in rest {
        register = (register >> 8) ^ TABLES[0][((register ^ u32::from(*byte)) & 0xff) as usize];
    }
    register
}

/// The checksum of an SCTP packet; its checksum field (bytes 8..12) is treated as zero.
/// `packet` must have at least the 12 bytes of the common header.
pub(super) fn packet_checksum(packet: &[u8]) -> u32 {
    let register = update(!0, &packet[..8]);
    let register = update(register, &[0; 4]);
    !update(register, &packet[12..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // RFC 3720 §B.4.
        assert_eq!(!update(!0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(!update(!0, &[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(!update(!0, &ascending), 0x46dd_794e);
        assert_eq!(!update(!0, b"123456789"), 0xe306_9283);
    }
}
