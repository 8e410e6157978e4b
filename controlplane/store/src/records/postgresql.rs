//! Records in a schema of PostgreSQL.
//!
//! Flow: callers → queue → the writer's task, which takes all that waits and writes it by one statement, which is a transaction of its
//! own → answers. A connection that is lost is made anew by the next caller; what was being written is repeated then, which does no harm,
//! because it says what records are and not how they change.

use std::collections::BTreeMap;
use std::sync::Arc;

use net::time::{self, Duration};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::config::Host;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row, Statement};

use super::{Change, Record, VERSION, is_known};
use crate::StoreError;

/// Debian's folder of the Unix socket.
const SOCKET: &str = "/var/run/postgresql";

/// How long a connection, or a statement, may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes that may wait; callers wait when there are more.
const QUEUE: usize = 4096;

/// Most writes in one transaction, so that the first of them does not wait too long.
const GROUP_MAX: usize = 512;

/// Number of the lock that whoever makes the tables takes: `GwRe`.
const LOCK: i64 = 0x4777_5265;

const TABLES: &str = "
    CREATE SCHEMA godwit_records;
    CREATE TABLE godwit_records.format (version bigint NOT NULL);
    CREATE TABLE godwit_records.record (
        space  text NOT NULL,
        key    bigint NOT NULL,
        octets bytea NOT NULL,
        PRIMARY KEY (space, key)
    );
";

/// No key is both put and removed.
const WRITE: &str = "
    WITH removed AS (
        DELETE FROM godwit_records.record USING unnest($1::text[], $2::bigint[]) AS gone (space, key)
        WHERE record.space = gone.space AND record.key = gone.key
    )
    INSERT INTO godwit_records.record
    SELECT * FROM unnest($3::text[], $4::bigint[], $5::bytea[])
    ON CONFLICT (space, key) DO UPDATE SET octets = excluded.octets";

const CLEAR: &str = "DELETE FROM godwit_records.record WHERE space = $1";

const LOAD: &str = "
    SELECT key, octets FROM godwit_records.record WHERE space = $1 AND key >= $2 ORDER BY key LIMIT $3";

const SPACES: &str = "
    SELECT space, count(*) FROM godwit_records.record GROUP BY space ORDER BY space COLLATE \"C\"";

#[derive(Clone)]
pub(super) struct Postgresql {
    server: Arc<Server>,
    queue: mpsc::Sender<Write>,
}

/// What waits for the writer.
struct Write {
    space: String,
    what: What,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

enum What {
    Changes(Vec<Change>),
    Clear,
}

/// The server, and the connection with it, if there is one.
struct Server {
    config: Config,
    /// For messages.
    name: String,
    connected: Mutex<Option<Arc<Connected>>>,
}

struct Connected {
    client: Client,
    write: Statement,
    clear: Statement,
    load: Statement,
    spaces: Statement,
}

impl Postgresql {
    pub(super) async fn open(parameters: &str) -> Result<Self, StoreError> {
        let wrong = |error: tokio_postgres::Error| StoreError::Url(format!("postgresql:… ({error})"));
        let mut config: Config = parameters.parse().map_err(wrong)?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host_path(SOCKET);
        }
        config.connect_timeout(PATIENCE);
        let server = Arc::new(Server { name: name(&config), config, connected: Mutex::new(None) });
        server.connected().await?;
        let (queue, writes) = mpsc::channel(QUEUE);
        tokio::spawn(write_all(server.clone(), writes));
        Ok(Self { server, queue })
    }

    pub(super) async fn load(&self, space: &str, from: i64, limit: i64) -> Result<Vec<Record>, StoreError> {
        let rows = self.server.query(|connected| &connected.load, &[&space, &from, &limit]).await?;
        let record = |row: Row| Ok((row.try_get::<_, i64>(0)?.cast_unsigned(), row.try_get(1)?));
        rows.into_iter().map(record).collect::<Result<_, _>>().map_err(|error| self.server.failed(&error))
    }

    pub(super) async fn spaces(&self) -> Result<Vec<(String, u64)>, StoreError> {
        let rows = self.server.query(|connected| &connected.spaces, &[]).await?;
        let space = |row: Row| Ok((row.try_get(0)?, row.try_get::<_, i64>(1)?.unsigned_abs()));
        rows.into_iter().map(space).collect::<Result<_, _>>().map_err(|error| self.server.failed(&error))
    }

    pub(super) async fn write(&self, space: &str, changes: Vec<Change>) -> Result<(), StoreError> {
        self.queue(space, What::Changes(changes)).await
    }

    pub(super) async fn clear(&self, space: &str) -> Result<(), StoreError> {
        self.queue(space, What::Clear).await
    }

    async fn queue(&self, space: &str, what: What) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        let write = Write { space: space.to_owned(), what, answer };
        self.queue.send(write).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }
}

/// Where the database is, without a password.
fn name(config: &Config) -> String {
    let host = config.get_hosts().first().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(folder) => folder.display().to_string(),
    });
    let address = config.get_hostaddrs().first().map(ToString::to_string);
    let host = host.or(address).unwrap_or_default();
    format!(
        "PostgreSQL, host={host} dbname={}",
        config.get_dbname().or(config.get_user()).unwrap_or_default()
    )
}

impl Server {
    /// The connection, made anew if it is lost.
    async fn connected(&self) -> Result<Arc<Connected>, StoreError> {
        let mut connected = self.connected.lock().await;
        if let Some(connected) = connected.as_ref().filter(|connected| !connected.client.is_closed()) {
            return Ok(connected.clone());
        }
        let new = match time::timeout(PATIENCE, self.connect()).await {
            Ok(new) => Arc::new(new?),
            Err(_) => return Err(self.silent()),
        };
        *connected = Some(new.clone());
        Ok(new)
    }

    async fn connect(&self) -> Result<Connected, StoreError> {
        let failed = |error| self.failed(&error);
        let (mut client, connection) = self.config.connect(NoTls).await.map_err(failed)?;
        // It ends with the client. Its errors are also those of the client's calls.
        tokio::spawn(connection);
        self.prepare(&mut client).await?;
        let write = client.prepare(WRITE).await.map_err(failed)?;
        let clear = client.prepare(CLEAR).await.map_err(failed)?;
        let load = client.prepare(LOAD).await.map_err(failed)?;
        let spaces = client.prepare(SPACES).await.map_err(failed)?;
        Ok(Connected { client, write, clear, load, spaces })
    }

    /// Checks that the schema is ours; makes it if it is missing.
    async fn prepare(&self, client: &mut Client) -> Result<(), StoreError> {
        let failed = |error| self.failed(&error);
        // One process makes the tables, others wait for it.
        let transaction = client.transaction().await.map_err(failed)?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
        let there = "SELECT to_regnamespace('godwit_records') IS NOT NULL,
                            to_regclass('godwit_records.format') IS NOT NULL";
        let there = transaction.query_one(there, &[]).await.map_err(failed)?;
        let is_there = |at| there.try_get::<_, bool>(at).map_err(failed);
        if !is_there(0)? {
            transaction.batch_execute(TABLES).await.map_err(failed)?;
            let sql = "INSERT INTO godwit_records.format VALUES ($1)";
            transaction.execute(sql, &[&VERSION]).await.map_err(failed)?;
        } else if !is_there(1)? {
            return Err(StoreError::Foreign { database: format!("{}, schema godwit_records", self.name) });
        }
        let sql = "SELECT version FROM godwit_records.format";
        let version = transaction.query_one(sql, &[]).await.map_err(failed)?;
        is_known(version.try_get(0).map_err(failed)?)?;
        transaction.commit().await.map_err(failed)
    }

    /// Runs a statement, once more if the connection was lost.
    async fn query(
        &self,
        statement: fn(&Connected) -> &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let mut is_repeated = false;
        loop {
            let connected = self.connected().await?;
            let answer = connected.client.query(statement(&connected), parameters);
            let answer = time::timeout(PATIENCE, answer).await;
            match answer {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) if !is_repeated && is_lost(&error) => self.forget(&connected).await,
                Ok(Err(error)) => return Err(self.failed(&error)),
                Err(_) => {
                    self.forget(&connected).await;
                    return Err(self.silent());
                }
            }
            is_repeated = true;
        }
    }

    /// The next call has a connection of its own.
    async fn forget(&self, lost: &Arc<Connected>) {
        let mut connected = self.connected.lock().await;
        if connected.as_ref().is_some_and(|connected| Arc::ptr_eq(connected, lost)) {
            *connected = None;
        }
    }

    fn failed(&self, error: &tokio_postgres::Error) -> StoreError {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let reason = cause.unwrap_or_else(|| error.to_string());
        StoreError::Postgresql { database: self.name.clone(), reason }
    }

    fn silent(&self) -> StoreError {
        let reason = format!("no answer within {} seconds", PATIENCE.as_secs());
        StoreError::Postgresql { database: self.name.clone(), reason }
    }
}

/// Whether the server has closed the connection, or is about to (class 57: operator intervention).
fn is_lost(error: &tokio_postgres::Error) -> bool {
    error.is_closed() || error.code().is_none_or(|code| code.code().starts_with("57P"))
}

/// Writes what waits, until nobody can send more.
async fn write_all(server: Arc<Server>, mut writes: mpsc::Receiver<Write>) {
    let mut waiting = Vec::new();
    while writes.recv_many(&mut waiting, GROUP_MAX).await > 0 {
        let mut group = Vec::new();
        for write in waiting.drain(..) {
            match write.what {
                What::Changes(_) => group.push(write),
                What::Clear => {
                    write_group(&server, std::mem::take(&mut group)).await;
                    let cleared = server.query(|connected| &connected.clear, &[&write.space]).await.map(drop);
                    // The caller may have stopped waiting.
                    let _ = write.answer.send(cleared);
                }
            }
        }
        write_group(&server, group).await;
    }
}

/// Makes the changes of several callers by one statement, and answers them.
async fn write_group(server: &Server, group: Vec<Write>) {
    if group.is_empty() {
        return;
    }
    // What records are afterwards.
    let mut records: BTreeMap<(&str, i64), Option<&[u8]>> = BTreeMap::new();
    for write in &group {
        let What::Changes(changes) = &write.what else { continue };
        for change in changes {
            let (key, octets) = match change {
                Change::Put { key, octets } => (key, Some(&octets[..])),
                Change::Remove { key } => (key, None),
            };
            records.insert((&write.space, key.cast_signed()), octets);
        }
    }
    let (mut gone, mut put) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new(), Vec::new()));
    for ((space, key), octets) in records {
        match octets {
            None => {
                gone.0.push(space);
                gone.1.push(key);
            }
            Some(octets) => {
                put.0.push(space);
                put.1.push(key);
                put.2.push(octets);
            }
        }
    }
    let parameters: [&(dyn ToSql + Sync); 5] = [&gone.0, &gone.1, &put.0, &put.1, &put.2];
    let written = server.query(|connected| &connected.write, &parameters).await;
    for write in group {
        let answer = match &written {
            Ok(_) => Ok(()),
            Err(error) => Err(StoreError::Postgresql {
                database: server.name.clone(),
                reason: match error {
                    StoreError::Postgresql { reason, .. } => reason.clone(),
                    other => other.to_string(),
                },
            }),
        };
        // The caller may have stopped waiting.
        let _ = write.answer.send(answer);
    }
}
