//! Encryption of subscriber keys at rest: the database contains K, OPc and OP as AES-256-GCM
//! ciphertexts.
//!
//! The key is in a separate file ([`KeySource`]), so that a copy of the database alone (a backup, a
//! disk sent for repair) does not reveal a USIM's secrets. Each value has a random nonce and is bound
//! to its IMSI and field: ciphertexts that somebody swaps between rows or columns do not decrypt. A
//! *key check*, a known text encrypted with the same key, distinguishes a wrong key file from a damaged
//! row.

use std::path::{Path, PathBuf};

use net::private_file::{self, PrivateFileError};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use types::Key;

/// Name of the systemd credential that holds the key (`LoadCredential=store.key:…`).
const CREDENTIAL: &str = "store.key";
/// The known text of the key check.
const KEY_CHECK: &[u8] = b"godwit store key";

/// Why the key of the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is missing although there are encrypted keys.
    #[error(
        "the subscribers' keys are encrypted, and the key to them, {}, is missing: restore it from its backup \
         (without it, import the subscribers into a new store)",
        path.display()
    )]
    Missing {
        /// Where the key should be.
        path: PathBuf,
    },
    /// The file cannot be used.
    #[error("key of the store: {0}")]
    File(#[from] PrivateFileError),
    /// The file does not contain a key.
    #[error("{} is no key of the store: 64 hexadecimal digits are expected", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// A new key could not be written.
    #[error("cannot create the key of the store, {}: {error} (`store_key` of the configuration names the file)", path.display())]
    NotCreated {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The store was encrypted with another key.
    #[error(
        "{} is not the key that the store is encrypted with: name the right one (`store_key`); after a change of \
         keys, restart the core",
        path.display()
    )]
    Wrong {
        /// The file.
        path: PathBuf,
    },
    /// The system's random numbers or the cipher failed.
    #[error("encryption failed")]
    Cipher,
}

/// Where the key of a store is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file of mode 0600 with 64 hexadecimal digits; created with a new store.
    File(PathBuf),
    /// A systemd credential of the same content; never created.
    Credential(PathBuf),
}

impl KeySource {
    /// The systemd credential `store.key` if this process has one, otherwise `file`.
    pub fn find(file: &Path) -> KeySource {
        match private_file::credential(CREDENTIAL) {
            Some(path) => KeySource::Credential(path),
            None => KeySource::File(file.to_owned()),
        }
    }

    /// The path of the file or credential.
    pub fn path(&self) -> &Path {
        match self {
            KeySource::File(path) | KeySource::Credential(path) => path,
        }
    }

    /// Reads the key.
    pub(crate) fn load(&self) -> Result<StoreKey, KeyError> {
        let text = match self {
            KeySource::File(path) => private_file::read(path),
            KeySource::Credential(path) => private_file::read_credential(path),
        };
        let path = || self.path().to_owned();
        let text = text.map_err(|error| match error.is_not_found() {
            true => KeyError::Missing { path: path() },
            false => KeyError::File(error),
        })?;
        let key: Key<32> = text.trim().parse().map_err(|_| KeyError::NotAKey { path: path() })?;
        StoreKey::new(&key, path())
    }

    /// Reads the key. A missing file is created with a new key.
    pub(crate) fn load_or_create(&self) -> Result<StoreKey, KeyError> {
        match self.load() {
            Err(KeyError::Missing { path }) if matches!(self, KeySource::File(_)) => {
                let mut octets = [0; 32];
                SystemRandom::new().fill(&mut octets).map_err(|_| KeyError::Cipher)?;
                let text = Key::new(octets).to_hex() + "\n";
                match private_file::create(&path, &text) {
                    Ok(()) => tracing::info!(file = %path.display(), "key of the store created: back it up"),
                    // Another process has created the file first: its key is used.
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(KeyError::NotCreated { path, error }),
                }
                self.load()
            }
            loaded => loaded,
        }
    }
}

/// The key, ready for use. One per open store.
#[derive(Debug)]
pub(crate) struct StoreKey {
    key: LessSafeKey,
    /// The file it was read from, for errors.
    path: PathBuf,
}

impl StoreKey {
    fn new(key: &Key<32>, path: PathBuf) -> Result<Self, KeyError> {
        let key = UnboundKey::new(&AES_256_GCM, key.expose()).map_err(|_| KeyError::Cipher)?;
        Ok(Self { key: LessSafeKey::new(key), path })
    }

    /// Encrypts a field of the subscriber `imsi`: nonce, ciphertext and tag, 44 octets.
    pub fn seal(&self, imsi: &str, field: &str, value: &Key<16>) -> Result<Vec<u8>, KeyError> {
        self.seal_octets(&context(imsi, field), value.expose())
    }

    /// Decrypts a field of the subscriber `imsi`; `None` if it was not encrypted for this field with
    /// this key.
    pub fn open(&self, imsi: &str, field: &str, sealed: &[u8]) -> Option<Key<16>> {
        let octets = self.open_octets(&context(imsi, field), sealed)?;
        octets.try_into().ok().map(Key::new)
    }

    /// The value with which [`Self::verify`] later recognises this key.
    pub fn check_value(&self) -> Result<Vec<u8>, KeyError> {
        self.seal_octets("key check", KEY_CHECK)
    }

    /// Whether `check_value` was made with this key.
    ///
    /// # Errors
    /// [`KeyError::Wrong`].
    pub fn verify(&self, check_value: &[u8]) -> Result<(), KeyError> {
        match self.open_octets("key check", check_value) {
            Some(text) if text == KEY_CHECK => Ok(()),
            _ => Err(KeyError::Wrong { path: self.path.clone() }),
        }
    }

    fn seal_octets(&self, context: &str, octets: &[u8]) -> Result<Vec<u8>, KeyError> {
        // Random nonces of 96 bits: NIST SP 800-38D allows 2^32 values under one key.
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| KeyError::Cipher)?;
        let mut ciphertext = octets.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(context),
                &mut ciphertext,
            )
            .map_err(|_| KeyError::Cipher)?;
        Ok([&nonce[..], &ciphertext].concat())
    }

    fn open_octets(&self, context: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, ciphertext) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut octets = ciphertext.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(context), &mut octets).ok()?;
        Some(opened.to_vec())
    }
}

/// The text that binds a value to its field. An IMSI has digits only, so the texts of two fields always
/// differ.
fn context(imsi: &str, field: &str) -> String {
    format!("subscriber {imsi} {field}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(octet: u8) -> StoreKey {
        StoreKey::new(&Key::new([octet; 32]), PathBuf::from("test")).unwrap()
    }

    #[test]
    fn a_value_opens_only_in_its_place_with_its_key_and_unchanged() {
        let (key, other) = (key(1), key(2));
        let secret = Key::new([7; 16]);
        let sealed = key.seal("999700000000001", "k", &secret).unwrap();
        assert_eq!(sealed.len(), NONCE_LEN + 16 + 16);
        assert_eq!(key.open("999700000000001", "k", &sealed), Some(secret.clone()));
        assert_eq!(key.open("999700000000002", "k", &sealed), None, "moved to another row");
        assert_eq!(key.open("999700000000001", "opc", &sealed), None, "moved to another column");
        assert_eq!(other.open("999700000000001", "k", &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(key.open("999700000000001", "k", &changed), None, "octet {at}");
            assert_eq!(key.open("999700000000001", "k", &sealed[..at]), None, "cut at {at}");
        }
        assert_ne!(sealed, key.seal("999700000000001", "k", &secret).unwrap(), "nonces differ");
    }

    #[test]
    fn the_check_value_tells_keys_apart() {
        let value = key(1).check_value().unwrap();
        key(1).verify(&value).unwrap();
        assert!(matches!(key(2).verify(&value), Err(KeyError::Wrong { .. })));
        assert!(key(1).verify(b"").is_err());
    }

    #[test]
    fn a_key_file_is_created_once_and_refused_when_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let source = KeySource::File(folder.path().join("sub/store.key"));
        assert!(matches!(source.load(), Err(KeyError::Missing { .. })));
        let value = source.load_or_create().unwrap().check_value().unwrap();
        source.load_or_create().unwrap().verify(&value).unwrap();
        std::fs::write(source.path(), "465B5CE8").unwrap();
        let error = source.load_or_create().unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits") && !error.contains("465B"), "{error}");
        let credential = KeySource::Credential(folder.path().join("none"));
        assert!(matches!(credential.load_or_create(), Err(KeyError::Missing { .. })), "never created");
    }
}
