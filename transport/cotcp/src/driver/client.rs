//! The client's handle, and calls as futures.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::body::{self, PartReceiver, PartSender, Pipe};
use super::config::ClientConfig;
use super::link::{Begin, DOWN, Key, Streams};
use super::metrics::{Connections, Metrics};
use super::pool::{Keeper, Pool};
use super::stream::{Address, Stream};
use super::time;
use crate::Stats;
use crate::core::CallOptions;
use crate::error::{CallError, ConnectionError};

/// Calls a server over one or several connections, which are opened again when they are lost. Clones share
/// the connections; dropping the last one closes them.
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Closes the connections when the last handle is dropped.
struct Owner {
    pool: Arc<Pool>,
    closing: watch::Sender<bool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Owner {
    fn close(&self) {
        self.pool.counters.closed.store(true, Relaxed);
        self.closing.send_replace(true);
        self.pool.links.iter().for_each(|link| link.go_away());
        self.pool.wake();
    }
}

impl Client {
    /// Connects to a server. The other connections of the pool are opened in the background.
    ///
    /// # Errors
    /// No server answers at the address. [`Self::lazy`] keeps trying instead.
    pub async fn connect(address: impl Into<Address>, config: impl Into<ClientConfig>) -> io::Result<Self> {
        let (address, pool) = (address.into(), Arc::new(Pool::new(config.into())));
        let first = Keeper::connect(&pool, &address).await?;
        Ok(Self::start(pool, Some(address), Some(first)))
    }

    /// Connects in the background. Calls wait for a connection up to [`ClientConfig::wait_for_connection`].
    #[must_use]
    pub fn lazy(address: impl Into<Address>, config: impl Into<ClientConfig>) -> Self {
        Self::start(Arc::new(Pool::new(config.into())), Some(address.into()), None)
    }

    /// Uses a stream that is connected already. When the stream ends, calls fail.
    #[must_use]
    pub fn over(stream: Stream, config: impl Into<ClientConfig>) -> Self {
        let config = ClientConfig { connections: 1, ..config.into() };
        Self::start(Arc::new(Pool::new(config)), None, Some(stream))
    }

    fn start(pool: Arc<Pool>, address: Option<Address>, mut first: Option<Stream>) -> Self {
        let (closing, receiver) = watch::channel(false);
        for index in (0..pool.links.len()).step_by(2) {
            let keeper = Keeper {
                pool: Arc::clone(&pool),
                index,
                leaving: None,
                address: address.clone(),
                closing: receiver.clone(),
            };
            tokio::spawn(keeper.run(first.take()));
        }
        Self { owner: Arc::new(Owner { pool, closing }) }
    }

    /// Calls the server. Dropping the future cancels the call.
    ///
    /// # Errors
    /// See [`CallError`]. Each call gets one answer or one error.
    pub fn call(&self, body: impl Into<Bytes>) -> Call<'_> {
        Call::new(&self.owner.pool, body.into(), None)
    }

    /// Prepares a call with a deadline, a priority or other options.
    pub fn request(&self, body: impl Into<Bytes>) -> RequestBuilder<'_> {
        RequestBuilder { client: self, body: body.into(), options: CallOptions::default() }
    }

    /// Number of established connections.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.owner.pool.links.iter().filter(|link| link.load() != DOWN).count()
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (counters, mut stats) = (&self.owner.pool.counters, Stats::default());
        self.owner.pool.links.iter().for_each(|link| stats.add(&link.stats()));
        let connections = Connections {
            open: self.connected() as u64,
            made: counters.connected.load(Relaxed),
            failed: counters.connect_failed.load(Relaxed),
            lost: counters.lost.load(Relaxed),
            refused: 0,
            fell_back: counters.fell_back.load(Relaxed),
            repeated: counters.repeated.load(Relaxed),
        };
        Metrics { connections, stats }
    }

    /// Stops making calls, waits for the open ones, and closes the connections.
    pub async fn close(&self) {
        self.owner.close();
        let pool = &self.owner.pool;
        let end = time::now() + pool.config.drain_timeout;
        while pool.links.iter().any(|link| link.is_up()) && time::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for link in &pool.links {
            link.lose(ConnectionError::Local);
        }
    }
}

/// A call that is not sent yet.
#[must_use = "a request does nothing until it is sent"]
pub struct RequestBuilder<'a> {
    client: &'a Client,
    body: Bytes,
    options: CallOptions,
}

impl<'a> RequestBuilder<'a> {
    /// How long to wait for the answer. A version 2 server is told.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// Priority from 0 (most urgent) to 7; 3 by default.
    pub fn priority(mut self, priority: u8) -> Self {
        self.options.priority = priority;
        self
    }

    /// Tracing context for the server, such as a W3C `traceparent`: at most 128 octets.
    pub fn trace(mut self, context: impl Into<Bytes>) -> Self {
        self.options.trace = Some(context.into());
        self
    }

    /// Sends the call and waits for the answer.
    pub fn send(self) -> Call<'a> {
        Call::new(&self.client.owner.pool, self.body, Some(Box::new(self.options)))
    }

    /// Sends the body as the first part. Returns a sender for the remaining parts and a receiver for the
    /// answer. Needs version 2.
    ///
    /// # Errors
    /// The call was refused. Later errors are reported by the sender and the receiver.
    pub async fn stream(mut self) -> Result<(PartSender, PartReceiver), CallError> {
        let (sender, pipe) = body::outgoing();
        self.options.more = true;
        let receiver = self.open(Some(pipe)).await?;
        Ok((sender, receiver))
    }

    /// Sends the call and receives the answer part by part. A version 1 answer is a single part.
    ///
    /// # Errors
    /// The call was refused. Later errors are reported by the receiver.
    pub async fn receive(self) -> Result<PartReceiver, CallError> {
        self.open(None).await
    }

    async fn open(mut self, outgoing: Option<Arc<Pipe>>) -> Result<PartReceiver, CallError> {
        let (incoming, receiver) = body::incoming();
        self.options.parts = true;
        let mut call = self.send();
        call.streams = Some(Streams { incoming, outgoing });
        call.await?;
        Ok(receiver)
    }

    /// Sends the call without expecting an answer. The future completes when the call was written. Needs
    /// version 2.
    pub fn send_one_way(mut self) -> Call<'a> {
        self.options.one_way = true;
        self.send()
    }
}

/// A call: a future of the answer. It is sent when it is first polled.
#[must_use = "a call is made when it is awaited"]
pub struct Call<'a> {
    pool: &'a Pool,
    body: Bytes,
    options: Option<Box<CallOptions>>,
    stage: CallStage,
    repeats: u32,
    slow: Option<Box<Slow>>,
    /// Set when the bodies go in parts: the future completes when the call was opened.
    streams: Option<Streams>,
}

enum CallStage {
    /// The call is not sent yet.
    New,
    /// The call was sent.
    Open { link: usize, key: Key },
    /// The call waits for room on a link, or for any connection.
    Blocked { link: Option<usize>, ticket: u64 },
    /// The call was opened, and its pipes report its end.
    Begun,
    /// The future has returned its result.
    Done,
}

/// State that only calls need which wait before they are sent, or have a deadline.
#[derive(Default)]
struct Slow {
    deadline: Option<Instant>,
    /// How long the call may wait, and the error when that time is over.
    patience: Option<(Pin<Box<Sleep>>, CallError)>,
}

impl<'a> Call<'a> {
    #[inline]
    fn new(pool: &'a Pool, body: Bytes, options: Option<Box<CallOptions>>) -> Self {
        Self { pool, body, options, stage: CallStage::New, repeats: 0, slow: None, streams: None }
    }

    /// Sends the call, or waits for room. `Err` ends the call.
    fn begin(&mut self, cx: &Context<'_>) -> Result<(), CallError> {
        self.keep_deadline();
        if self.pool.counters.closed.load(Relaxed) {
            return Err(CallError::GoingAway);
        }
        let (index, lone) = self.pool.choose();
        let link = &self.pool.links[index];
        let config = &self.pool.config;
        let options = self.options.as_deref();
        let streamed = self.streams.is_some();
        let begin = match streamed {
            true => link.begin_stream(cx, &self.body, options, &mut self.streams),
            false => link.begin(cx, &self.body, options, lone),
        };
        match begin {
            Begin::Open(_) if streamed => self.stage = CallStage::Begun,
            Begin::Open(key) => self.stage = CallStage::Open { link: index, key },
            Begin::Blocked(ticket) => {
                self.stage = CallStage::Blocked { link: Some(index), ticket };
                self.wait_at_most(config.connection.call_timeout, CallError::Busy);
            }
            Begin::Down => {
                self.stage = CallStage::Blocked { link: None, ticket: self.pool.wait(cx) };
                let error = CallError::Connection { error: self.pool.reason(), sent: false };
                self.wait_at_most(Some(config.wait_for_connection), error);
            }
            Begin::Failed(error) => return Err(error),
        }
        Ok(())
    }

    /// Starts the deadline with the first attempt.
    fn keep_deadline(&mut self) {
        let Some(options) = &mut self.options else { return };
        let Some(given) = options.deadline else { return };
        match self.slow.as_ref().and_then(|slow| slow.deadline) {
            Some(deadline) => options.deadline = Some(deadline.saturating_duration_since(time::now())),
            None => {
                let slow = self.slow.get_or_insert_default();
                slow.deadline = time::now().checked_add(given);
            }
        }
    }

    /// Limits the wait for room or a connection, over all attempts.
    fn wait_at_most(&mut self, patience: Option<Duration>, error: CallError) {
        let slow = self.slow.get_or_insert_default();
        if slow.patience.is_some() {
            return;
        }
        let own = slow.deadline.map(|deadline| deadline.saturating_duration_since(time::now()));
        let (duration, error) = match (own, patience) {
            (Some(own), Some(patience)) if patience < own => (patience, error),
            (Some(own), _) => (own, CallError::Deadline),
            (None, Some(patience)) => (patience, error),
            (None, None) => return,
        };
        slow.patience = Some((Box::pin(tokio::time::sleep(duration)), error));
    }

    /// Waits for room or a connection. Ready when there may be room, or when the wait took too long.
    fn poll_blocked(
        &mut self,
        cx: &mut Context<'_>,
        link: Option<usize>,
        ticket: u64,
    ) -> Poll<Result<(), CallError>> {
        let blocked = match link {
            Some(link) => self.pool.links[link].is_blocked(ticket, cx),
            None => self.pool.is_waiting(ticket, cx),
        };
        if !blocked {
            return Poll::Ready(Ok(()));
        }
        let patience = self.slow.as_mut().and_then(|slow| slow.patience.as_mut());
        let Some((sleep, error)) = patience else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        self.pool.give_up(link, ticket);
        // By now something else may be the reason than when the wait began.
        if let CallError::Connection { error, .. } = error {
            *error = self.pool.reason();
        }
        Poll::Ready(Err(error.clone()))
    }

    /// Whether to repeat the call after this error: only when no server has begun to work on it.
    fn may_repeat(&mut self, error: &CallError) -> bool {
        let repeat = error.not_processed()
            && !matches!(error, CallError::NeedsVersion2)
            && self.repeats < self.pool.config.repeats
            && !self.pool.counters.closed.load(Relaxed);
        self.repeats += u32::from(repeat);
        if repeat {
            self.pool.counters.repeated.fetch_add(1, Relaxed);
        }
        repeat
    }
}

impl Future for Call<'_> {
    type Output = Result<Bytes, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let result = match this.stage {
                CallStage::New => match this.begin(cx) {
                    // Open: the waker is in place. Blocked: the timer has to see us.
                    Ok(()) if matches!(this.stage, CallStage::Open { .. }) => return Poll::Pending,
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                CallStage::Open { link, key } => ready!(this.pool.links[link].poll(key, cx)),
                CallStage::Blocked { link, ticket } => match ready!(this.poll_blocked(cx, link, ticket)) {
                    Ok(()) => {
                        this.stage = CallStage::New;
                        if link.is_none() {
                            // Not at once: while a connection comes or goes, others have to run.
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        continue;
                    }
                    Err(error) => Err(error),
                },
                CallStage::Begun => Ok(Bytes::new()),
                CallStage::Done => Err(CallError::Unknown),
            };
            this.stage = CallStage::Done;
            match result {
                Err(error) if this.may_repeat(&error) => this.stage = CallStage::New,
                result => return Poll::Ready(result),
            }
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        match self.stage {
            CallStage::Open { link, key } => self.pool.links[link].cancel(key),
            CallStage::Blocked { link, ticket } => self.pool.give_up(link, ticket),
            CallStage::New | CallStage::Begun | CallStage::Done => {}
        }
    }
}
