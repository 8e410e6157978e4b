//! Values of information elements (TS 24.501 §9.11), the same for every message that carries them.

mod identity;
mod pco;
mod qos;
mod timer;
mod value;

pub(crate) use identity::bcd_from_digits as bcd;
pub use identity::{IdentityType, MobileIdentity, ProtectionScheme, Suci};
pub use pco::{Pco, PcoItem};
pub use qos::{
    FilterComponent, FilterDirection, FlowOperation, FlowParameter, PacketFilter, QosFlowDescription,
    QosRule, RuleOperation,
};
pub(crate) use qos::{read_flows, read_rules, write_flows, write_rules};
pub use timer::Timer;
pub use value::{
    AccessType, CipheringAlgorithm, IntegrityAlgorithm, IntegrityDataRate, KeySetId, NetworkFeatures,
    PayloadType, PduAddress, PsiSet, RegistrationType, RejectedSNssai, RequestType, ServiceType,
    SliceRejectCause, SmCapability, UeSecurityCapability,
};
