//! How a gNB connects: SCTP, then NG Setup (TS 38.413 §8.7.1).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::sctp;
use ngap::{GnbId, Pdu};
use tokio::sync::{mpsc, watch};

use crate::config::{GNB_ID_BITS, GnbConfig};
use crate::reader::Reader;
use crate::{Gnb, INTERFACE_QUEUE, Interface, Shared};

/// How long NG Setup may take.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a gNB did not come up.
#[derive(Debug, thiserror::Error)]
pub enum GnbError {
    /// The association could not be set up.
    #[error(transparent)]
    Connect(#[from] sctp::ConnectError),
    /// No address of an AMF is configured.
    #[error("no address of an AMF is given")]
    NoAmf,
    /// The identity does not fit in 24 bits.
    #[error("gNB identity {0:#x} does not fit in {GNB_ID_BITS} bits")]
    Identity(u32),
    /// The AMF refused NG Setup.
    #[error("the AMF refused NG Setup: {0}")]
    Refused(ngap::Cause),
    /// The AMF answered NG Setup with another message, or not at all.
    #[error("NG Setup failed: {0}")]
    Setup(String),
}

impl Gnb {
    /// Connects to the first AMF that answers, and completes NG Setup. An AMF that refuses the gNB ends the search.
    ///
    /// # Errors
    /// See [`GnbError`]; of several addresses, that of the last one.
    pub async fn connect(config: GnbConfig) -> Result<Self, GnbError> {
        let mut outcome = Err(GnbError::NoAmf);
        for amf in config.amf.clone() {
            outcome = Self::connect_to(&config, amf).await;
            if matches!(outcome, Ok(_) | Err(GnbError::Refused(_) | GnbError::Identity(_))) {
                return outcome;
            }
            if let Err(error) = &outcome {
                tracing::debug!(%error, %amf, gnb = config.id, "no N2 with this AMF");
            }
        }
        outcome
    }

    async fn connect_to(config: &GnbConfig, amf: SocketAddr) -> Result<Self, GnbError> {
        let payload = setup_request(config)?.encode().map_err(|error| GnbError::Setup(error.to_string()))?;
        let mut association = associate(config, amf).await?;
        let started = net::time::now();
        let message = sctp::Message { stream: 0, ppid: ngap::PPID, payload };
        association.send(message).await.map_err(|error| GnbError::Setup(error.to_string()))?;
        let answer = net::time::timeout(SETUP_TIMEOUT, setup_answer(&mut association));
        let response = match answer.await {
            Ok(answer) => answer?,
            Err(_) => return Err(GnbError::Setup("no answer".into())),
        };
        let elapsed = net::time::now().saturating_duration_since(started);
        let guamis: Vec<_> = response.served_guamis.iter().map(|served| served.guami).collect();
        if guamis.is_empty() {
            return Err(GnbError::Setup("the AMF serves no GUAMI".into()));
        }

        let (interface_in, interface) = mpsc::channel(INTERFACE_QUEUE);
        let (stop, stopping) = watch::channel(false);
        let (closing, closed) = watch::channel(false);
        let shared = Arc::new(Shared {
            sender: association.sender(),
            streams: association.outgoing_streams(),
            config: config.clone(),
            amf,
            amf_name: response.amf_name,
            guamis,
            setup_ms: (elapsed.as_secs_f64() * 1e6).round() / 1e3,
            ues: Mutex::new(HashMap::new()),
            next_ran_id: AtomicU32::new(1),
            interface: Interface(Arc::new(tokio::sync::Mutex::new(interface))),
            lost: AtomicU64::new(0),
            undecodable: AtomicU64::new(0),
            stop,
            closed,
        });
        // The task holds no strong reference, so that dropping the last handle ends it.
        let reader = Reader { shared: Arc::downgrade(&shared), interface: interface_in, closing };
        tokio::spawn(reader.run(association, stopping));
        Ok(Self { shared })
    }

    /// Opens the association alone, with the first AMF that answers, for tests that speak NGAP themselves.
    ///
    /// # Errors
    /// See [`GnbError`]; of several addresses, that of the last one.
    pub async fn associate(config: &GnbConfig) -> Result<sctp::Association, GnbError> {
        let mut outcome = Err(GnbError::NoAmf);
        for amf in &config.amf {
            outcome = associate(config, *amf).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
}

async fn associate(config: &GnbConfig, amf: SocketAddr) -> Result<sctp::Association, GnbError> {
    let local = SocketAddr::new(config.n2, 0);
    Ok(sctp::Association::connect(local, amf, config.sctp.clone()).await?)
}

/// The NG SETUP REQUEST for a configuration.
fn setup_request(config: &GnbConfig) -> Result<Pdu, GnbError> {
    let id = GnbId::new(config.id, GNB_ID_BITS).ok_or(GnbError::Identity(config.id))?;
    let slices = ngap::PlmnSlices { plmn: config.plmn, slices: config.slices.clone() };
    let name = config.name.clone().unwrap_or_else(|| format!("gnb-{:x}", config.id));
    Ok(Pdu::from(ngap::NgSetupRequest {
        global_ran_node_id: ngap::GlobalRanNodeId::Gnb { plmn: config.plmn, id },
        ran_node_name: Some(name),
        supported_tas: vec![ngap::SupportedTa { tac: config.tac, broadcast_plmns: vec![slices] }],
        default_paging_drx: ngap::PagingDrx::V128,
    }))
}

/// Waits for the answer to NG Setup; nothing else may come before it.
async fn setup_answer(association: &mut sctp::Association) -> Result<ngap::NgSetupResponse, GnbError> {
    loop {
        match association.recv().await {
            Some(sctp::Event::Message(message)) => match Pdu::decode(&message.payload) {
                Ok(decoded) => match decoded.pdu {
                    Pdu::NgSetupResponse(response) => return Ok(response),
                    Pdu::NgSetupFailure(failure) => return Err(GnbError::Refused(failure.cause)),
                    other => return Err(GnbError::Setup(format!("the AMF answered with {}", other.name()))),
                },
                Err(error) => return Err(GnbError::Setup(error.to_string())),
            },
            Some(sctp::Event::Restarted) => {}
            Some(sctp::Event::Closed { reason }) => return Err(GnbError::Setup(reason.to_string())),
            None => return Err(GnbError::Setup("the association is closed".into())),
        }
    }
}
