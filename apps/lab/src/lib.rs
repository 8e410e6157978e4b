//! A whole network on one machine: namespaces, links and processes.
#![forbid(unsafe_code)]
