//! Clock, sockets, SCTP, namespaces and netlink: the only crate that touches them.
