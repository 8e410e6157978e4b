//! The procedures of TS 23.502 and their parts, one file each.
//!
//! | procedure | file | started by |
//! |---|---|---|
//! | Registration | [`registration`], with [`identification`], [`authentication`], [`security_mode`] | UE |
//! | Deregistration | [`deregistration`] | UE, UDM, operator, timers |
//! | Service request | [`service_request`] | UE |
//! | AN release | [`an_release`] | gNB, AMF, loss of the association |
//! | PDU session establishment | [`pdu_session_establishment`] | UE, through [`ul_nas_transport`] |
//! | PDU session release and modification | [`n1n2_transfer`] | UE or SMF |
//! | UE configuration update | [`configuration_update`] | AMF, after a page was answered, slices changed or sessions were lost |
//! | Messages of the gNB outside other procedures | [`unsolicited_n2`] | gNB |
//! | Change of the subscription | [`subscription_change`] | UDM |
//! | Paging | [`paging`] | SMF, through [`n1n2_transfer`]; [`deregistration`] |
//! | Sessions lost by their SMF | [`session_loss`] | AMF |
//! | Policy changed, ended or lost by its PCF | [`policy_association`] | PCF |
//! | SMFs and PCFs that start | [`peer_restart`] | NRF |
//! | NG Setup, RAN configuration update, NG Reset | [`ng_setup`], [`ng_reset`] | gNB |
//!
//! [`resource_setup`], [`session_resources`], [`user_plane`] and [`bit_rate`] are steps that several of them share.

pub(crate) mod an_release;
pub(crate) mod authentication;
pub(crate) mod bit_rate;
pub(crate) mod configuration_update;
pub(crate) mod deregistration;
pub(crate) mod identification;
pub(crate) mod n1n2_transfer;
pub(crate) mod ng_reset;
pub(crate) mod ng_setup;
pub(crate) mod paging;
pub(crate) mod pdu_session_establishment;
pub(crate) mod peer_restart;
pub(crate) mod policy_association;
pub(crate) mod registration;
pub(crate) mod resource_setup;
pub(crate) mod security_mode;
pub(crate) mod service_request;
pub(crate) mod session_loss;
pub(crate) mod session_resources;
pub(crate) mod subscription_change;
pub(crate) mod ul_nas_transport;
pub(crate) mod unsolicited_n2;
pub(crate) mod user_plane;
