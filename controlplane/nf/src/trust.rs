//! The folder of keys and secrets with which network functions authenticate each other.
//!
//! | file | holds | read by |
//! |---|---|---|
//! | `nrf-token.key` | the NRF's key, which signs access tokens (PKCS #8, PEM) | NRF |
//! | `nrf-token.pub` | the NRF's public key (PEM) | every NF, to verify tokens |
//! | `nrf-owners.json` | which secret an NF instance proved itself with first | NRF |
//! | `<nf>.secret`, `<nf>-<name>.secret` | what an NF shares with the NRF (64 hexadecimal digits) | that NF, NRF |
//! | `ca.pem` | the certificate of the authority that signs those of NFs (PEM) | every NF with TLS |
//! | `<nf>.pem`, `<nf>.key` | the NF's certificate and its key (PEM); see [`crate::certificate`] | that NF |
//! | `ca.key` | the authority's key (PEM), only to make more certificates | `godwit certs` |
//!
//! The first start makes the keys and secrets for tokens that are missing. So a core on one machine needs no preparation;
//! its processes share the folder. An NF on another machine gets a copy of `nrf-token.pub` and makes its own secret, which is copied
//! to the NRF's machine under a name of its own, such as `amf-east.secret`. Files have mode 0600; keys and secrets that
//! others may read are refused.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use net::private_file::{self, PrivateFileError};
use sbi::{
    access::{Secret, SigningKey, VerifyingKey},
    model::nrf::NfType,
};
use types::Key;

const SIGNING_KEY: &str = "nrf-token.key";
const VERIFYING_KEY: &str = "nrf-token.pub";
/// Secrets of one NF type that an NRF reads: one per machine.
const MAX_SECRETS: usize = 256;

/// Why the folder cannot be used. Names the file, never what is in it.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The folder or a file cannot be read or made.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A secret that cannot be read, or that others may read.
    #[error(transparent)]
    Secret(#[from] PrivateFileError),
    /// The content of the file is not of the expected kind.
    #[error("{}: {reason}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What was expected.
        reason: String,
    },
    /// The NRF's public key is not here and must not be made here.
    #[error(
        "{}: not there; copy it from the NRF's machine (or start the NRF first, when it runs on this machine)",
        .0.display()
    )]
    NoVerifyingKey(PathBuf),
    /// TLS is needed, and a certificate is not there.
    #[error(
        "{}: not there, and TLS is needed{}: make certificates with `godwit certs`, or switch TLS off with `sbi.tls: off`",
        path.display(),
        serves.map_or_else(|| " for calls".to_owned(), |address| format!(" at {address}"))
    )]
    NoCertificate {
        /// The file that is missing.
        path: PathBuf,
        /// Where the NF listens with TLS; `None` when it needs TLS for its calls only.
        serves: Option<SocketAddr>,
    },
}

impl TrustError {
    /// Whether this process has no right to read what is there.
    pub fn is_denied(&self) -> bool {
        let error = match self {
            Self::Io { source, .. } => source,
            Self::Secret(PrivateFileError::Unreadable { error, .. }) => error,
            _ => return false,
        };
        error.kind() == io::ErrorKind::PermissionDenied
    }
}

/// The folder, opened: the NRF's public key is there.
#[derive(Debug, Clone)]
pub struct Trust {
    folder: PathBuf,
    verifying: VerifyingKey,
}

impl Trust {
    /// Opens the folder. With `nrf_is_local` the folder and the NRF's key are made if they are missing; otherwise the NRF runs on
    /// another machine, and its public key must have been copied here.
    ///
    /// # Errors
    /// Files that cannot be made, are missing, damaged, or open to others.
    pub fn open(folder: &Path, nrf_is_local: bool) -> Result<Self, TrustError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|source| TrustError::Io { path: folder.to_owned(), source })?;
        let public = folder.join(VERIFYING_KEY);
        if nrf_is_local && !public.exists() {
            let key = signing_key(folder)?;
            create(&public, &pem("PUBLIC KEY", &key.public().to_spki()))?;
        }
        let text = fs::read_to_string(&public).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => TrustError::NoVerifyingKey(public.clone()),
            _ => TrustError::Io { path: public.clone(), source },
        })?;
        let verifying = unpem("PUBLIC KEY", &text)
            .and_then(|der| VerifyingKey::from_spki(&der).ok())
            .ok_or_else(|| content(&public, "expected a P-256 public key in PEM"))?;
        Ok(Self { folder: folder.to_owned(), verifying })
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The key that verifies access tokens.
    pub fn verifying_key(&self) -> VerifyingKey {
        self.verifying
    }

    /// The key that signs them: for the NRF alone.
    ///
    /// # Errors
    /// It is missing, damaged, open to others, or does not belong to `nrf-token.pub`.
    pub fn signing_key(&self) -> Result<SigningKey, TrustError> {
        let key = signing_key(&self.folder)?;
        if key.public() != self.verifying {
            let reason =
                format!("does not belong to {VERIFYING_KEY}; remove {VERIFYING_KEY} to have it made again");
            return Err(content(&self.folder.join(SIGNING_KEY), reason));
        }
        Ok(key)
    }

    /// The secret of an NF of this type on this machine; made if there is none.
    ///
    /// # Errors
    /// It cannot be made, is damaged or open to others.
    pub fn secret(&self, nf_type: &NfType) -> Result<Secret, TrustError> {
        let path = self.folder.join(format!("{}.secret", stem(nf_type)));
        if !path.exists() {
            let secret = Secret::generate().map_err(|error| content(&path, error))?;
            create(&path, &format!("{}\n", secret.to_hex()))?;
        }
        read_secret(&path)
    }

    /// Every secret of NFs of this type, by file name: for the NRF alone. Damaged files are logged and left out.
    ///
    /// # Errors
    /// The folder or a file in it may not be read.
    pub fn secrets(&self, nf_type: &NfType) -> Result<Vec<(String, Secret)>, TrustError> {
        let files = self.secret_files(&stem(nf_type))?;
        let secrets = files.into_iter().take(MAX_SECRETS).filter_map(|path| match read_secret(&path) {
            Ok(secret) => Some(Ok((path.file_name()?.to_string_lossy().into_owned(), secret))),
            // This process may read no secret. That does not mean that they were removed.
            Err(error) if error.is_denied() => Some(Err(error)),
            Err(error) => {
                tracing::warn!(%error, "a secret is left out");
                None
            }
        });
        secrets.collect()
    }

    /// Files `<stem>.secret` and `<stem>-….secret`, sorted.
    fn secret_files(&self, stem: &str) -> Result<Vec<PathBuf>, TrustError> {
        let io = |source| TrustError::Io { path: self.folder.clone(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let name =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".secret"));
            let rest = name.and_then(|name| name.strip_prefix(stem));
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// The beginning of file names of an NF type. Types of later releases are any text, so only letters and digits remain.
pub(crate) fn stem(nf_type: &NfType) -> String {
    let letters = nf_type.as_str().chars().filter(char::is_ascii_alphanumeric).take(32);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// The NRF's key of a folder; made if there is none.
fn signing_key(folder: &Path) -> Result<SigningKey, TrustError> {
    let path = folder.join(SIGNING_KEY);
    if !path.exists() {
        let octets = SigningKey::generate().map_err(|error| content(&path, error))?;
        create(&path, &pem("PRIVATE KEY", &octets))?;
    }
    let octets = unpem("PRIVATE KEY", &private_file::read(&path)?);
    let octets = octets.ok_or_else(|| content(&path, "expected a private key in PEM"))?;
    SigningKey::from_pkcs8(&octets).map_err(|error| content(&path, error))
}

fn read_secret(path: &Path) -> Result<Secret, TrustError> {
    let octets: Result<Key<32>, _> = private_file::read(path)?.trim().parse();
    let octets = octets.map_err(|_| content(path, "expected 64 hexadecimal digits"))?;
    Ok(Secret::new(&octets))
}

pub(crate) fn content(path: &Path, reason: impl ToString) -> TrustError {
    TrustError::Content { path: path.to_owned(), reason: reason.to_string() }
}

/// Makes a file, unless another process was faster; then the other's stays.
fn create(path: &Path, text: &str) -> Result<(), TrustError> {
    match private_file::create(path, text) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(TrustError::Io { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// One PEM block (RFC 7468).
fn pem(label: &str, octets: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(octets);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

fn unpem(label: &str, text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once("-----END ")?;
    let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    BASE64_STANDARD.decode(body).ok()
}
