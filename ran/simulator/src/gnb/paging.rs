//! Paging (TS 38.413 §8.5, TS 38.304 §7.1): a gNB broadcasts a page, and the UE that camps under the
//! paged identity receives it.
//!
//! A UE camps with its 5G-S-TMSI as long as it has one, connected or not. So a page is not lost that
//! arrives after the release of the UE's connection and before the UE is idle.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ngap::Paging;
use tokio::sync::Notify;
use types::{STmsi, Tai};

use super::{Gnb, GnbConfig};

/// The UEs that camp on a gNB, by the identity they are paged with.
#[derive(Debug)]
pub(super) struct CampingUes {
    /// The tracking area of its cell.
    tai: Tai,
    ues: Mutex<HashMap<STmsi, Arc<Notify>>>,
}

impl CampingUes {
    pub(super) fn of(gnb: &GnbConfig) -> Self {
        Self { tai: Tai { plmn: gnb.plmn, tac: gnb.tac }, ues: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<STmsi, Arc<Notify>>> {
        self.ues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages the UE in the gNB's cell, if it camps here and the page names our tracking area. Returns
    /// whether a UE was paged.
    pub(super) fn page(&self, paging: &Paging) -> bool {
        if !paging.tais.contains(&self.tai) {
            return false;
        }
        match self.lock().get(&paging.s_tmsi) {
            Some(paged) => {
                paged.notify_one();
                true
            }
            None => false,
        }
    }
}

/// A UE's registration for pages on a gNB, which ends when this is dropped.
#[derive(Debug)]
pub struct Camping {
    gnb: Gnb,
    s_tmsi: STmsi,
    paged: Arc<Notify>,
}

impl Gnb {
    /// Lets a UE receive pages of `s_tmsi` on this gNB.
    pub fn camp(&self, s_tmsi: STmsi) -> Camping {
        let paged = Arc::new(Notify::new());
        self.radio.camping.lock().insert(s_tmsi, Arc::clone(&paged));
        Camping { gnb: self.clone(), s_tmsi, paged }
    }
}

impl Camping {
    /// Waits for a page. A page that came since the last call completes the call at once. Cancel-safe.
    pub async fn paged(&self) {
        self.paged.notified().await;
    }

    /// Whether the UE camps on `gnb`.
    pub fn is_on(&self, gnb: &Gnb) -> bool {
        self.gnb.is(gnb)
    }

    /// Forgets a page that has been answered.
    pub fn clear(&mut self) {
        let mut camping = self.gnb.radio.camping.lock();
        // Another UE may have been given the identity since.
        if let Some(current) = camping.get_mut(&self.s_tmsi).filter(|of| Arc::ptr_eq(of, &self.paged)) {
            self.paged = Arc::new(Notify::new());
            *current = Arc::clone(&self.paged);
        }
    }
}

impl Drop for Camping {
    fn drop(&mut self) {
        let mut camping = self.gnb.radio.camping.lock();
        if camping.get(&self.s_tmsi).is_some_and(|current| Arc::ptr_eq(current, &self.paged)) {
            camping.remove(&self.s_tmsi);
        }
    }
}
