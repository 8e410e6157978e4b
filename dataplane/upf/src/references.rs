//! Policies and peers, to which endpoints refer by number.
//!
//! A policy is rules that sessions may share, or the target of a redirection; a peer is an address. For each
//! number, the references from written blocks are counted ([`References::refer`], [`References::forget`]), so
//! that the blocks alone say what a session uses. A block is freed after a grace period, so no worker still
//! uses a number without references.

use std::net::SocketAddr;
use std::sync::Arc;

use classifier::session::{Interner, MAX_RULES, OwnAddresses, Rows};
use classifier::{Backend, Filter, Prefix, Rule, Side};
use foldhash::HashMap;

use crate::pipeline::url_redirect::UrlRedirect;
use crate::plan::{Action, Kind, OuterHeader, Plan, PlanError};
use crate::session::{self, Endpoint, NO_PEER, Policy, Route};
use crate::tables::{POLICIES, Tables};
use pktio::peers::PEERS;
use rcu::Bin;

/// The numbers and their reference counts; see the module.
pub(crate) struct References {
    tables: Arc<Tables>,
    backend: Backend,
    /// Lets sessions with the same policy share their compiled rules.
    interner: Interner,
    /// Numbers of shared policies, by [`Rows::id`].
    known: HashMap<usize, u32>,
    /// The id of a policy's rows (0 if not shared), and its reference count.
    policies: Vec<(usize, u32)>,
    free_policies: Vec<u32>,
    /// Numbers of peers, by interface and address.
    peers: HashMap<(u8, SocketAddr), u16>,
    /// A peer and its reference count. Index 0 stands for no peer.
    by_number: Vec<((u8, SocketAddr), u32)>,
    free_peers: Vec<u16>,
    /// New policies; no block may refer to some of them in the end.
    fresh_policies: Vec<u32>,
    fresh_peers: Vec<u16>,
    bin: Bin,
}

impl session::Peers for References {
    fn number(&mut self, header: &OuterHeader) -> Result<u16, PlanError> {
        let peer = (header.interface, header.peer);
        if let Some(number) = self.peers.get(&peer) {
            return Ok(*number);
        }
        let number = match self.free_peers.pop() {
            Some(number) => number,
            None if self.by_number.len() < PEERS => {
                self.by_number.push((peer, 0));
                (self.by_number.len() - 1) as u16
            }
            None => return Err(PlanError::Full("peers")),
        };
        if !self.tables.set_peer(number, header.interface, header.peer) {
            self.free_peers.push(number);
            return Err(PlanError::Full("memory for peers"));
        }
        self.by_number[usize::from(number)] = (peer, 0);
        self.peers.insert(peer, number);
        self.fresh_peers.push(number);
        Ok(number)
    }
}

impl References {
    pub fn new(tables: Arc<Tables>, backend: Backend) -> References {
        let none = (0, SocketAddr::from(([0; 4], 0)));
        References {
            backend,
            interner: Interner::new(),
            known: HashMap::default(),
            policies: Vec::new(),
            free_policies: Vec::new(),
            peers: HashMap::default(),
            by_number: vec![(none, 0); usize::from(NO_PEER) + 1],
            free_peers: Vec::new(),
            fresh_policies: Vec::new(),
            fresh_peers: Vec::new(),
            bin: Bin::new(&tables.domain),
            tables,
        }
    }

    /// Counts the references of a block.
    pub fn refer(&mut self, block: &[Endpoint]) {
        for policy in block.first().and_then(Endpoint::policy).into_iter().chain(session::targets(block)) {
            self.policies[policy as usize].1 += 1;
        }
        for peer in session::peers(block) {
            self.by_number[usize::from(peer)].1 += 1;
        }
    }

    /// Removes the references of a block that no worker sees. Numbers without references become free.
    pub fn forget(&mut self, block: &[Endpoint]) {
        for policy in block.first().and_then(Endpoint::policy).into_iter().chain(session::targets(block)) {
            self.policies[policy as usize].1 -= 1;
            self.free_policy(policy);
        }
        for peer in session::peers(block) {
            self.by_number[usize::from(peer)].1 -= 1;
            self.free_peer(peer);
        }
    }

    /// Whether sessions with equal rules share this policy.
    pub fn is_shared(&self, policy: u32) -> bool {
        self.policies.get(policy as usize).is_some_and(|(id, _)| *id != 0)
    }

    fn free_policy(&mut self, number: u32) {
        let (id, users) = self.policies[number as usize];
        if users > 0 {
            return;
        }
        if self.known.get(&id) == Some(&number) {
            self.known.remove(&id);
        }
        self.tables.policies.store(number as usize, None, &mut self.bin);
        self.free_policies.push(number);
    }

    fn free_peer(&mut self, number: u16) {
        let (peer, users) = self.by_number[usize::from(number)];
        if users == 0 {
            self.peers.remove(&peer);
            self.free_peers.push(number);
        }
    }

    /// Frees new numbers to which no block refers.
    pub fn free_unused(&mut self) {
        for number in std::mem::take(&mut self.fresh_policies) {
            self.free_policy(number);
        }
        for number in std::mem::take(&mut self.fresh_peers) {
            self.free_peer(number);
        }
    }

    /// The redirection targets of PDRs: each PDR's identifier with the number of its policy.
    pub fn targets(&mut self, plan: &Plan) -> Result<Vec<(u16, u32)>, PlanError> {
        let mut out = Vec::new();
        for pdr in &plan.pdrs {
            let target = match &pdr.action {
                Action::RedirectUrl(url) => UrlRedirect::new(url)
                    .map(Policy::Redirect)
                    .map_err(|_| PlanError::Invalid("a URL that no answer can name")),
                Action::RedirectAddress(address, _) => Ok(Policy::Address(*address)),
                _ => continue,
            };
            out.push((pdr.id, self.add(target?, None)?));
        }
        Ok(out)
    }

    /// Drops policies that no worker sees any more.
    pub fn empty(&mut self) {
        self.bin.empty();
    }

    /// Compiles the rules of a place.
    pub fn compile(&mut self, plan: &Plan, rules: &[Rule]) -> Result<(OwnAddresses, Route), PlanError> {
        if rules.is_empty() {
            return Ok((OwnAddresses::NONE, Route::None));
        }
        if plan.kind == Kind::Ethernet {
            let mut classifier = self.backend.build();
            classifier.insert_all(rules).map_err(|_| PlanError::Invalid("two rules with one id"))?;
            return Ok((OwnAddresses::NONE, Route::Policy(self.add(Policy::Frames(classifier), None)?)));
        }
        if let Some(position) = session::only(rules) {
            return Ok((OwnAddresses::NONE, Route::Only(position)));
        }
        let few = self.backend == Backend::Auto && rules.len() <= MAX_RULES;
        let program = few.then(|| self.interner.compile(rules).ok()).flatten();
        let (own, policy) = match program {
            Some(program) => {
                let (own, rows) = program.into_parts();
                (own, self.share(rows)?)
            }
            None => {
                let mut classifier = self.backend.build();
                classifier.insert_all(rules).map_err(|_| PlanError::Invalid("two rules with one id"))?;
                (self.own_addresses_of(plan), self.add(Policy::Classifier(classifier), None)?)
            }
        };
        Ok((own, Route::Policy(policy)))
    }

    /// The addresses of the UE alone, from which a look-up tells why nothing matched.
    fn own_addresses_of(&mut self, plan: &Plan) -> OwnAddresses {
        let v4 = plan.ue.ipv4.first().map(|address| Prefix::host((*address).into()));
        let v6 = plan.ue.ipv6.first().and_then(|(prefix, len)| Prefix::new((*prefix).into(), *len).ok());
        let rule = |(id, prefix)| Rule {
            id,
            precedence: 0,
            value: 0,
            filter: Filter { ue: Some((Side::Source, prefix)), ..Filter::default() },
        };
        let rules: Vec<Rule> = (0..).zip(v4.into_iter().chain(v6)).map(rule).collect();
        self.interner.compile(&rules).map_or(OwnAddresses::NONE, |program| program.into_parts().0)
    }

    /// The number of rows that other sessions may use as well.
    fn share(&mut self, rows: Rows) -> Result<u32, PlanError> {
        let id = rows.id();
        match self.known.get(&id) {
            Some(number) => Ok(*number),
            None => self.add(Policy::Rows(rows), Some(id)),
        }
    }

    fn add(&mut self, policy: Policy, id: Option<usize>) -> Result<u32, PlanError> {
        let number = match self.free_policies.pop() {
            Some(number) => number,
            None if self.policies.len() < POLICIES => {
                self.policies.push((0, 0));
                (self.policies.len() - 1) as u32
            }
            None => return Err(PlanError::Full("policies")),
        };
        if !self.tables.policies.store(number as usize, Some(Box::new(policy)), &mut self.bin) {
            self.free_policies.push(number);
            return Err(PlanError::Full("policies"));
        }
        if let Some(id) = id {
            self.known.insert(id, number);
        }
        self.policies[number as usize] = (id.unwrap_or(0), 0);
        self.fresh_policies.push(number);
        Ok(number)
    }
}
