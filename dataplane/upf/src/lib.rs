//! User plane function: N4 and the host pipeline.
#![forbid(unsafe_code)]
