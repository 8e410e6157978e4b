//! The UPF under test: as in a core, with N4, workers and devices, on a core and in a namespace of its own.

use anyhow::Context as _;
use net::netns::NetNs;

use crate::machine;

/// A running UPF.
pub(crate) struct UnderTest {
    runtime: tokio::runtime::Runtime,
    upf: Option<upf::Upf>,
}

impl UnderTest {
    /// Starts it; all its threads run on `core`.
    ///
    /// # Errors
    /// What keeps a UPF from starting.
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
        // Threads start where the one is that starts them: in the namespace and on the core.
        let upf = runtime.block_on(async { tokio::spawn(upf::start(config)).await })??;
        Ok(UnderTest { runtime, upf: Some(upf) })
    }

    /// Its counters, as `godwit upf stats` shows them.
    pub(crate) fn stats(&self) -> serde_json::Value {
        self.upf.as_ref().map(|upf| upf.handle().stats()).unwrap_or_default()
    }

    /// Stops it; its devices are gone when this returns.
    ///
    /// # Errors
    /// It ended by a panic.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let Some(upf) = self.upf.take() else { return Ok(()) };
        self.runtime.block_on(async { tokio::spawn(upf.stop()).await }).context("stop the UPF")
    }
}
