//! Which secret an NF instance proved itself with first. An NF with another secret cannot pose as it afterwards.
//!
//! The names of instances can be foreseen, so the list outlives the NRF: it is the file `nrf-owners.json` in the folder of
//! keys and secrets, written anew when an instance comes that was not known.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
};

use net::private_file;
use sbi::model::common::NfInstanceId;

const FILE: &str = "nrf-owners.json";
/// Instances of one secret; the one that came first is forgotten for another. An NF that takes new names for ever pushes
/// out its own.
const PER_SECRET: usize = 64;

/// NF instances by the file name of their secret, in the order in which they came.
#[derive(Debug, Default)]
pub struct Owners {
    file: PathBuf,
    instances: BTreeMap<String, VecDeque<NfInstanceId>>,
}

impl Owners {
    /// The list in this folder. A file that cannot be read is logged, and begins anew.
    pub fn open(folder: &Path) -> Self {
        let file = folder.join(FILE);
        let instances = match private_file::read(&file) {
            Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %file.display(), "the owners of NF instances are unreadable");
                BTreeMap::default()
            }),
            Err(error) if error.is_not_found() => BTreeMap::default(),
            Err(error) => {
                tracing::warn!(%error, "the owners of NF instances are unreadable");
                BTreeMap::default()
            }
        };
        Self { file, instances }
    }

    /// Whether `secret` may speak for the instance: it did so first, or nobody has.
    pub fn claim(&mut self, id: NfInstanceId, secret: &str) -> bool {
        if let Some((owner, _)) = self.instances.iter().find(|(_, ids)| ids.contains(&id)) {
            return owner == secret;
        }
        let ids = self.instances.entry(secret.to_owned()).or_default();
        if ids.len() >= PER_SECRET {
            ids.pop_front();
        }
        ids.push_back(id);
        // Without it everything works until the next start: who comes first then owns the name.
        if let Err(error) = self.save() {
            tracing::warn!(%error, file = %self.file.display(), "the owners of NF instances were not kept");
        }
        true
    }

    fn save(&self) -> std::io::Result<()> {
        private_file::replace(&self.file, &serde_json::to_string(&self.instances)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_kept_and_each_secret_has_its_share() {
        let folder = tempfile::tempdir().unwrap();
        let id = NfInstanceId::from_random;
        let mut owners = Owners::open(folder.path());
        assert!(owners.claim(id(1), "udm.secret") && owners.claim(id(1), "udm.secret"));
        assert!(!owners.claim(id(1), "amf-east.secret"));
        let mut owners = Owners::open(folder.path());
        assert!(!owners.claim(id(1), "amf-east.secret"), "after a restart");
        for n in 100..1_000 {
            assert!(owners.claim(id(n), "amf-east.secret"));
        }
        assert!(!owners.claim(id(1), "amf-east.secret"), "one secret pushes out its own only");
        assert_eq!(owners.instances["amf-east.secret"].len(), PER_SECRET);
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(Owners::open(folder.path()).claim(id(1), "amf-east.secret"), "a damaged file begins anew");
    }
}
