//! How a memif is set up: a device string such as DPDK has, `memif0,role=server,socket=/run/godwit/n3.sock,id=0`.

use crate::vlan::LONGEST_HEADER;
use std::path::PathBuf;

use net::private_file;
use packet::ethernet::Mac;

use super::protocol::Secret;
use super::ring::{MAX_LOG2_SIZE, Role};

/// Pairs of queues at most.
const MAX_QUEUES: u16 = 64;
/// Longest path of a socket (`sockaddr_un`), without its last octet.
const MAX_SOCKET: usize = 107;
/// Memory of all buffers of a client at most.
const MAX_MEMORY: u64 = 1 << 30;

/// The settings of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Its name, which the peer is told.
    pub name: String,
    /// `role`: `server` (or `master`), `client` (or `slave`), the default.
    pub role: Role,
    /// `socket`: the file through which server and client find each other.
    pub socket: PathBuf,
    /// `id`: number of the interface on the socket; default 0.
    pub id: u32,
    /// `bsize`: octets of each of a client's buffers; default 2048.
    pub buffer_size: u32,
    /// `rsize`: base-2 logarithm of the number of descriptors of a client's rings; default 10.
    pub log2_size: u8,
    /// `secret-file`: a private file with a secret of up to 24 octets that both sides know.
    pub secret_file: Option<PathBuf>,
    /// Its content, after [`Settings::read_secret`].
    pub secret: Option<Secret>,
    /// `mac`: the interface's address; by default a random one.
    pub mac: Mac,
    /// `trusted=yes`: accept memory that a client can take away while it is used, which ends this process. Clients that
    /// lend buffers of their own (`zero-copy=yes` in DPDK) need it.
    pub trusted: bool,
    /// Pairs of rings: one per worker.
    pub queues: u16,
    /// Longest payload of a frame.
    pub mtu: u16,
}

/// What is wrong with a device string.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// There is no name, or one that a thread cannot have.
    #[error("a memif has a name, such as memif0")]
    Name,
    /// An unknown argument.
    #[error("`{0}` is no argument of a memif: role, socket, id, bsize, rsize, secret-file, mac, trusted")]
    Unknown(String),
    /// A value that does not belong there.
    #[error("`{0}`: {1}")]
    Value(String, &'static str),
    /// No socket.
    #[error("a memif needs the path of a socket: socket=/run/godwit/memif.sock")]
    Socket,
    /// The secret cannot be read.
    #[error("secret-file: {0}")]
    SecretFile(#[from] private_file::PrivateFileError),
    /// The file holds no secret.
    #[error("secret-file: {} does not hold 1 to 24 octets", .0.display())]
    SecretLength(PathBuf),
    /// Rings and buffers would be too large.
    #[error("{0} queues of 2^{1} buffers of {2} octets are more than 1 GiB")]
    Memory(u16, u8, u32),
    /// A frame would not fit into the buffers of a whole ring.
    #[error("a ring of 2^{0} buffers of {1} octets has no room for a frame")]
    Room(u8, u32),
}

impl Settings {
    /// Reads a device string, and no file. `queues` is at most 64.
    ///
    /// # Errors
    /// It has something unknown, or lacks something.
    pub fn parse(device: &str, queues: u16, mtu: u16) -> Result<Settings, SettingsError> {
        let mut parts = device.split(',');
        let name = parts.next().filter(|name| !name.is_empty() && !name.contains('\0'));
        let name = name.ok_or(SettingsError::Name)?;
        let mut settings = Settings {
            name: name.to_owned(),
            role: Role::Client,
            socket: PathBuf::new(),
            id: 0,
            buffer_size: 2048,
            log2_size: 10,
            secret_file: None,
            secret: None,
            mac: random_mac(),
            trusted: false,
            queues: queues.clamp(1, MAX_QUEUES),
            mtu,
        };
        for part in parts {
            settings.argument(part)?;
        }
        if settings.socket.as_os_str().is_empty() {
            return Err(SettingsError::Socket);
        }
        let Settings { queues, log2_size, buffer_size, .. } = settings;
        if (2 * u64::from(queues) * u64::from(buffer_size)) << log2_size > MAX_MEMORY {
            return Err(SettingsError::Memory(queues, log2_size, buffer_size));
        }
        if u64::from(buffer_size) << log2_size < u64::from(settings.frame()) {
            return Err(SettingsError::Room(log2_size, buffer_size));
        }
        Ok(settings)
    }

    /// Reads the secret from its file.
    ///
    /// # Errors
    /// The file is not there, open to others, or holds no secret.
    pub fn read_secret(mut self) -> Result<Settings, SettingsError> {
        if let Some(file) = &self.secret_file {
            let text = private_file::read(file)?;
            let secret = Secret::new(text.trim_end().as_bytes());
            self.secret = Some(secret.ok_or_else(|| SettingsError::SecretLength(file.clone()))?);
        }
        Ok(self)
    }

    /// Octets of the longest frame.
    pub fn frame(&self) -> u32 {
        u32::from(self.mtu) + LONGEST_HEADER as u32
    }

    fn argument(&mut self, part: &str) -> Result<(), SettingsError> {
        let Some((key, value)) = part.split_once('=') else {
            return Err(SettingsError::Unknown(part.to_owned()));
        };
        let wrong = |why| SettingsError::Value(part.to_owned(), why);
        match key {
            "role" => {
                self.role = match value {
                    "server" | "master" => Role::Server,
                    "client" | "slave" => Role::Client,
                    _ => return Err(wrong("server or client")),
                }
            }
            "socket" => {
                if value.len() > MAX_SOCKET || value.contains('\0') {
                    return Err(wrong("a path of up to 107 octets"));
                }
                self.socket = PathBuf::from(value);
            }
            // Names without file have no access rights.
            "socket-abstract" if value == "no" => (),
            "socket-abstract" => return Err(wrong("only sockets with a file: no")),
            "id" => self.id = value.parse().map_err(|_| wrong("a number"))?,
            "bsize" => {
                let size = value.parse().ok().filter(|size| (64..=65536).contains(size));
                self.buffer_size = size.ok_or_else(|| wrong("64 to 65536 octets"))?;
            }
            "rsize" => {
                let size = value.parse().ok().filter(|size| (1..=MAX_LOG2_SIZE).contains(size));
                self.log2_size = size.ok_or_else(|| wrong("1 to 14"))?;
            }
            "secret-file" => self.secret_file = Some(PathBuf::from(value)),
            "mac" => {
                self.mac = parse_mac(value).ok_or_else(|| wrong("an address such as 02:00:00:00:00:01"))?
            }
            "trusted" => {
                self.trusted = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(wrong("yes or no")),
                }
            }
            _ => return Err(SettingsError::Unknown(part.to_owned())),
        }
        Ok(())
    }
}

/// A unicast address.
fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for octet in &mut mac {
        *octet = u8::from_str_radix(parts.next().filter(|part| part.len() == 2)?, 16).ok()?;
    }
    (parts.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

/// A locally administered address. Each hasher of the standard library has a random key.
fn random_mac() -> Mac {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let [a, b, c, d, e, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    [2, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(device: &str) -> Result<Settings, String> {
        Settings::parse(device, 1, 1500).map_err(|error| error.to_string())
    }

    #[test]
    fn device_strings_are_those_of_dpdk() {
        let all = parse("memif0,role=server,socket-abstract=no,socket=/run/x.sock,id=7,bsize=4096,rsize=9,mac=02:00:00:00:0a:01,trusted=yes").unwrap();
        let wanted = Settings {
            name: "memif0".to_owned(),
            role: Role::Server,
            socket: "/run/x.sock".into(),
            id: 7,
            buffer_size: 4096,
            log2_size: 9,
            secret_file: None,
            secret: None,
            mac: [2, 0, 0, 0, 10, 1],
            trusted: true,
            queues: 1,
            mtu: 1500,
        };
        assert_eq!(all, wanted);
        let least = parse("n,socket=s").unwrap();
        assert_eq!((least.role, least.id, least.buffer_size, least.log2_size), (Role::Client, 0, 2048, 10));
        assert!(least.mac[0] == 2 && least.mac != parse("n,socket=s").unwrap().mac && !least.trusted);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = format!("m,socket={}", "x".repeat(108));
        for (device, named) in [
            (long.as_str(), "107 octets"),
            ("", "name"),
            (",socket=s", "name"),
            ("m", "socket="),
            ("m,socket=", "socket="),
            ("m,socket=s,role=chief", "role=chief"),
            ("m,socket=s,colour=red", "colour=red"),
            ("m,socket=s,zero", "zero"),
            ("m,socket=s,id=-1", "id=-1"),
            ("m,socket=s,bsize=63", "64 to 65536"),
            ("m,socket=s,rsize=15", "1 to 14"),
            ("m,socket=s,rsize=0", "1 to 14"),
            ("m,socket=s,mac=01:00:00:00:00:01", "mac="),
            ("m,socket=s,mac=02:00:00:00:00", "mac="),
            ("m,socket=s,trusted=maybe", "yes or no"),
            ("m,socket=s,socket-abstract=yes", "no"),
            ("m\0,socket=s", "name"),
            ("m,socket=a\0b", "a path"),
            ("m,socket=s,rsize=14,bsize=65536", "1 GiB"),
            ("m,socket=s,rsize=1,bsize=64", "no room"),
        ] {
            let error = parse(device).unwrap_err();
            assert!(error.contains(named), "{device}: {error}");
        }
    }

    #[test]
    fn the_secret_is_in_a_private_file() {
        let path = std::env::temp_dir().join(format!("godwit-memif-secret-{}", std::process::id()));
        private_file::create(&path, "hush\n").unwrap();
        let settings = parse(&format!("m,socket=s,secret-file={}", path.display())).unwrap();
        assert_eq!(settings.secret, None, "not read yet");
        let read = || settings.clone().read_secret();
        let secret = read().unwrap();
        assert!(secret.secret.unwrap().matches(&Secret::new(b"hush").unwrap()));
        assert!(!format!("{secret:?}").contains("hush"));
        private_file::replace(&path, &"x".repeat(25)).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains("1 to 24 octets") && !error.contains("xx"), "{error}");
        std::fs::remove_file(path).unwrap();
        assert!(read().unwrap_err().to_string().starts_with("secret-file: cannot read"));
    }
}
