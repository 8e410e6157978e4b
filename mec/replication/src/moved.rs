//! Users move to clones and back: who serves whom, and what a P-GW that is apart hears of it (TOP-5).
//!
//! Where an S-GW alone is copied, its P-GW sends downlink packets to the S-GW of which it has heard last. It hears of the clone when the
//! user's packets go there ([`Frame::Serve`]), and again of the first S-GW, in that one's name, when they no longer do. A clone that has told a
//! P-GW of itself does not tell it again, so its copy is ended then and made anew.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::clone::Side as _;
use crate::frame::Frame;
use crate::intercept::{Place, Served, Timer};
use crate::replica::Copy;
use crate::replicator::{Outgoing, Replicator, State};
use crate::s11::clone::S11;

const PORT: u16 = 2123;

impl State {
    /// Whether a session's P-GW is apart.
    fn is_apart(&self, anchor: IpAddr, number: u32) -> bool {
        self.originals.get(&anchor).is_some_and(|original| original.ways_back(number).is_some())
    }

    /// Whether the clone of a replica serves a user whose P-GW is apart; `None`: nobody has to be told.
    pub(crate) fn serves(&self, replica: &(String, String), number: u32) -> Option<bool> {
        let anchor = self.replicas.get(replica)?.original;
        let serves = self.served(anchor, number) == Served::By(&replica.1);
        self.is_apart(anchor, number).then_some(serves)
    }

    /// Tells an agent who serves a user, if it makes a difference.
    pub(crate) fn tell_who_serves(&mut self, replica: &(String, String), number: u32) {
        let Some(serves) = self.serves(replica, number) else { return };
        let Some(of) = self.replicas.get(replica) else { return };
        if let Some(handle) = of.handle(number) {
            of.connection.say(Frame::Serve { handle, serves });
        }
    }

    fn place(&mut self, anchor: IpAddr, id: String, place: Option<Place>) {
        let former = self.interception.places.by_id(&id);
        let users = former.into_iter().chain(place.as_ref().map(|place| (anchor, place.user)));
        let mut numbers: Vec<(IpAddr, u32)> =
            users.filter_map(|(of, user)| self.number_at(of, user?)).collect();
        numbers.dedup();
        let before: Vec<Served<String>> =
            numbers.iter().map(|(of, number)| self.served(*of, *number).owned()).collect();
        self.interception.places.set(anchor, id, place);
        for ((of, number), before) in numbers.into_iter().zip(before) {
            let after = self.served(of, number).owned();
            if before != after && self.is_apart(of, number) {
                self.moved(of, number, &before, &after);
            }
        }
    }

    fn number_at(&self, anchor: IpAddr, user: IpAddr) -> Option<(IpAddr, u32)> {
        Some((anchor, self.originals.get(&anchor)?.tracker.table().by_address(user)?))
    }

    /// A user whose P-GW is apart has moved.
    fn moved(&mut self, anchor: IpAddr, number: u32, before: &Served<String>, after: &Served<String>) {
        let has = |(_, replica): &(&(String, String), &crate::replica::Replica)| {
            replica.original == anchor && replica.has(number)
        };
        let keys: Vec<(String, String)> =
            self.replicas.iter().filter(has).map(|(key, _)| key.clone()).collect();
        // The P-GW hears of the new one before the old one ends.
        for key in keys.iter().filter(|key| *after == Served::By(key.1.clone())) {
            self.tell_who_serves(key, number);
        }
        for key in keys.iter().filter(|key| *before == Served::By(key.1.clone())) {
            if !matches!(after, Served::By(_)) {
                self.go_back(anchor, number);
            }
            let State { originals, replicas, .. } = self;
            if let (Some(source), Some(replica)) = (originals.get(&anchor), replicas.get_mut(key)) {
                replica.end(number);
                replica.make(source, &[number]);
            }
        }
    }

    /// A copy is to end, or has failed: a P-GW that has heard of the clone hears of the first S-GW again.
    pub(crate) fn leave(&mut self, replica: &(String, String), number: u32) {
        let Some(of) = self.replicas.get(replica) else { return };
        let is_there = matches!(of.copies.get(&number), Some(Copy::There(_) | Copy::Failed(_)));
        let anchor = of.original;
        if is_there && self.serves(replica, number) == Some(true) {
            self.go_back(anchor, number);
        }
    }

    /// Has P-GWs send downlink packets to the first S-GW again.
    fn go_back(&mut self, anchor: IpAddr, number: u32) {
        let ways = self.originals.get(&anchor).and_then(|original| original.ways_back(number).flatten());
        for (pgw, mut octets) in ways.into_iter().flatten() {
            let sequence = self.next_sequence();
            let to = S11::head(&octets).and_then(|head| head.to).unwrap_or_default();
            S11::patch(&mut octets, to, sequence);
            let (from, to) = (SocketAddr::new(anchor, PORT), SocketAddr::new(pgw, PORT));
            let outgoing = Outgoing { from, to, octets };
            self.interception.repeat(pgw, sequence, outgoing.clone());
            self.interception.timers.push(Timer::Report(pgw, sequence));
            self.outbox.push(outgoing);
        }
    }

    /// The control plane ends a session. Where its P-GW is apart and has heard of a clone, only the clone can end it there; whether it is
    /// told to.
    pub(crate) fn deleted(
        &mut self,
        anchor: IpAddr,
        number: u32,
        request: &[u8],
        addresses: &[IpAddr],
    ) -> bool {
        let served = self.interception.places.served(anchor, addresses.iter().copied()).owned();
        let is_end = S11::head(request).is_some_and(|head| S11::is_end(head.code));
        let Served::By(target) = served else { return false };
        let its = |(key, replica): &(&(String, String), &mut crate::replica::Replica)| {
            replica.original == anchor && key.1 == target && replica.has(number)
        };
        let Some((_, replica)) = self.replicas.iter_mut().find(its).filter(|_| is_end) else { return false };
        if let Some(handle) = replica.handle(number) {
            replica.connection.say(Frame::Later { handle, octets: request.to_vec() });
        }
        replica.ends_by_itself(number);
        true
    }
}

impl Replicator {
    /// Says where a user's packets go from now on. `id` names the diversion, and `None` ends it.
    pub fn place(&self, original: &str, id: String, place: Option<Place>) {
        let Some(anchor) = self.control_of(original) else { return };
        let mut state = self.state();
        state.place(anchor, id, place);
        self.flush(state);
    }

    /// Says where all users' packets go: the originals' names and the places by the names of diversions.
    pub fn place_all(&self, places: BTreeMap<String, (String, Place)>) {
        let mut state = self.state();
        for (id, (anchor, _)) in state.interception.places.all() {
            if !places.contains_key(&id) {
                state.place(anchor, id, None);
            }
        }
        for (id, (original, place)) in places {
            if let Some(anchor) = self.control_of(&original) {
                state.place(anchor, id, Some(place));
            }
        }
        self.flush(state);
    }
}
