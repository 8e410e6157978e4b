//! The bridge of a data network with Ethernet sessions: learnt addresses and flooding (TS 23.501 §5.6.10.2).
