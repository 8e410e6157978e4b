//! The target of a call: an API root, or an instance found through the NRF.

use std::{fmt, net::SocketAddr, str::FromStr, sync::Arc};

use types::{Dnn, Invalid, SNssai};

use crate::model::nrf::NfType;

/// `http://host:port[/prefix]` or `https://…`, the `{apiRoot}` of TS 29.501 §4.4.1. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiRoot {
    text: Arc<str>,
    scheme: Scheme,
    /// Position at which the authority ends and the prefix begins.
    authority_end: usize,
}

/// Between scheme and authority.
const SEPARATOR: &str = "://";

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// In clear.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// As it stands in a URI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Port when the URI names none (RFC 9110 §4.2).
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    /// The scheme of a URI, and what follows it.
    pub(crate) fn split(uri: &str) -> Option<(Self, &str)> {
        let (scheme, rest) = uri.split_once(SEPARATOR)?;
        let scheme = [Self::Http, Self::Https].into_iter().find(|known| known.as_str() == scheme)?;
        Some((scheme, rest))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ApiRoot {
    /// The root of an NF that listens on `address`.
    pub fn new(scheme: Scheme, address: SocketAddr) -> Self {
        let text: Arc<str> = format!("{scheme}{SEPARATOR}{address}").into();
        let authority_end = text.len();
        Self { text, scheme, authority_end }
    }

    /// The root of whoever gave out `uri`: its scheme and authority, without prefix.
    pub fn of_uri(uri: &str) -> Option<Self> {
        let (scheme, rest) = Scheme::split(uri)?;
        let authority = rest.split('/').next()?;
        format!("{scheme}{SEPARATOR}{authority}").parse().ok()
    }

    /// Whether calls go over TLS.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// `host:port`.
    pub fn authority(&self) -> &str {
        self.text.get(self.scheme.as_str().len() + SEPARATOR.len()..self.authority_end).unwrap_or_default()
    }

    /// Prefix of every path; usually empty.
    pub fn prefix(&self) -> &str {
        self.text.get(self.authority_end..).unwrap_or_default()
    }

    /// The whole text, without a final slash.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for ApiRoot {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("API root", text, "http://host:port or https://host:port");
        let (scheme, rest) = Scheme::split(text).ok_or_else(invalid)?;
        let text = text.trim_end_matches('/');
        let start = scheme.as_str().len() + SEPARATOR.len();
        let authority_end = start + rest.find('/').unwrap_or(rest.len());
        let authority = text.get(start..authority_end.min(text.len())).ok_or_else(invalid)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b);
        if authority.is_empty() || !authority.bytes().all(allowed) || text.contains(['?', '#', ' ']) {
            return Err(invalid());
        }
        let authority_end = start + authority.len();
        Ok(Self { text: text.into(), scheme, authority_end })
    }
}

impl From<SocketAddr> for ApiRoot {
    /// In clear.
    fn from(address: SocketAddr) -> Self {
        Self::new(Scheme::Http, address)
    }
}

impl fmt::Display for ApiRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ApiRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiRoot({self})")
    }
}

/// The URI of a resource that a peer created for us, split so that later operations can name it.
///
/// `http://10.0.0.4:7777/nsmf-pdusession/v1/sm-contexts/42` gives the API root and the identifier `42`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResourceUri {
    /// The API root for further operations on it.
    pub api_root: ApiRoot,
    /// Last segment of the path, percent-decoded: the path parameter of later operations.
    pub id: String,
}

impl ResourceUri {
    /// Splits the URI of a resource of service `service`, as [`crate::Created::location`] has it.
    ///
    /// # Errors
    /// A URI that is not absolute or does not belong to the service.
    pub fn parse(uri: &str, service: &crate::Service) -> Result<Self, Invalid> {
        let invalid =
            || Invalid::new("resource URI", uri, "the URI of a resource of the service that was called");
        let marker = format!("/{}/{}/", service.name, service.version);
        let (root, path) = uri.split_once(&marker).ok_or_else(invalid)?;
        let id = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let id = crate::param::percent_decode(id, false).filter(|id| !id.is_empty()).ok_or_else(invalid)?;
        Ok(Self { api_root: root.parse()?, id })
    }
}

/// Which instance to call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Target {
    /// Any instance that offers the operation's service, from the NRF or the configured peer list.
    #[default]
    Discover,
    /// An instance that serves a DNN on a slice.
    Serving {
        /// Data network.
        dnn: Option<Dnn>,
        /// Slice.
        snssai: Option<SNssai>,
    },
    /// This instance.
    At(ApiRoot),
}

impl From<ApiRoot> for Target {
    fn from(root: ApiRoot) -> Self {
        Self::At(root)
    }
}

impl From<&ApiRoot> for Target {
    fn from(root: &ApiRoot) -> Self {
        Self::At(root.clone())
    }
}

impl From<&ResourceUri> for Target {
    fn from(resource: &ResourceUri) -> Self {
        Self::At(resource.api_root.clone())
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self::At(address.into())
    }
}

/// The parameters of a discovery; key of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Selection {
    pub(crate) nf_type: NfType,
    pub(crate) service: &'static str,
    pub(crate) dnn: Option<Dnn>,
    pub(crate) snssai: Option<SNssai>,
}
