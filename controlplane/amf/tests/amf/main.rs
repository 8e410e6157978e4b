//! The AMF against scripted gNBs, UEs and NFs: the success of every procedure, and the failures it must
//! handle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it fails")]

mod support;

mod limits;
mod n2;
mod order;
mod registration;
mod session_loss;
mod sessions;
mod storm;
