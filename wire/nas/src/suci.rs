//! Concealing and de-concealing a SUPI (TS 33.501 annex C): null scheme, profiles A and B.
//!
//! The UE calls [`conceal`], the UDM (as SIDF) [`deconceal`]. Profile A takes about 50 µs and
//! profile B several times that: the UDM runs them off its signalling threads.

use oxirush_security::nas_5gs::{self, HomeNetworkPrivateKey, HomeNetworkPublicKey, Protection};
use types::{Imsi, Invalid, Key, Supi};

use crate::ie::{MobileIdentity, ProtectionScheme, Suci};

/// Why a SUCI could not be made or read, as far as a peer may know: TS 29.503 §6.3.7.3 has one cause for
/// each, and nothing finer may leave the SIDF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SuciError {
    /// Not null, A or B.
    #[error("unsupported protection scheme")]
    UnsupportedScheme,
    /// No private key with this identifier, or one for the other profile.
    #[error("invalid home network public key identifier")]
    InvalidKeyIdentifier,
    /// Forged, damaged, or made for another key.
    #[error("invalid scheme output")]
    InvalidSchemeOutput,
}

/// A home network private key, held by the UDM.
#[derive(Debug)]
pub struct PrivateKey(HomeNetworkPrivateKey);

impl PrivateKey {
    /// From the 32 octets of the private key.
    ///
    /// # Errors
    /// When they are no scalar of the curve, or `scheme` has no keys.
    pub fn new(scheme: ProtectionScheme, octets: &Key<32>) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("home network private key", "(not shown)", "a key of profile A or B");
        match scheme {
            ProtectionScheme::ProfileA => Ok(Self(HomeNetworkPrivateKey::profile_a(octets.expose()))),
            ProtectionScheme::ProfileB => {
                HomeNetworkPrivateKey::profile_b(octets.expose()).map(Self).map_err(|_| invalid())
            }
            ProtectionScheme::Null | ProtectionScheme::Other(_) => Err(invalid()),
        }
    }

    /// The public key for the USIM: 32 octets in profile A, 33 (compressed) in profile B.
    pub fn public_key(&self) -> Vec<u8> {
        self.0.public_key().to_octets()
    }
}

/// A home network public key, provisioned in the USIM.
#[derive(Debug)]
pub struct PublicKey {
    key: HomeNetworkPublicKey,
    key_id: u8,
}

impl PublicKey {
    /// From the octets of the public key (SEC1 form in profile B) and its identifier.
    ///
    /// # Errors
    /// When they are no public key of the profile.
    pub fn new(scheme: ProtectionScheme, key_id: u8, octets: &[u8]) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("home network public key", "(octets)", "a key of profile A or B");
        let key = match scheme {
            ProtectionScheme::ProfileA => {
                HomeNetworkPublicKey::profile_a(octets.try_into().map_err(|_| invalid())?)
            }
            ProtectionScheme::ProfileB => HomeNetworkPublicKey::profile_b(octets).map_err(|_| invalid())?,
            ProtectionScheme::Null | ProtectionScheme::Other(_) => return Err(invalid()),
        };
        Ok(Self { key, key_id })
    }
}

/// Makes the SUCI of `imsi`, whose MNC has `mnc_len` digits; without a key by the null scheme. With a key each
/// call draws a new ephemeral key from the system, so that two SUCIs cannot be linked.
///
/// # Errors
/// When the routing indicator is not one to four digits, or the IMSI is too short for its MNC.
pub fn conceal(
    imsi: Imsi,
    mnc_len: usize,
    routing_indicator: &str,
    key: Option<&PublicKey>,
) -> Result<Suci, Invalid> {
    let (plmn, msin) =
        imsi.split(mnc_len).ok_or_else(|| Invalid::new("IMSI", imsi, "an MNC of two or three digits"))?;
    let routing_indicator = routing_indicator.to_owned();
    let null = || {
        let output = crate::ie::bcd(&msin).unwrap_or_default();
        Suci {
            plmn,
            routing_indicator: routing_indicator.clone(),
            scheme: ProtectionScheme::Null,
            key_id: 0,
            output,
        }
    };
    let octets = |suci: &Suci| MobileIdentity::Suci(suci.clone()).write();
    let Some(PublicKey { key, key_id }) = key else { return Ok(null()) };
    let invalid = || Invalid::new("routing indicator", &routing_indicator, "one to four digits");
    // The library's own PLMN and routing indicator are read from the null form of the same SUCI.
    let template = nas_5gs::Suci::from_nas_octets(&octets(&null())).map_err(|_| invalid())?;
    let nas_5gs::HomeNetwork::Plmn(library_plmn) = template.home_network() else { return Err(invalid()) };
    let protection = Protection::Ecies { key_id: *key_id, key };
    let suci = nas_5gs::Suci::conceal_imsi(library_plmn, &msin, template.routing_indicator(), protection);
    let written = suci.and_then(|suci| suci.to_nas_octets()).map_err(|_| invalid())?;
    match MobileIdentity::read(&written) {
        Ok(MobileIdentity::Suci(suci)) => Ok(suci),
        _ => Err(invalid()),
    }
}

/// Reads the SUPI out of a SUCI. `key` is the private key that `suci.key_id` names; the null scheme needs none.
///
/// # Errors
/// The cause to answer with.
pub fn deconceal(suci: &Suci, key: Option<&PrivateKey>) -> Result<Supi, SuciError> {
    use nas_5gs::SuciError as Library;
    let octets = MobileIdentity::Suci(suci.clone()).write();
    let supi = nas_5gs::Suci::from_nas_octets(&octets).and_then(|s| s.deconceal(key.map(|k| &k.0)));
    let supi = supi.map_err(|error| match error {
        Library::UnknownScheme(..) | Library::ProprietaryScheme(..) => SuciError::UnsupportedScheme,
        Library::KeyIdentifier(..) | Library::MissingKey | Library::WrongKeyType { .. } => {
            SuciError::InvalidKeyIdentifier
        }
        _ => SuciError::InvalidSchemeOutput,
    })?;
    supi.to_string().parse().map_err(|_| SuciError::InvalidSchemeOutput)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    /// Private keys of TS 33.501 annex C.4.3.1 (profile A) and C.4.4.1 (profile B).
    fn annex_key(scheme: ProtectionScheme) -> PrivateKey {
        let text = match scheme {
            ProtectionScheme::ProfileA => "c53c22208b61860b06c62e5406a7b330c2b577aa5558981510d128247d38bd1d",
            _ => "f1ab1074477ebcc7f554ea1c5fc368b1616730155e0041ac447d6301975fecda",
        };
        PrivateKey::new(scheme, &text.parse().unwrap()).unwrap()
    }

    fn suci(scheme: u8, key_id: u8, output: &str) -> Suci {
        format!("suci-0-274-012-0-{scheme}-{key_id}-{output}").parse().unwrap()
    }

    #[test]
    fn the_sucis_of_annex_c_read_as_the_annex_says() {
        let a = suci(
            1,
            27,
            "b2e92f836055a255837debf850b528997ce0201cb82adfe4be1f587d07d8457dcb02352410cddd9e730ef3fa87",
        );
        let b = suci(
            2,
            27,
            "039aab8376597021e855679a9778ea0b67396e68c66df32c0f41e9acca2da9b9d146a33fc2716ac7dae96aa30a4d",
        );
        for (suci, scheme) in [(&a, ProtectionScheme::ProfileA), (&b, ProtectionScheme::ProfileB)] {
            let supi = deconceal(suci, Some(&annex_key(scheme))).unwrap();
            assert_eq!(supi.to_string(), "imsi-274012001002086");
        }
        assert_eq!(deconceal(&a, None), Err(SuciError::InvalidKeyIdentifier));
        let wrong = annex_key(ProtectionScheme::ProfileB);
        assert_eq!(deconceal(&a, Some(&wrong)), Err(SuciError::InvalidKeyIdentifier));
    }

    #[test]
    fn what_a_ue_conceals_the_home_network_reads_and_nobody_links() {
        let imsi: Imsi = "999700000000001".parse().unwrap();
        let null = conceal(imsi, 2, "0", None).unwrap();
        assert_eq!(null.to_string(), "suci-0-999-70-0-0-0-0000000001");
        assert_eq!(deconceal(&null, None), Ok(Supi(imsi)));
        for scheme in [ProtectionScheme::ProfileA, ProtectionScheme::ProfileB] {
            let private = annex_key(scheme);
            let public = PublicKey::new(scheme, 7, &private.public_key()).unwrap();
            let [one, two] = [(); 2].map(|()| conceal(imsi, 2, "12", Some(&public)).unwrap());
            assert_eq!((one.scheme, one.key_id, one.routing_indicator.as_str()), (scheme, 7, "12"));
            assert_ne!(one.output, two.output);
            assert_eq!(deconceal(&one, Some(&private)), Ok(Supi(imsi)));
            assert_eq!(one.to_string().parse(), Ok(one));
        }
    }

    #[test]
    fn every_damaged_octet_is_noticed_and_told_alike() {
        let private = annex_key(ProtectionScheme::ProfileA);
        let public = PublicKey::new(ProtectionScheme::ProfileA, 1, &private.public_key()).unwrap();
        let good = conceal("274012001002086".parse().unwrap(), 3, "0", Some(&public)).unwrap();
        for i in 0..good.output.len() {
            let mut damaged = good.clone();
            damaged.output[i] ^= 1;
            assert_eq!(deconceal(&damaged, Some(&private)), Err(SuciError::InvalidSchemeOutput), "octet {i}");
            let mut short = good.clone();
            short.output.truncate(i);
            assert!(deconceal(&short, Some(&private)).is_err(), "{i} octets");
        }
        let other = Suci { scheme: ProtectionScheme::Other(12), ..good };
        assert_eq!(deconceal(&other, Some(&private)), Err(SuciError::UnsupportedScheme));
        assert!(PublicKey::new(ProtectionScheme::ProfileB, 1, &hex("02ff")).is_err());
    }
}
