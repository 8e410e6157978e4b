//! Procedures of TS 23.502 from the SMF's point of view, one file each.

pub(crate) mod establishment;
pub(crate) mod modification;
pub(crate) mod peer_restart;
pub(crate) mod policy_association;
pub(crate) mod release;
pub(crate) mod reports;
pub(crate) mod restoration;
pub(crate) mod service_request;
pub(crate) mod subscription_change;
pub(crate) mod user_plane;
