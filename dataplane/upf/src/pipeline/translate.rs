//! Redirection to an address: destinations out, sources back.
