//! Contexts from gateway to gateway by TCP.
//!
//! ```text
//! sender:    number of contexts (4) · for each: its length (2) · its octets (form.rs)
//! receiver:  number of UEs that it serves now (4)
//! ```
//! The sender serves its UEs as before: whoever steers users to the other gateway does it afterwards. Nobody is authenticated, so the
//! address belongs in the operator's own network.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use net::tcp::{TcpListener, TcpStream};
use net::time::{self, Duration};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use types::Imsi;

use super::{adopt, octets};
use crate::context::Gateway;

/// How long a transfer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// UEs that are set up at the same time: enough to keep a UPF busy.
const AT_ONCE: usize = 64;

/// What a sender hears.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Sent {
    /// Contexts that were sent.
    contexts: usize,
    /// Octets in both directions, without those of TCP.
    octets: usize,
    /// UEs that the other gateway serves now.
    adopted: u32,
}

/// Takes contexts until the gateway stops.
pub(crate) async fn run(gateway: Arc<Gateway>, listener: TcpListener) {
    // One after the other: a transfer has enough work for a UPF.
    loop {
        match listener.accept().await {
            Ok((connection, from)) => match time::timeout(PATIENCE, receive(&gateway, connection)).await {
                Ok(Ok(adopted)) => tracing::info!(%from, adopted, "contexts of UEs"),
                Ok(Err(error)) => tracing::warn!(%from, %error, "contexts of UEs"),
                Err(_) => tracing::warn!(%from, "contexts of UEs: too slow"),
            },
            Err(error) => {
                tracing::warn!(%error, "contexts of UEs");
                time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn receive(gateway: &Arc<Gateway>, mut connection: TcpStream) -> io::Result<u32> {
    let mut running = JoinSet::new();
    let mut adopted = 0;
    for _ in 0..connection.read_u32().await? {
        let mut octets = vec![0; connection.read_u16().await?.into()];
        connection.read_exact(&mut octets).await?;
        if running.len() >= AT_ONCE {
            adopted += u32::from(matches!(running.join_next().await, Some(Ok(true))));
        }
        let gateway = gateway.clone();
        running.spawn(async move {
            let result = adopt(&gateway, &octets).await;
            if let Err(error) = &result {
                tracing::debug!(%error, "a UE stays where it is");
            }
            result.is_ok()
        });
    }
    while let Some(result) = running.join_next().await {
        adopted += u32::from(matches!(result, Ok(true)));
    }
    connection.write_u32(adopted).await?;
    connection.shutdown().await?;
    Ok(adopted)
}

/// Sends the contexts of these UEs, or of all.
///
/// # Errors
/// The other gateway cannot be reached, or does not answer in time.
pub(crate) async fn send(gateway: &Gateway, to: SocketAddr, ues: Option<Vec<Imsi>>) -> io::Result<Sent> {
    let ues = match ues {
        Some(ues) => ues.into_iter().filter_map(|imsi| gateway.ues.by_imsi(imsi)).collect(),
        None => gateway.ues.all(),
    };
    let mut sent = Vec::from([0; 4]);
    let mut contexts = 0;
    for ue in ues {
        let context = octets(&ue, &*ue.state.lock().await);
        let Some((context, length)) = context.and_then(|context| {
            let length = u16::try_from(context.len()).ok()?;
            Some((context, length))
        }) else {
            continue;
        };
        sent.extend(length.to_be_bytes());
        sent.extend(context);
        contexts += 1;
    }
    sent[..4].copy_from_slice(&u32::try_from(contexts).unwrap_or(u32::MAX).to_be_bytes());
    let exchange = async {
        let mut connection = net::tcp::connect(to, PATIENCE).await?;
        connection.write_all(&sent).await?;
        connection.read_u32().await
    };
    let adopted = time::timeout(PATIENCE, exchange).await.map_err(io::Error::other)??;
    Ok(Sent { contexts, octets: sent.len() + 4, adopted })
}
