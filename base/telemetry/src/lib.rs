//! Typed events, counters, drop reasons and the pcapng writer.
#![forbid(unsafe_code)]
