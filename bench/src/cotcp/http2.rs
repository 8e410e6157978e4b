//! HTTP/2 with hyper: one POST per request, each in its own stream, with windows large enough that no request
//! waits.

use std::net::SocketAddr;

use anyhow::ensure;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use net::tcp::{self, TcpStream};

use super::load::{Call, PATIENCE};
use super::serve::App;

/// Streams at once; hyper's default of 200 would delay the workers.
pub(super) const STREAMS: u32 = 4096;
/// Window of a stream, large enough for a large body.
pub(super) const STREAM_WINDOW: u32 = 2 << 20;
/// Window of a connection.
pub(super) const CONNECTION_WINDOW: u32 = 16 << 20;

/// Answers the requests of a connection.
pub(super) async fn serve(stream: TcpStream, app: App) -> anyhow::Result<()> {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let app = app.clone();
        async move {
            let body = whole(request.into_body()).await?;
            Ok::<_, hyper::Error>(Response::new(Full::new(app.answer(body).await)))
        }
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .auto_date_header(false);
    Ok(builder.serve_connection(TokioIo::new(stream), service).await?)
}

/// The octets of a body. A body in one piece is not copied.
async fn whole(mut body: Incoming) -> Result<Bytes, hyper::Error> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let Ok(data) = frame?.into_data() else { continue };
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(first.len() + rest.len());
    all.extend_from_slice(&first);
    all.extend_from_slice(&rest);
    Ok(all.freeze())
}

/// A worker's access to a connection.
#[derive(Clone)]
pub(super) struct Caller {
    sender: SendRequest<Full<Bytes>>,
    uri: Uri,
}

/// Opens a connection.
pub(super) async fn connect(server: SocketAddr) -> anyhow::Result<Caller> {
    let stream = tcp::connect(server, PATIENCE).await?;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_max_send_streams(STREAMS as usize)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    // An error of the connection shows in the calls.
    tokio::spawn(connection);
    Ok(Caller { sender, uri: format!("http://{server}/").parse()? })
}

impl Call for Caller {
    async fn call(&mut self, request: Bytes) -> anyhow::Result<Bytes> {
        let mut message = Request::new(Full::new(request));
        *message.method_mut() = Method::POST;
        *message.uri_mut() = self.uri.clone();
        let response = self.sender.send_request(message).await?;
        ensure!(response.status() == StatusCode::OK, "status {}", response.status());
        Ok(whole(response.into_body()).await?)
    }
}
