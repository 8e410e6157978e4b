//! Parameters of server and client, for the command line and for the experiment.

use std::fmt;
use std::net::SocketAddr;

use clap::ValueEnum;
use net::time::Duration;

/// Protocol that carries the requests.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Protocol {
    /// One request after the other on a TCP connection: a length of two octets, then the body.
    Tcp,
    /// HTTP/2: hyper, one request per stream, connections shared.
    Http2,
    /// gRPC: tonic's own transports, unary calls, a codec that copies octets.
    Grpc,
    /// yamux: a stream per request.
    Yamux,
    /// CoTCP, its client called from a task per worker, its handler asynchronous.
    Cotcp,
    /// CoTCP with one client whose pool has all the connections.
    CotcpPool,
    /// CoTCP with requests handled, and answers processed, where they are read: no task per worker.
    CotcpInline,
    /// CoTCP limited to version 1: large messages are sent as several calls, in order.
    CotcpV1,
}

impl Protocol {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Http2 => "http2",
            Protocol::Grpc => "grpc",
            Protocol::Yamux => "yamux",
            Protocol::Cotcp => "cotcp",
            Protocol::CotcpPool => "cotcp-pool",
            Protocol::CotcpInline => "cotcp-inline",
            Protocol::CotcpV1 => "cotcp-v1",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The server: answers requests after a delay. Prints its address as JSON and serves until it is stopped.
#[derive(clap::Args, Clone, Debug)]
pub struct Serve {
    /// Protocol that carries the requests.
    #[arg(long, value_enum, default_value = "cotcp")]
    pub protocol: Protocol,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Time between a request and its answer.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pub delay: Duration,
    /// Octets of an answer's body. Requests above 32 KiB are answered with themselves.
    #[arg(long, value_name = "OCTETS", default_value_t = 10)]
    pub response: usize,
    /// Number of threads.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cpus: u16,
    /// Cores to run on, such as 0 or 0,1; by default the system chooses.
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub pin: Vec<usize>,
}

/// The client: workers that send a request, wait for its answer and send the next. Prints its report as JSON.
#[derive(clap::Args, Clone, Debug)]
pub struct Load {
    /// Protocol that carries the requests.
    #[arg(long, value_enum, default_value = "cotcp")]
    pub protocol: Protocol,
    /// Address of the server.
    #[arg(long, value_name = "ADDRESS")]
    pub server: SocketAddr,
    /// Connections, which the workers share.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,
    /// Workers, each with one request at a time.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub workers: u32,
    /// Octets of a request's body; at least 4, so that answers can be told apart.
    #[arg(long, value_name = "OCTETS", default_value_t = 10, value_parser = size)]
    pub request: usize,
    /// Octets of an answer's body; must equal the server's parameter.
    #[arg(long, value_name = "OCTETS", default_value_t = 10)]
    pub response: usize,
    /// Seconds of measuring.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Seconds of warming up before that.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    pub warm_up: f64,
    /// Pause of a worker between an answer and its next request.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pub pause: Duration,
    /// Time every n-th transaction of a worker; all transactions are counted and compared.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub time_every: u32,
    /// Number of additional workers that send large requests and get them back.
    #[arg(long, value_name = "WORKERS", default_value_t = 0)]
    pub large_workers: u32,
    /// Octets of a large request.
    #[arg(long, value_name = "OCTETS", default_value_t = 1 << 20, value_parser = size)]
    pub large: usize,
    /// Number of threads.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cpus: u16,
    /// Cores to run on, such as 0 or 0,1; by default the system chooses.
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub pin: Vec<usize>,
    /// Process id of the server if it is on this machine, to report its processor time too.
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
}

impl Serve {
    /// As arguments of a process.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = words([
            ("--protocol", self.protocol.to_string()),
            ("--listen", self.listen.to_string()),
            ("--delay", micros(self.delay)),
            ("--response", self.response.to_string()),
            ("--cpus", self.cpus.to_string()),
        ]);
        arguments.extend(pin(&self.pin));
        arguments
    }
}

impl Load {
    /// As arguments of a process.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = words([
            ("--protocol", self.protocol.to_string()),
            ("--server", self.server.to_string()),
            ("--connections", self.connections.to_string()),
            ("--workers", self.workers.to_string()),
            ("--request", self.request.to_string()),
            ("--response", self.response.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--warm-up", self.warm_up.to_string()),
            ("--pause", micros(self.pause)),
            ("--time-every", self.time_every.to_string()),
            ("--large-workers", self.large_workers.to_string()),
            ("--large", self.large.to_string()),
            ("--cpus", self.cpus.to_string()),
        ]);
        arguments.extend(pin(&self.pin));
        arguments.extend(self.server_pid.map(|pid| format!("--server-pid={pid}")));
        arguments
    }
}

fn words<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn pin(cores: &[usize]) -> Option<String> {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    (!cores.is_empty()).then(|| format!("--pin={}", cores.join(",")))
}

fn micros(time: Duration) -> String {
    format!("{}us", time.as_micros())
}

/// Reads `10ms`, `250us`, `1.5s`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("s", 1.0)];
    let read = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok()
    });
    read.filter(|time| *time <= Duration::from_secs(3600))
        .ok_or_else(|| format!("`{text}` is no time such as 10ms, 250us or 1.5s, of at most an hour"))
}

fn size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| (4..=64 << 20).contains(size));
    size.ok_or_else(|| format!("`{text}` is no number of octets from 4 to 67108864"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches as _};

    #[test]
    fn arguments_say_what_the_parameters_are() {
        let command = Load::augment_args(clap::Command::new("load"));
        let load = |arguments: &[String]| {
            let all = std::iter::once("load".to_owned()).chain(arguments.iter().cloned());
            Load::from_arg_matches(&command.clone().try_get_matches_from(all).unwrap()).unwrap()
        };
        let mut given = load(&["--server=127.0.0.1:7".to_owned(), "--pause=1.5ms".to_owned()]);
        assert_eq!(given.pause, Duration::from_micros(1500));
        (given.protocol, given.pin, given.server_pid) = (Protocol::CotcpInline, vec![0, 3], Some(9));
        assert_eq!(format!("{:?}", load(&given.arguments())), format!("{given:?}"));

        let command = Serve::augment_args(clap::Command::new("serve"));
        let serve = |arguments: Vec<String>| {
            let all = std::iter::once("serve".to_owned()).chain(arguments);
            Serve::from_arg_matches(&command.clone().try_get_matches_from(all).unwrap()).unwrap()
        };
        let mut given = serve(vec!["--delay=10ms".to_owned()]);
        (given.response, given.pin) = (77, vec![1]);
        assert_eq!(format!("{:?}", serve(given.arguments())), format!("{given:?}"));
    }

    #[test]
    fn times_that_are_none_are_refused() {
        for text in ["", "10", "ms", "-1s", "1e99s", "7200s", "NaNs"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
