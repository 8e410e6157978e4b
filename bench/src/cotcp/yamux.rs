//! yamux: one stream per request, and a length of four octets before each body. One task owns the connection
//! and hands out streams.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use anyhow::{Context as _, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use net::tcp::{self, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};
use yamux::{Config, Connection, Mode, Stream};

use super::load::{Call, PATIENCE};
use super::serve::App;

/// Streams at once; the library's default of 512 would also count closing streams.
const STREAMS: usize = 8192;
/// Longest body that is accepted.
const BODY_MAX: usize = 64 << 20;

fn config() -> Config {
    let mut config = Config::default();
    config.set_max_connection_receive_window(None).set_max_num_streams(STREAMS);
    config
}

/// Answers the requests of a connection.
pub(super) async fn serve(stream: TcpStream, app: App) -> anyhow::Result<()> {
    let mut connection = Connection::new(stream.compat(), config(), Mode::Server);
    while let Some(stream) = poll_fn(|context| connection.poll_next_inbound(context)).await {
        let (mut stream, app) = (stream?, app.clone());
        tokio::spawn(async move {
            let request = read(&mut stream).await?;
            write(&mut stream, &app.answer(request).await).await?;
            stream.close().await?;
            anyhow::Ok(())
        });
    }
    Ok(())
}

async fn read(stream: &mut Stream) -> anyhow::Result<Bytes> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= BODY_MAX, "a body of {length} octets");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(body.into())
}

/// Writes length and body at once, as yamux makes a frame of each write.
async fn write(stream: &mut Stream, body: &[u8]) -> anyhow::Result<()> {
    let mut message = BytesMut::with_capacity(4 + body.len());
    message.put_u32(body.len() as u32);
    message.extend_from_slice(body);
    Ok(stream.write_all(&message).await?)
}

/// A worker's access to a connection.
#[derive(Clone)]
pub(super) struct Caller(mpsc::Sender<oneshot::Sender<Stream>>);

/// Opens a connection.
pub(super) async fn connect(server: SocketAddr) -> anyhow::Result<Caller> {
    let stream = tcp::connect(server, PATIENCE).await?;
    let (wishes, queue) = mpsc::channel(STREAMS);
    tokio::spawn(drive(Connection::new(stream.compat(), config(), Mode::Client), queue));
    Ok(Caller(wishes))
}

/// Drives the connection and opens streams on request.
async fn drive(
    mut connection: Connection<Compat<TcpStream>>,
    mut queue: mpsc::Receiver<oneshot::Sender<Stream>>,
) -> anyhow::Result<()> {
    let mut wish: Option<oneshot::Sender<Stream>> = None;
    poll_fn(|context| {
        loop {
            if wish.is_none()
                && let Poll::Ready(next) = queue.poll_recv(context)
            {
                // The last worker is gone, so the connection is no longer needed.
                let Some(next) = next else { return Poll::Ready(Ok(())) };
                wish = Some(next);
            }
            if wish.is_some()
                && let Poll::Ready(stream) = connection.poll_new_outbound(context)
            {
                let stream = stream?;
                if let Some(wish) = wish.take() {
                    // A worker that has stopped waiting needs no stream.
                    let _ = wish.send(stream);
                }
                continue;
            }
            return match connection.poll_next_inbound(context) {
                Poll::Ready(None) => Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error.into())),
                // Servers open no streams here; such a stream is dropped.
                Poll::Ready(Some(Ok(_))) => continue,
                Poll::Pending => Poll::Pending,
            };
        }
    })
    .await
}

impl Call for Caller {
    async fn call(&mut self, request: Bytes) -> anyhow::Result<Bytes> {
        let (wish, stream) = oneshot::channel();
        self.0.send(wish).await.context("the connection is closed")?;
        let mut stream = stream.await.context("the connection is closed")?;
        write(&mut stream, &request).await?;
        let answer = read(&mut stream).await?;
        stream.close().await?;
        Ok(answer)
    }
}
