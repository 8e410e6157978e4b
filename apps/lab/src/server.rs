//! The data network's HTTP server: `GET /bytes/<n>` streams n octets, `POST /echo` returns what it gets.
//!
//! The server opens its sockets in the data network's namespace and runs in this process.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use net::netns::NetNs;
use net::tcp::{self, TcpListener};
use tokio::task::JoinHandle;

use crate::network::{DN, DN_IPV6, HTTP_PORT};

/// Octets per piece of a response.
const CHUNK: usize = 256 * 1024;
/// Size of the largest echo.
const MAX_ECHO: usize = 16 * 1024 * 1024;

/// The running server; ends when dropped.
pub(crate) struct Server {
    tasks: Vec<JoinHandle<()>>,
    served: Arc<AtomicU64>,
}

impl Server {
    /// Listens on both addresses of the data network's host.
    pub fn start(namespace: &NetNs) -> io::Result<Server> {
        let served = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for address in [SocketAddr::from((DN, HTTP_PORT)), SocketAddr::from((DN_IPV6, HTTP_PORT))] {
            let listener = namespace.enter(|| tcp::listen_now(address))??;
            tasks.push(tokio::spawn(accept(listener, Arc::clone(&served))));
        }
        Ok(Server { tasks, served })
    }

    /// Requests answered so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn accept(listener: TcpListener, served: Arc<AtomicU64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&served)));
            // The client may close the connection at any time.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Answer = Response<Either<Zeros, Full<Bytes>>>;

async fn answer(request: Request<Incoming>, served: Arc<AtomicU64>) -> Result<Answer, Infallible> {
    served.fetch_add(1, Ordering::Relaxed);
    let path = request.uri().path().to_owned();
    let count = path.strip_prefix("/bytes/").and_then(|count| count.parse().ok());
    Ok(match (request.method(), count, path.as_str()) {
        (&Method::GET, Some(left), _) => Response::new(Either::Left(Zeros { left })),
        (&Method::POST, _, "/echo") => match Limited::new(request.into_body(), MAX_ECHO).collect().await {
            Ok(body) => Response::new(Either::Right(Full::new(body.to_bytes()))),
            Err(_) => refusal(StatusCode::PAYLOAD_TOO_LARGE),
        },
        _ => refusal(StatusCode::NOT_FOUND),
    })
}

fn refusal(status: StatusCode) -> Answer {
    let mut response = Response::new(Either::Right(Full::new(Bytes::new())));
    *response.status_mut() = status;
    response
}

/// A body of `left` zero octets, generated as they are sent.
struct Zeros {
    left: u64,
}

impl Body for Zeros {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static BLOCK: [u8; CHUNK] = [0; CHUNK];
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let part = usize::try_from(self.left).map_or(CHUNK, |left| left.min(CHUNK));
        self.left -= part as u64;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&BLOCK[..part])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
