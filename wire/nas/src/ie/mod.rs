//! Values of information elements (TS 24.501 §9.11), the same for every message that carries them.

mod identity;
mod pco;
mod qos;
mod timer;
mod value;

pub use identity::{IdentityType, MobileIdentity, ProtectionScheme, Suci};
pub use pco::{Pco, PcoItem};
pub use qos::{
    FilterComponent, FilterDirection, FlowOperation, FlowParameter, PacketFilter, QosFlowDescription,
    QosRule, RuleOperation,
};
pub use timer::Timer;
#[allow(unused_imports)]
pub(crate) use value::Value;
pub use value::{
    AccessType, CipheringAlgorithm, IntegrityAlgorithm, IntegrityDataRate, KeySetId, NetworkFeatures,
    PayloadType, PduAddress, PsiSet, RegistrationType, RejectedSNssai, RequestType, ServiceType,
    SliceRejectCause, SmCapability, UeSecurityCapability,
};
