//! gNB and UE simulator over real NGAP, NAS and GTP-U.
#![forbid(unsafe_code)]
