//! Forwarding action rules (TS 29.244 §5.2.3).

use std::net::IpAddr;
use std::sync::Arc;

use pfcp::{
    ApplyAction, Cause, CreateFar, DestinationInterface, DuplicatingParameters, FailedRuleId,
    OuterHeaderCreation, RedirectInformation, ShortBytes, SmReqFlags, TransportLevelMarking, UpdateFar,
    UpdateForwardingParameters, ie,
};

use super::{Rejection, Rules, check_new, incorrect, missing};
use crate::pipeline::url_redirect::UrlRedirect;

/// Actions of features that are not supported. Spare bits have no meaning, and are kept (§8.1.1).
const NOT_OFFERED: ApplyAction = ApplyAction(
    ApplyAction::IPMA.0
        | ApplyAction::IPMD.0
        | ApplyAction::DFRT.0
        | ApplyAction::EDRT.0
        | ApplyAction::BDPN.0
        | ApplyAction::DDPN.0
        | ApplyAction::FSSM.0
        | ApplyAction::MBSU.0,
);
/// Most copies of one packet.
const MAX_COPIES: usize = 4;

/// A forwarding action rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarRule {
    /// Apply Action.
    pub action: ApplyAction,
    /// Destination interface; required for packets to be forwarded.
    pub destination: Option<DestinationInterface>,
    /// Outer header of forwarded packets: their tunnel.
    pub outer_header: Option<OuterHeaderCreation>,
    /// Name of the data network.
    pub network_instance: Option<ShortBytes>,
    /// Transport level marking.
    pub marking: Option<TransportLevelMarking>,
    /// Target of a redirection.
    pub redirect: Option<Redirect>,
    /// Destinations of copies.
    pub copies: Vec<Duplicate>,
    /// Identifier of the BAR for buffering.
    pub bar_id: Option<u8>,
}

/// Target of a redirection (§8.2.20).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redirect {
    /// Web requests are answered with a redirection to this URL.
    Url(String),
    /// Packets are sent to this address instead of their destination.
    Address(IpAddr),
}

/// Destination of a copy of each packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate {
    /// Destination.
    pub destination: DestinationInterface,
    /// Outer header of the copy.
    pub outer_header: Option<OuterHeaderCreation>,
    /// Transport level marking.
    pub marking: Option<TransportLevelMarking>,
}

impl FarRule {
    /// Applies an update to the parameters. If it asks for an End Marker, returns the rule as it was until now.
    fn update(&mut self, parameters: &UpdateForwardingParameters) -> Result<Option<FarRule>, Rejection> {
        check_policies(
            parameters.forwarding_policy.is_some(),
            parameters.header_enrichment.is_some(),
            false,
        )?;
        let end_marker = parameters
            .sm_req_flags
            .is_some_and(|flags| flags.contains(SmReqFlags::SNDEM))
            .then(|| self.clone());
        if let Some(destination) = parameters.destination_interface {
            self.destination = Some(destination);
        }
        if let Some(header) = parameters.outer_header_creation {
            self.outer_header = Some(header);
        }
        if let Some(instance) = &parameters.network_instance {
            self.network_instance = Some(instance.clone());
        }
        if parameters.transport_level_marking.is_some() {
            self.marking = parameters.transport_level_marking;
        }
        if let Some(information) = &parameters.redirect_information {
            self.redirect = Some(redirect(information)?);
        }
        Ok(end_marker)
    }

    /// Checks that the FAR has what its actions need (table 7.5.2.3-1).
    fn check(&self) -> Result<(), Rejection> {
        if self.action.0 & NOT_OFFERED.0 != 0 {
            return Err(Rejection::unsupported(ie::APPLY_ACTION));
        }
        let verbs = [ApplyAction::DROP, ApplyAction::FORW, ApplyAction::BUFF];
        if verbs.into_iter().filter(|verb| self.action.contains(*verb)).count() != 1 {
            return Err(incorrect(ie::APPLY_ACTION));
        }
        // The CP function is told of the first packet that is buffered or dropped, never of one that is
        // forwarded.
        if self.action.contains(ApplyAction::NOCP) && self.action.contains(ApplyAction::FORW) {
            return Err(incorrect(ie::APPLY_ACTION));
        }
        if self.action.contains(ApplyAction::DUPL) && self.copies.is_empty() {
            return Err(missing(ie::DUPLICATING_PARAMETERS));
        }
        for copy in &self.copies {
            check_way(copy.destination, copy.outer_header)?;
        }
        match self.destination {
            None if self.action.contains(ApplyAction::FORW) => Err(missing(ie::FORWARDING_PARAMETERS)),
            // A FAR that buffers gets its tunnel later.
            Some(_) if !self.action.contains(ApplyAction::FORW) => check_header(self.outer_header),
            Some(destination) => check_way(destination, self.outer_header),
            None => Ok(()),
        }
    }
}

fn check_header(header: Option<OuterHeaderCreation>) -> Result<(), Rejection> {
    match header {
        Some(header) if header.gtpu_endpoint().is_none() => {
            Err(Rejection::unsupported(ie::OUTER_HEADER_CREATION))
        }
        _ => Ok(()),
    }
}

/// Checks that packets can be forwarded to a destination.
fn check_way(
    destination: DestinationInterface,
    header: Option<OuterHeaderCreation>,
) -> Result<(), Rejection> {
    check_header(header)?;
    match destination {
        DestinationInterface::Access
        | DestinationInterface::CpFunction
        | DestinationInterface::LiFunction
            if header.is_none() =>
        {
            Err(missing(ie::OUTER_HEADER_CREATION))
        }
        // Forwarding between UEs of a group (5G LAN) is not supported.
        DestinationInterface::FiveGvnInternal => Err(Rejection::unsupported(ie::DESTINATION_INTERFACE)),
        _ => Ok(()),
    }
}

fn check_policies(policy: bool, enrichment: bool, proxying: bool) -> Result<(), Rejection> {
    if policy {
        Err(Rejection::ie(Cause::INVALID_FORWARDING_POLICY, ie::FORWARDING_POLICY))
    } else if enrichment {
        Err(Rejection::unsupported(ie::HEADER_ENRICHMENT))
    } else if proxying {
        Err(Rejection::unsupported(ie::PROXYING))
    } else {
        Ok(())
    }
}

/// Reads the target of a redirection. Of two addresses the first is used.
fn redirect(information: &RedirectInformation) -> Result<Redirect, Rejection> {
    let fault = incorrect(ie::REDIRECT_INFORMATION);
    let text = information.server.as_str().ok_or(fault)?;
    let address = || text.parse::<IpAddr>().map_err(|_| fault);
    match information.address_type {
        0 => address().and_then(|a| if a.is_ipv4() { Ok(Redirect::Address(a)) } else { Err(fault) }),
        1 => address().and_then(|a| if a.is_ipv6() { Ok(Redirect::Address(a)) } else { Err(fault) }),
        2 => UrlRedirect::new(text).map(|_| Redirect::Url(text.to_owned())).map_err(|_| fault),
        4 => address().map(Redirect::Address),
        _ => Err(Rejection::unsupported(ie::REDIRECT_INFORMATION)),
    }
}

fn copy(parameters: &DuplicatingParameters) -> Result<Duplicate, Rejection> {
    check_policies(parameters.forwarding_policy.is_some(), false, false)?;
    Ok(Duplicate {
        destination: parameters.destination_interface,
        outer_header: parameters.outer_header_creation,
        marking: parameters.transport_level_marking,
    })
}

impl Rules {
    /// Adds a FAR.
    pub fn create_far(&mut self, create: &CreateFar) -> Result<(), Rejection> {
        let id = create.far_id.0;
        check_new(&self.fars, id, FailedRuleId::Far(id))?;
        let parameters = create.forwarding_parameters.as_deref();
        if let Some(given) = parameters {
            check_policies(
                given.forwarding_policy.is_some(),
                given.header_enrichment.is_some(),
                given.proxying.is_some_and(|proxying| !proxying.is_empty()),
            )?;
        }
        if create.duplicating_parameters.len() > MAX_COPIES {
            return Err(Rejection::full(FailedRuleId::Far(id)));
        }
        let information = parameters.and_then(|given| given.redirect_information.as_ref());
        let rule = FarRule {
            action: create.apply_action,
            destination: parameters.map(|given| given.destination_interface),
            outer_header: parameters.and_then(|given| given.outer_header_creation),
            network_instance: parameters.and_then(|given| given.network_instance.clone()),
            marking: parameters.and_then(|given| given.transport_level_marking),
            redirect: information.map(redirect).transpose()?,
            copies: create.duplicating_parameters.iter().map(copy).collect::<Result<_, _>>()?,
            bar_id: create.bar_id.map(|id| id.0),
        };
        rule.check()?;
        self.fars.insert(id, Arc::new(rule));
        Ok(())
    }

    /// Changes a FAR. If the request asks for an End Marker, returns the FAR as it was until now.
    pub fn update_far(&mut self, update: &UpdateFar) -> Result<Option<FarRule>, Rejection> {
        let id = update.far_id.0;
        let shared = self.fars.get_mut(id).ok_or(Rejection::rule(FailedRuleId::Far(id)))?;
        let rule = Arc::make_mut(shared);
        let mut end_marker = None;
        if let Some(action) = update.apply_action {
            rule.action = action;
        }
        if let Some(bar_id) = update.bar_id {
            rule.bar_id = Some(bar_id.0);
        }
        if let Some(parameters) = update.update_forwarding_parameters.as_deref() {
            end_marker = rule.update(parameters)?;
        }
        if update.update_duplicating_parameters.len() > MAX_COPIES {
            return Err(Rejection::full(FailedRuleId::Far(id)));
        }
        for (n, parameters) in update.update_duplicating_parameters.iter().enumerate() {
            check_policies(parameters.forwarding_policy.is_some(), false, false)?;
            match rule.copies.get_mut(n) {
                Some(copy) => {
                    copy.destination = parameters.destination_interface.unwrap_or(copy.destination);
                    copy.outer_header = parameters.outer_header_creation.or(copy.outer_header);
                    copy.marking = parameters.transport_level_marking.or(copy.marking);
                }
                None => rule.copies.push(Duplicate {
                    destination: parameters
                        .destination_interface
                        .ok_or(missing(ie::DESTINATION_INTERFACE))?,
                    outer_header: parameters.outer_header_creation,
                    marking: parameters.transport_level_marking,
                }),
            }
        }
        rule.check()?;
        Ok(end_marker)
    }
}
