//! Framed routes: networks behind a UE, found by the longest prefix.
