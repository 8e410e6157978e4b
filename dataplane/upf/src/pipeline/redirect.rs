//! Redirection of web traffic to a URL (TS 29.244 §8.2.20): answers without a connection's state.
