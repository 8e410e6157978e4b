//! 5G-AKA (TS 33.501 §6.1.3.2, TS 33.102 §6.3): both sides, from the long-term key to KAMF.
//!
//! Network: [`Milenage::vector`] (UDM) → [`hxres_star`], [`kseaf`] (AUSF) → [`kamf`] (SEAF, in the AMF).
//! UE: [`Usim::answer`] checks AUTN and gives RES* and KAUSF, or says why it refuses; the same
//! [`kseaf`] and [`kamf`] follow. Resynchronisation: [`AkaFailure::Synchronisation`] carries AUTS,
//! which [`Milenage::resynchronise`] checks.
//!
//! Sequence numbers are 48 bits: 43 of SEQ and 5 of IND (TS 33.102 annex C.1.1, profile 2: not time
//! based). [`next_sqn`] is what the home network gives out next.
//!
//! Invariants: no randomness here (RAND is handed in), secrets only in types that do not print.

use oxirush_security::{
    Autn, Rand, constant_time_eq,
    milenage::{Amf, Auts, K, Op, Opc, Sqn},
    nas_5gs::{self, KAusf, KSeaf, ResStar, XresStar},
};
use types::{Key, Supi};

/// Largest sequence number: 48 bits.
pub const SQN_MAX: u64 = (1 << 48) - 1;
/// Bits of IND at the end of a sequence number.
const IND_BITS: u32 = 5;
/// How far SEQ may jump ahead of the highest one seen: 2^28 (TS 33.102 annex C.2.1, C.3).
const DELTA: u64 = 1 << 28;
/// ABBA of Release 15 and later security features (TS 33.501 annex A.7.1).
pub const ABBA: [u8; 2] = [0, 0];

/// A value that the derivations cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AkaError {
    /// More than 48 bits.
    #[error("sequence number needs more than 48 bits")]
    SqnTooLarge,
    /// The serving network name is longer than a derivation can take.
    #[error("serving network name too long")]
    NameTooLong,
    /// AUTS was not made with this key for this RAND.
    #[error("AUTS has a wrong MAC-S")]
    WrongAuts,
}

/// 5G home environment authentication vector (TS 33.501 §6.1.3.2.0).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector {
    /// Challenge.
    pub rand: Key<16>,
    /// Proof of the network: SQN ⊕ AK, AMF, MAC-A.
    pub autn: Key<16>,
    /// Expected answer.
    pub xres_star: Key<16>,
    /// Root of the keys of this authentication.
    pub kausf: Key<32>,
}

/// Milenage with the key material of one subscriber (TS 35.206).
#[derive(Debug)]
pub struct Milenage(oxirush_security::milenage::Milenage);

impl Milenage {
    /// From K and OPc.
    pub fn new(k: &Key<16>, opc: &Key<16>) -> Self {
        Self(oxirush_security::milenage::Milenage::new(&K::new(k.expose()), &Opc::new(opc.expose())))
    }

    /// From K and OP, the operator-wide secret.
    pub fn from_op(k: &Key<16>, op: &Key<16>) -> Self {
        let k = K::new(k.expose());
        let opc = Opc::from_op(&k, &Op::new(op.expose()));
        Self(oxirush_security::milenage::Milenage::new(&k, &opc))
    }

    /// Makes the vector of a challenge. `amf` is the authentication management field, with its separation
    /// bit set for 5G.
    ///
    /// # Errors
    /// [`AkaError::SqnTooLarge`], [`AkaError::NameTooLong`].
    pub fn vector(
        &self,
        rand: &Key<16>,
        sqn: u64,
        amf: &Key<2>,
        serving_network_name: &str,
    ) -> Result<Vector, AkaError> {
        let sqn = Sqn::try_from(sqn).map_err(|_| AkaError::SqnTooLarge)?;
        let vector = self.0.authentication_vector(&Rand::new(rand.expose()), &sqn, &Amf::new(amf.expose()));
        let name = serving_network_name.as_bytes();
        let kausf = nas_5gs::derive_kausf(vector.ck(), vector.ik(), name, vector.autn());
        let xres_star = vector.xres_star(name).map_err(|_| AkaError::NameTooLong)?;
        Ok(Vector {
            rand: rand.clone(),
            autn: Key::new(*vector.autn().as_octets()),
            xres_star: Key::new(*xres_star.as_octets()),
            kausf: Key::new(*kausf.map_err(|_| AkaError::NameTooLong)?.as_octets()),
        })
    }

    /// Checks AUTS, the answer to the challenge `rand`, and reads the USIM's sequence number from it.
    ///
    /// # Errors
    /// [`AkaError::WrongAuts`].
    pub fn resynchronise(&self, rand: &Key<16>, auts: &Key<14>) -> Result<u64, AkaError> {
        let sqn = self.0.verify_auts(&Rand::new(rand.expose()), &Auts::new(auts.expose()));
        sqn.map(|sqn| sqn.get()).map_err(|_| AkaError::WrongAuts)
    }
}

/// The sequence number to give out after `last`. SEQ and IND both grow by one (IND modulo 32), so that vectors
/// that overtake each other are still accepted (TS 33.102 annex C.1.1.3, C.2.2). Wraps after 2^43 vectors.
pub fn next_sqn(last: u64) -> u64 {
    let ind_mask = (1 << IND_BITS) - 1;
    let seq = (last >> IND_BITS).wrapping_add(1);
    let ind = last.wrapping_add(1) & ind_mask;
    (seq << IND_BITS | ind) & SQN_MAX
}

/// HXRES*, the hash of the expected answer that the serving network gets (TS 33.501 annex A.5).
pub fn hxres_star(rand: &Key<16>, xres_star: &Key<16>) -> Key<16> {
    let hash = nas_5gs::compute_hxres_star(&Rand::new(rand.expose()), &XresStar::new(xres_star.expose()));
    Key::new(*hash.as_octets())
}

/// Whether RES* hashes to HXRES*: the serving network's check. Takes the same time for any answer.
pub fn accepts_res_star(rand: &Key<16>, hxres_star: &Key<16>, res_star: &Key<16>) -> bool {
    let hash = nas_5gs::compute_hres_star(&Rand::new(rand.expose()), &ResStar::new(res_star.expose()));
    constant_time_eq(hash.as_octets(), hxres_star.expose())
}

/// Whether RES* is the expected one: the home network's check. Takes the same time for any answer.
pub fn same_res_star(xres_star: &Key<16>, res_star: &Key<16>) -> bool {
    constant_time_eq(xres_star.expose(), res_star.expose())
}

/// KSEAF, the anchor key of the serving network (TS 33.501 annex A.6).
///
/// # Errors
/// [`AkaError::NameTooLong`].
pub fn kseaf(kausf: &Key<32>, serving_network_name: &str) -> Result<Key<32>, AkaError> {
    let kseaf = nas_5gs::derive_kseaf(&KAusf::new(kausf.expose()), serving_network_name.as_bytes());
    Ok(Key::new(*kseaf.map_err(|_| AkaError::NameTooLong)?.as_octets()))
}

/// KAMF (TS 33.501 annex A.7).
pub fn kamf(kseaf: &Key<32>, supi: Supi, abba: [u8; 2]) -> Key<32> {
    let text = supi.to_string();
    let supi = nas_5gs::Supi::parse(&text).expect("every IMSI of types::Supi is a SUPI");
    let kamf = nas_5gs::derive_kamf(&KSeaf::new(kseaf.expose()), &supi, &abba);
    Key::new(*kamf.expect("15 digits and 2 octets are not too long").as_octets())
}

/// Why a USIM refuses a challenge (TS 24.501 §5.4.1.3.6).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AkaFailure {
    /// MAC-A is wrong: not our network, or not our key. 5GMM cause #20.
    #[error("MAC failure")]
    Mac,
    /// The separation bit is not set: a vector that is not for 5G. 5GMM cause #26.
    #[error("non-5G authentication unacceptable")]
    Non5g,
    /// The sequence number was used before or is out of range. 5GMM cause #21 with AUTS.
    #[error("synchronisation failure")]
    Synchronisation {
        /// Proof of the USIM's own sequence number.
        auts: Key<14>,
    },
}

/// What a USIM gives the UE for a challenge it accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsimAnswer {
    /// RES*, to send.
    pub res_star: Key<16>,
    /// KAUSF, to derive from.
    pub kausf: Key<32>,
}

/// A USIM: one subscriber's key material and the sequence numbers it has accepted. One per simulated UE.
#[derive(Debug)]
pub struct Usim {
    milenage: Milenage,
    /// Highest SEQ accepted for each IND (TS 33.102 annex C.2.2).
    seq: [u64; 1 << IND_BITS],
}

impl Usim {
    /// A USIM whose highest accepted sequence number is `sqn`.
    pub fn new(milenage: Milenage, sqn: u64) -> Self {
        Self { milenage, seq: [sqn >> IND_BITS; 1 << IND_BITS] }
    }

    /// Highest sequence number accepted (SQN_MS).
    pub fn sqn_ms(&self) -> u64 {
        let sqns = (0..).zip(&self.seq).map(|(ind, seq)| seq << IND_BITS | ind);
        sqns.max().unwrap_or(0)
    }

    /// Answers a challenge: checks MAC-A, the separation bit, then whether SQN is fresh.
    ///
    /// # Errors
    /// Why the challenge is refused.
    pub fn answer(
        &mut self,
        rand: &Key<16>,
        autn: &Key<16>,
        serving_network_name: &str,
    ) -> Result<UsimAnswer, AkaFailure> {
        let rand = Rand::new(rand.expose());
        let autn = Autn::new(autn.expose());
        let response = self.milenage.0.check_autn(&rand, &autn).map_err(|_| AkaFailure::Mac)?;
        if !response.amf().separation_bit() {
            return Err(AkaFailure::Non5g);
        }
        let name = serving_network_name.as_bytes();
        let kausf = nas_5gs::derive_kausf(response.ck(), response.ik(), name, &autn);
        // No network of ours has a name that is too long for the derivation.
        let (Ok(kausf), Ok(res_star)) = (kausf, response.res_star(name)) else {
            return Err(AkaFailure::Mac);
        };
        if !self.accept(response.sqn().get()) {
            let sqn_ms = Sqn::try_from(self.sqn_ms()).expect("an accepted SQN has 48 bits");
            let auts = Key::new(*self.milenage.0.auts(&rand, &sqn_ms).as_octets());
            return Err(AkaFailure::Synchronisation { auts });
        }
        Ok(UsimAnswer { res_star: Key::new(*res_star.as_octets()), kausf: Key::new(*kausf.as_octets()) })
    }

    /// Whether `sqn` is fresh; remembers it if so.
    fn accept(&mut self, sqn: u64) -> bool {
        let (seq, ind) = (sqn >> IND_BITS, sqn as usize & ((1 << IND_BITS) - 1));
        let highest = self.sqn_ms() >> IND_BITS;
        let Some(last) = self.seq.get_mut(ind) else { return false };
        let fresh = seq > *last && seq.saturating_sub(highest) <= DELTA;
        if fresh {
            *last = seq;
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "5G:mnc093.mcc208.3gppnetwork.org";
    const AMF: Key<2> = Key::new([0x80, 0]);

    /// TS 35.208 test set 1.
    fn milenage() -> Milenage {
        Milenage::new(&key("465b5ce8b199b49faa5f0a2ee238a6bc"), &key("cd63cb71954a9f4e48a5994e37a02baf"))
    }

    fn key<const N: usize>(hex: &str) -> Key<N> {
        hex.parse().unwrap()
    }

    fn rand() -> Key<16> {
        key("23553cbe9637a89d218ae64dae47bf35")
    }

    /// AUTN from f1…f5 of TS 35.208; the 5G derivations from a second implementation of TS 33.501
    /// annex A (HMAC-SHA-256 written out in Python).
    #[test]
    fn test_set_1_gives_the_known_vector_and_key_chain() {
        let vector = milenage().vector(&rand(), 0xff9b_b4d0_b607, &Key::new([0xb9, 0xb9]), NAME).unwrap();
        assert_eq!(vector.autn, key("55f328b43577b9b94a9ffac354dfafb3"));
        assert_eq!(vector.kausf, key("f2e35260f85194d4f891504d02111e56689ac23dd393bee3abbcc5bfbc013ef9"));
        assert_eq!(vector.xres_star, key("5cc9527f4d21c43bee83a15443acf1c4"));
        assert_eq!(hxres_star(&vector.rand, &vector.xres_star), key("6970075e3c8245fdc2073003cf166279"));
        let kseaf = kseaf(&vector.kausf, NAME).unwrap();
        assert_eq!(kseaf, key("cfddde483bd1318a412e98870f556410905be4fb7500abed93ee16af71bbb3fa"));
        let kamf = kamf(&kseaf, "imsi-208930000000001".parse().unwrap(), ABBA);
        assert_eq!(kamf, key("9d63b519775a92ca861ca6a50d848fa8ebf160ea7b73735a85b33737e73c55b4"));
    }

    #[test]
    fn op_and_opc_are_the_same_subscriber() {
        let op = Milenage::from_op(
            &key("465b5ce8b199b49faa5f0a2ee238a6bc"),
            &key("cdc202d5123e20f62b6d676ac72cb318"),
        );
        let vector = |m: Milenage| m.vector(&rand(), 1, &AMF, NAME).unwrap();
        assert_eq!(vector(op), vector(milenage()));
    }

    #[test]
    fn usim_and_network_agree_once_per_sequence_number() {
        let mut usim = Usim::new(milenage(), 0);
        let vector = milenage().vector(&rand(), next_sqn(0), &AMF, NAME).unwrap();
        let answer = usim.answer(&vector.rand, &vector.autn, NAME).unwrap();
        assert_eq!(answer.kausf, vector.kausf);
        assert!(same_res_star(&vector.xres_star, &answer.res_star));
        let hashed = hxres_star(&vector.rand, &vector.xres_star);
        assert!(accepts_res_star(&vector.rand, &hashed, &answer.res_star));
        assert!(!accepts_res_star(&vector.rand, &hashed, &Key::new([0; 16])));
        let replayed = usim.answer(&vector.rand, &vector.autn, NAME);
        assert!(matches!(replayed, Err(AkaFailure::Synchronisation { .. })));
    }

    #[test]
    fn wrong_key_wrong_separation_bit_and_bit_flips_are_refused() {
        let mut usim = Usim::new(Milenage::new(&Key::new([9; 16]), &Key::new([8; 16])), 0);
        let vector = milenage().vector(&rand(), 33, &AMF, NAME).unwrap();
        assert_eq!(usim.answer(&vector.rand, &vector.autn, NAME), Err(AkaFailure::Mac));
        let mut usim = Usim::new(milenage(), 0);
        let not_5g = milenage().vector(&rand(), 33, &Key::new([0, 0]), NAME).unwrap();
        assert_eq!(usim.answer(&not_5g.rand, &not_5g.autn, NAME), Err(AkaFailure::Non5g));
        for bit in 0..128 {
            let mut autn = *vector.autn.expose();
            autn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(usim.answer(&vector.rand, &Key::new(autn), NAME), Err(AkaFailure::Mac), "bit {bit}");
        }
    }

    #[test]
    fn resynchronisation_brings_both_sides_together() {
        let mut usim = Usim::new(milenage(), 1000 << 5);
        let vector = milenage().vector(&rand(), next_sqn(0), &AMF, NAME).unwrap();
        let Err(AkaFailure::Synchronisation { auts }) = usim.answer(&vector.rand, &vector.autn, NAME) else {
            panic!("an old sequence number was accepted");
        };
        let sqn_ms = milenage().resynchronise(&vector.rand, &auts).unwrap();
        assert_eq!(sqn_ms, usim.sqn_ms());
        assert_eq!(milenage().resynchronise(&Key::new([0; 16]), &auts), Err(AkaError::WrongAuts));
        let vector = milenage().vector(&rand(), next_sqn(sqn_ms), &AMF, NAME).unwrap();
        assert!(usim.answer(&vector.rand, &vector.autn, NAME).is_ok());
    }

    #[test]
    fn vectors_may_overtake_each_other_but_not_run_away() {
        let mut usim = Usim::new(milenage(), 0);
        let sqns: Vec<u64> =
            std::iter::successors(Some(next_sqn(0)), |s| Some(next_sqn(*s))).take(40).collect();
        assert!(sqns.is_sorted());
        assert!(usim.accept(sqns[5]) && usim.accept(sqns[3]) && usim.accept(sqns[4]));
        assert!(!usim.accept(sqns[3]));
        assert!(!usim.accept((DELTA + 100) << IND_BITS), "a jump of more than 2^28");
        assert!(next_sqn(SQN_MAX) <= SQN_MAX);
        let too_large = milenage().vector(&rand(), SQN_MAX + 1, &AMF, NAME);
        assert_eq!(too_large, Err(AkaError::SqnTooLarge));
    }
}
