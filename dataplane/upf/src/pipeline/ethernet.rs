//! Frames of Ethernet sessions: what rules select them by (TS 29.244 table 7.5.2.2-3).
