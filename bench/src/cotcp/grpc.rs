//! gRPC with tonic: unary calls over tonic's own server and channel, as users have them. A codec that copies
//! octets replaces Protobuf, so that no message is encoded.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Context as _;
use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use net::tcp::TcpListener;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::Service;
use tonic::server::{Grpc as Server, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::http2::{CONNECTION_WINDOW, STREAM_WINDOW, STREAMS};
use super::load::Call;
use super::serve::App;

const PATH: PathAndQuery = PathAndQuery::from_static("/bench.Transactions/Call");

/// Bodies that are copied unchanged.
#[derive(Clone, Copy, Default)]
struct Octets;

impl Codec for Octets {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Octets;
    type Decoder = Octets;

    fn encoder(&mut self) -> Octets {
        Octets
    }

    fn decoder(&mut self) -> Octets {
        Octets
    }
}

impl Encoder for Octets {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Octets {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// The service; it ignores the path.
#[derive(Clone)]
struct Transactions(App);

impl Service<http::Request<Body>> for Transactions {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = Method(self.0.clone());
        Box::pin(async move { Ok(Server::new(Octets).unary(method, request).await) })
    }
}

/// The one method.
struct Method(App);

impl UnaryService<Bytes> for Method {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let app = self.0.clone();
        Box::pin(async move { Ok(Response::new(app.answer(request.into_inner()).await)) })
    }
}

/// Serves on the listener.
pub(super) async fn serve(listener: TcpListener, app: App) -> anyhow::Result<Infallible> {
    tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_with_incoming(Transactions(app), TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await?;
    anyhow::bail!("the gRPC server ended")
}

/// A worker's access to a connection.
#[derive(Clone)]
pub(super) struct Caller(Client<Channel>);

/// Opens a connection.
pub(super) async fn connect(server: SocketAddr) -> anyhow::Result<Caller> {
    let channel = Endpoint::from_shared(format!("http://{server}"))?
        .tcp_nodelay(true)
        .buffer_size(STREAMS as usize)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect()
        .await?;
    Ok(Caller(Client::new(channel)))
}

impl Call for Caller {
    async fn call(&mut self, request: Bytes) -> anyhow::Result<Bytes> {
        self.0.ready().await.context("the channel is closed")?;
        Ok(self.0.unary(Request::new(request), PATH, Octets).await?.into_inner())
    }
}
