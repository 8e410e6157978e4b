//! An ordinary echo server on epoll, moved from the kernel's sockets to any backend by another constructor.
//!
//! ```sh
//! cargo run --release -p pktio --features dpdk --example echo -- 127.0.0.1:7007            # the kernel's sockets
//! # On an address of its own (kernel bypass): the rest is the same program.
//! … -- 10.0.0.1:7 '{"backend": "dpdk", "device": "net_af_packet0,iface=veth0", "addresses": ["10.0.0.1/24"]}'
//! … -- 10.0.0.1:7 '{"backend": "af_xdp", "device": "veth0", "addresses": ["10.0.0.1/24"]}'
//! … -- 10.0.0.1:7 '{"backend": "memif", "device": "memif0,role=server,socket=/tmp/echo.sock", "addresses": ["10.0.0.1/24"]}'
//! ```

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pktio::datagram::{DatagramSocket, Device, Options};

/// Before: `let socket = UdpSocket::bind(address)?; socket.set_nonblocking(true)?;`
pub fn bind(address: SocketAddr, link: Option<&str>) -> Result<DatagramSocket, Box<dyn std::error::Error>> {
    let link = link.map(serde_json::from_str).transpose()?.unwrap_or_default();
    let device = Device::open(&Options { name: "echo".to_owned(), link, ..Options::default() })?;
    Ok(device.bind(address)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().ok_or("echo ADDRESS:PORT [LINK]")?.parse()?;
    Ok(serve(&bind(address, arguments.get(1).map(String::as_str))?)?)
}

/// Answers until there is an error.
pub fn serve(socket: &DatagramSocket) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(socket.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let mut events = [EpollEvent::empty(); 8];
    loop {
        match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => answer(socket)?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends back all that waits.
fn answer(socket: &DatagramSocket) -> io::Result<()> {
    let mut buffer = [0; 65_536];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        match socket.send_to(&buffer[..length], peer) {
            // A full queue: UDP may lose datagrams.
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}
