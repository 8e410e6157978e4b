//! `GET /metrics` over TCP, for Prometheus. It is the only administration interface that is not a Unix
//! socket, because its readers are on other machines. It only returns numbers, accepts no content, and
//! is served only if the configuration has an address for it.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Response, StatusCode, body::Incoming, header, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use net::{tcp, time};
use telemetry::prometheus;
use tokio::{sync::Semaphore, task::JoinHandle};

/// Most connections at once; a few servers ask every few seconds.
const MAX_CONNECTIONS: usize = 16;
/// How long a request's head may take, and how long a connection may be idle.
const PATIENCE: Duration = Duration::from_secs(30);

type Render = dyn Fn() -> Pin<Box<dyn Future<Output = String> + Send>> + Send + Sync;

/// A served address; dropping it stops serving.
#[derive(Debug)]
pub struct MetricsServer {
    task: JoinHandle<()>,
    address: SocketAddr,
}

impl MetricsServer {
    /// Serves the text that `render` returns, computed for each request.
    ///
    /// # Errors
    /// The address is in use, or not of this host.
    pub async fn start<F, Fut>(address: SocketAddr, render: F) -> io::Result<MetricsServer>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = String> + Send + 'static,
    {
        let listener = tcp::listen(address).await?;
        let address = listener.local_addr()?;
        let render: Arc<Render> = Arc::new(move || Box::pin(render()));
        Ok(MetricsServer { task: tokio::spawn(accept(listener, render)), address })
    }

    /// The served address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: tcp::TcpListener, render: Arc<Render>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        while tasks.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let render = render.clone();
        tasks.spawn(async move {
            let service = service_fn(move |request| {
                let render = render.clone();
                async move { Ok::<_, std::convert::Infallible>(answer(&request, &*render).await) }
            });
            // A client may close the connection or stay silent at any time.
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
            drop(permit);
        });
    }
}

async fn answer(request: &hyper::Request<Incoming>, render: &Render) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, render().await),
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(prometheus::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, head: &str) -> String {
        let mut stream = tcp::connect(address, PATIENCE).await.unwrap();
        stream
            .write_all(format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn only_metrics_are_served() {
        let any = "127.0.0.1:0".parse().unwrap();
        let server = MetricsServer::start(any, || async { "fivegs_x 1\n".to_owned() }).await.unwrap();
        let found = ask(server.address(), "GET /metrics").await;
        assert!(found.starts_with("HTTP/1.1 200") && found.ends_with("\r\n\r\nfivegs_x 1\n"), "{found}");
        assert!(found.contains("version=0.0.4"), "{found}");
        assert!(ask(server.address(), "GET /").await.starts_with("HTTP/1.1 404"));
        assert!(ask(server.address(), "POST /metrics").await.starts_with("HTTP/1.1 405"));
        // More clients than places, all silent: further clients wait in the kernel and are served when
        // one leaves.
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(tcp::connect(server.address(), PATIENCE).await.unwrap());
        }
        drop(silent);
        assert!(ask(server.address(), "GET /metrics").await.starts_with("HTTP/1.1 200"));
        let taken = MetricsServer::start(server.address(), || async { String::new() }).await;
        assert_eq!(taken.map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::AddrInUse));
    }
}
