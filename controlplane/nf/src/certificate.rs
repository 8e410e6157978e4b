//! The certificate of an NF: three files in the folder of keys and secrets, read at the start and again when they have
//! changed.
//!
//! `godwit certs` makes them; those of an operator's authority may stand there under the same names. The certificate says
//! which NF instance its owner is.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use net::{private_file, time};
use sbi::{
    Tls,
    model::{
        common::{DateTime, NfInstanceId},
        nrf::NfType,
    },
};

use crate::trust::{TrustError, content, stem};

/// The authority's certificate in the folder.
pub const AUTHORITY: &str = "ca.pem";
/// A certificate that expires sooner is to be replaced.
pub const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// Time between looks whether the files have changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Where the certificate of an NF is.
#[derive(Debug, Clone)]
pub struct CertificateFiles {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    /// Address that the certificate has to name: where the NF serves TLS.
    serves: Option<SocketAddr>,
}

/// What tells a file from its predecessor.
type Stamp = [Option<(u64, i64, i64)>; 3];

impl CertificateFiles {
    /// The files of an NF of this type, which serves TLS on this address, or serves none.
    pub fn of(folder: &Path, nf_type: &NfType, serves: Option<SocketAddr>) -> Self {
        let file = |ending| folder.join(format!("{}.{ending}", stem(nf_type)));
        Self { authority: folder.join(AUTHORITY), certificate: file("pem"), key: file("key"), serves }
    }

    /// The certificate and those between it and the authority's, in PEM.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// Its key, in PEM.
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// Reads them.
    ///
    /// # Errors
    /// What is missing, damaged or expired, does not fit together, or does not name the address; a key that others may read.
    pub fn load(&self) -> Result<Tls, TrustError> {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| match (source.kind(), self.serves) {
                (io::ErrorKind::NotFound, serves) => {
                    TrustError::NoCertificate { path: path.to_owned(), serves }
                }
                _ => TrustError::Io { path: path.to_owned(), source },
            })
        };
        let (certificate, authority) = (read(&self.certificate)?, read(&self.authority)?);
        let key = private_file::read(&self.key)?;
        let tls =
            Tls::new(&authority, &certificate, &key).map_err(|error| content(&self.certificate, error))?;
        match self.serves.filter(|address| !tls.names(*address)) {
            Some(address) => {
                let reason =
                    format!("does not name {}: `godwit certs --renew` makes one that does", address.ip());
                Err(content(&self.certificate, reason))
            }
            None => Ok(tls),
        }
    }

    fn stamp(&self) -> Stamp {
        [&self.authority, &self.certificate, &self.key].map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.mtime(), found.mtime_nsec()))
        })
    }
}

/// The certificate that an NF uses, and the files it came from.
#[derive(Debug)]
pub struct Certificate {
    files: CertificateFiles,
    tls: Tls,
    read: Stamp,
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// Those of [`CertificateFiles::load`].
    pub fn open(files: CertificateFiles) -> Result<Self, TrustError> {
        let read = files.stamp();
        let tls = files.load()?;
        warn_of_expiry(&files.certificate, tls.expires());
        Ok(Self { files, tls, read })
    }

    /// What clients and servers use; follows the files through [`Self::refresh`].
    pub fn tls(&self) -> Tls {
        self.tls.clone()
    }

    /// The NF instance that it names.
    pub fn instance(&self) -> NfInstanceId {
        self.tls.instance()
    }

    /// Reads the files again when they have changed; `true` when there is a new certificate. After an error the old one
    /// stays in use, and the files are read again when they change again.
    ///
    /// # Errors
    /// Those of [`CertificateFiles::load`]; the new certificate names another NF instance.
    pub fn refresh(&mut self) -> Result<bool, TrustError> {
        let stamp = self.files.stamp();
        if stamp == self.read {
            return Ok(false);
        }
        self.read = stamp;
        let new = self.files.load()?;
        if new.instance() != self.instance() {
            let reason = format!("names another NF instance than {}: restart the NF", self.instance());
            return Err(content(&self.files.certificate, reason));
        }
        self.tls.replace(&new);
        warn_of_expiry(&self.files.certificate, new.expires());
        Ok(true)
    }

    /// Refreshes for as long as it is polled.
    pub(crate) async fn follow(mut self) {
        loop {
            time::sleep(LOOK_INTERVAL).await;
            match self.refresh() {
                Ok(true) => tracing::info!(file = %self.files.certificate.display(), "new certificate"),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the certificate has changed but cannot be used"),
            }
        }
    }
}

/// Whether a certificate that expires then is to be replaced now.
pub fn expires_soon(expires: SystemTime) -> bool {
    expires < time::wall_clock() + RENEW_BEFORE
}

fn warn_of_expiry(path: &Path, expires: SystemTime) {
    if expires_soon(expires) {
        let (file, date) = (path.display(), DateTime::from(expires).0);
        tracing::warn!(%file, expires = date, "renew the certificate: `godwit certs --renew`");
    }
}
