//! Packet input/output backends and capture.
