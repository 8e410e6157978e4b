//! The UPF under test, complete as in a core with N4, workers and devices, on its own core and in its own
//! namespace.

use anyhow::Context as _;
use net::netns::NetNs;

use crate::machine;

/// A running UPF.
pub(crate) struct UnderTest {
    runtime: tokio::runtime::Runtime,
    upf: Option<upf::Upf>,
}

impl UnderTest {
    /// Starts the UPF; all its threads run on `core`.
    ///
    /// # Errors
    /// The UPF cannot start.
    pub(crate) fn start(namespace: &NetNs, config: upf::Config, core: usize) -> anyhow::Result<UnderTest> {
        let here = namespace.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || {
                machine::pin(&[core]);
                if let Err(error) = here.join() {
                    tracing::error!(%error, "a thread stays outside its namespace");
                }
            })
            .build()?;
        // A thread inherits namespace and core from the thread that starts it.
        let upf = runtime.block_on(async { tokio::spawn(upf::start(config)).await })??;
        Ok(UnderTest { runtime, upf: Some(upf) })
    }

    /// Its counters, as `godwit upf stats` shows them.
    pub(crate) fn stats(&self) -> serde_json::Value {
        self.upf.as_ref().map(|upf| upf.handle().stats()).unwrap_or_default()
    }

    /// Stops the UPF; its devices are gone when this returns.
    ///
    /// # Errors
    /// It ended by a panic.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let Some(upf) = self.upf.take() else { return Ok(()) };
        self.runtime.block_on(async { tokio::spawn(upf.stop()).await }).context("stop the UPF")
    }
}
