//! `stateless`: both anchors keep the contexts of UEs in one database of PostgreSQL, which has to have a context before a procedure answers.
//! The second anchor takes a UE from there when the first message about it comes.
//!
//! The time is that from the first Modify Bearer Request at the second anchor to its last answer. Octets are those of records, without what the
//! protocol of PostgreSQL adds.

use anyhow::Context as _;
use net::time;
use postgres::Postgres;
use serde_json::json;

use super::Moved;
use super::pair::{Anchor, Pair};

pub(super) struct Stateless {
    pub(super) pair: Pair,
    /// Dropped after the anchors.
    database: Postgres,
}

impl Stateless {
    pub(super) async fn start() -> anyhow::Result<Stateless> {
        let database = Postgres::start()?;
        let start = |url: String| Anchor::start(move |gateway| gateway["contexts"] = json!(url));
        let (first, second) = (start(database.url()).await?, start(database.url()).await?);
        Ok(Stateless { pair: Pair::new(first, second), database })
    }

    pub(super) async fn replicate(&mut self, moved: usize) -> anyhow::Result<Moved> {
        let (stored_octets, records) = self.stored()?;
        let moving = self.pair.ues.get(..moved).context("not so many UEs are registered")?.to_vec();
        let prober = self.pair.prober()?;
        let start = time::now_std();
        let served = self.pair.second.mme.modify_all(&moving)?;
        let took_ms = (time::now_std() - start).as_secs_f64() * 1e3;
        let downtime_ms = prober.stop()?;
        let known = self.pair.second.ues().await?;
        self.pair.second.mme.detach_all(&moving)?;
        let wire_octets = (stored_octets as f64 / records.max(1) as f64 * moved as f64).round() as u64;
        Ok(Moved {
            stored_octets,
            wire_octets,
            parts: vec![("fetch", took_ms)],
            downtime_ms,
            known,
            served,
            messages: 0,
        })
    }

    /// Octets of all records with their keys, and the number of records.
    fn stored(&self) -> anyhow::Result<(u64, u64)> {
        let sql = "SELECT coalesce(sum(length(octets) + 8), 0), count(*) FROM godwit_records.record";
        let answer = self.database.sql(sql)?;
        let (octets, records) = answer.trim().split_once('|').context("no sum")?;
        Ok((octets.parse()?, records.parse()?))
    }
}
