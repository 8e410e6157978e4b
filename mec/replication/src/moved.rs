//! Users move to clones and back: who serves whom, and what a P-GW that is apart hears of it (TOP-5).
//!
//! Where an S-GW alone is copied, its P-GW sends downlink packets to the S-GW of which it has heard last. It hears of the clone when the
//! user's packets go there ([`Frame::Serve`]), and again of the first S-GW, in that one's name, when they no longer do. A clone that has told a
//! P-GW of itself does not tell it again, so its copy is ended and made anew, when the P-GW has accepted: until then it sends to the clone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use foldhash::HashMap;
use net::time::{self, Duration};
use telemetry::counters::Counter;

use crate::clone::Side as _;
use crate::frame::Frame;
use crate::intercept::{Place, Served, Timer};
use crate::replicator::{Outgoing, Replicator, State};
use crate::s11::clone::S11;

static REFUSED: Counter = Counter::new("replication_ways_back_refused");

const PORT: u16 = 2123;
/// How long a copy stays when another clone serves its user: that one tells the P-GW meanwhile, also if requests are lost. Our gateway asks three times, 3 s
/// each. A P-GW that still sends to a clone without the user is told so, and may end the session.
const HANDOVER: Duration = Duration::from_secs(10);
/// How long a copy stays when its P-GW sends to the first S-GW again: packets that were sent to the clone before are still on their way, in both directions.
const LINGER: Duration = Duration::from_secs(1);

/// A copy: its replica, and the session's number.
pub(crate) type CopyName = ((String, String), u32);

/// A copy that ends when nobody sends to the clone any more.
#[derive(Debug)]
struct Departure {
    /// Which attempt to make it.
    handle: u32,
    /// Another one is made then, else the user is to have none there.
    is_renewed: bool,
    /// Requests that P-GWs have not accepted yet.
    open: BTreeSet<(IpAddr, u32)>,
}

/// Copies that are to end.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    by_copy: HashMap<CopyName, Departure>,
    by_transaction: HashMap<(IpAddr, u32), CopyName>,
}

impl Departures {
    fn insert(&mut self, copy: CopyName, departure: Departure) {
        self.by_transaction.extend(departure.open.iter().map(|of| (*of, copy.clone())));
        self.by_copy.insert(copy, departure);
    }

    fn remove(&mut self, copy: &CopyName) -> Option<Departure> {
        let departure = self.by_copy.remove(copy)?;
        for transaction in &departure.open {
            self.by_transaction.remove(transaction);
        }
        Some(departure)
    }

    /// Whether a copy waits for the answer to a request.
    pub(crate) fn wait_for(&self, pgw: IpAddr, sequence: u32) -> bool {
        self.by_transaction.contains_key(&(pgw, sequence))
    }
}

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

    /// The session of a user whose P-GW may be apart.
    fn number_at(&self, anchor: IpAddr, user: IpAddr) -> Option<(IpAddr, u32)> {
        let tracker = &self.originals.get(&anchor)?.tracker;
        let number = tracker.may_be_apart().then(|| tracker.table().by_address(user))??;
        Some((anchor, number))
    }

    /// A user whose P-GW is apart has moved.
    fn moved(&mut self, anchor: IpAddr, number: u32, before: &Served<String>, after: &Served<String>) {
        let has = |(_, replica): &(&(String, String), &crate::replica::Replica)| {
            replica.original == anchor && replica.has(number)
        };
        let keys: Vec<(String, String)> =
            self.replicas.iter().filter(has).map(|(key, _)| key.clone()).collect();
        for key in keys.iter().filter(|key| *after == Served::By(key.1.clone())) {
            if self.cancel_departure(&(key.clone(), number)) {
                // It has told the P-GW of itself, and would not do so again.
                self.renew(key, number);
            } else {
                self.tell_who_serves(key, number);
            }
        }
        for key in keys.iter().filter(|key| *before == Served::By(key.1.clone())) {
            if matches!(after, Served::By(_)) {
                self.depart_later(key, number);
            } else if !self.depart(key, number, true) {
                self.renew(key, number);
            }
        }
    }

    /// Ends a copy, and makes another one.
    fn renew(&mut self, key: &(String, String), number: u32) {
        let State { originals, replicas, .. } = self;
        if let Some(replica) = replicas.get_mut(key)
            && let Some(source) = originals.get(&replica.original)
        {
            replica.end(number);
            replica.make(source, &[number]);
        }
    }

    /// Tells the P-GW of the first S-GW; the copy ends when it has accepted that. Not so if there is nobody to tell.
    fn depart(&mut self, key: &(String, String), number: u32, is_renewed: bool) -> bool {
        let replica = self.replicas.get(key);
        let Some((anchor, handle)) = replica.and_then(|of| Some((of.original, of.handle(number)?))) else {
            return false;
        };
        let copy = (key.clone(), number);
        self.cancel_departure(&copy);
        let open = self.go_back(anchor, number);
        let is_told = !open.is_empty();
        if is_told {
            self.interception.departures.insert(copy, Departure { handle, is_renewed, open });
        }
        is_told
    }

    /// The same where another clone serves the user: it tells the P-GW, by S5 that is not heard here, so it gets [`HANDOVER`].
    fn depart_later(&mut self, key: &(String, String), number: u32) {
        let Some(handle) = self.replicas.get(key).and_then(|replica| replica.handle(number)) else { return };
        let copy = (key.clone(), number);
        let departure = Departure { handle, is_renewed: true, open: BTreeSet::new() };
        self.interception.departures.insert(copy.clone(), departure);
        self.interception.timers.push(Timer::Departed(copy, handle, HANDOVER));
    }

    /// A copy stays; whether it was to end.
    pub(crate) fn cancel_departure(&mut self, copy: &CopyName) -> bool {
        let Some(departure) = self.interception.departures.remove(copy) else { return false };
        for (pgw, sequence) in departure.open {
            self.interception.answered(pgw, sequence);
        }
        true
    }

    /// A P-GW has answered a request in an S-GW's name.
    pub(crate) fn way_back_answered(&mut self, pgw: IpAddr, sequence: u32, answer: &[u8]) {
        let departures = &mut self.interception.departures;
        let Some(copy) = departures.by_transaction.remove(&(pgw, sequence)) else { return };
        let Some(departure) = departures.by_copy.get_mut(&copy) else { return };
        departure.open.remove(&(pgw, sequence));
        let (is_last, is_renewed, handle) =
            (departure.open.is_empty(), departure.is_renewed, departure.handle);
        let is_accepted = match gtpv2c::Message::decode(answer) {
            Ok((_, gtpv2c::Message::ModifyBearerResponse(answer))) => answer.cause.is_accepted(),
            _ => false,
        };
        if !is_accepted {
            REFUSED.inc();
        }
        if !is_accepted && is_renewed {
            // The P-GW goes on sending to the clone, which has to have the user then.
            self.cancel_departure(&copy);
        } else if is_last {
            self.interception.timers.push(Timer::Departed(copy, handle, LINGER));
        }
    }

    fn departed(&mut self, copy: &CopyName) {
        let Some(departure) = self.interception.departures.remove(copy) else { return };
        let (key, number) = copy;
        let Some(replica) = self.replicas.get_mut(key) else { return };
        if replica.handle(*number) != Some(departure.handle) {
            return;
        }
        if !departure.is_renewed {
            replica.end(*number);
        } else if replica.has(*number) {
            self.renew(key, *number);
        }
    }

    /// A copy is to end. If a P-GW has heard of the clone, it hears of the first S-GW again, and the copy ends by itself when it has;
    /// whether it does.
    pub(crate) fn leave(&mut self, key: &(String, String), number: u32) -> bool {
        let is_there = self.replicas.get(key).is_some_and(|replica| replica.has(number));
        let departure = self.interception.departures.by_copy.get_mut(&(key.clone(), number));
        let is_departing = departure.map(|departure| departure.is_renewed = false).is_some();
        let ends_later = is_departing
            || is_there && self.serves(key, number) == Some(true) && self.depart(key, number, false);
        if ends_later && let Some(replica) = self.replicas.get_mut(key) {
            replica.ends_by_itself(number);
        }
        ends_later
    }

    /// A clone has a user no longer: a P-GW that has heard of it hears of the first S-GW again.
    pub(crate) fn has_failed(&mut self, key: &(String, String), number: u32) {
        let Some(anchor) = self.replicas.get(key).filter(|of| of.has(number)).map(|of| of.original) else {
            return;
        };
        if self.serves(key, number) == Some(true) {
            self.go_back(anchor, number);
        }
    }

    /// Has P-GWs send downlink packets to the first S-GW again; the transactions.
    fn go_back(&mut self, anchor: IpAddr, number: u32) -> BTreeSet<(IpAddr, u32)> {
        let ways = self.originals.get(&anchor).and_then(|original| original.ways_back(number).flatten());
        let mut open = BTreeSet::new();
        for (pgw, mut octets) in ways.into_iter().flatten() {
            let sequence = self.next_sequence();
            let to = S11::head(&octets).and_then(|head| head.to).unwrap_or_default();
            S11::patch(&mut octets, to, sequence);
            let (from, to) = (SocketAddr::new(anchor, PORT), SocketAddr::new(pgw, PORT));
            let outgoing = Outgoing { from, to, octets };
            self.interception.repeat(pgw, sequence, outgoing.clone());
            self.interception.timers.push(Timer::Report(pgw, sequence));
            self.outbox.push(outgoing);
            open.insert((pgw, sequence));
        }
        open
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
        let served = self.interception.places.served(anchor, addresses.iter().copied(), || None).owned();
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
        self.place_some([(original, id, place)]);
    }

    /// The same of many, by the originals' names.
    pub fn place_some<'a>(&self, places: impl IntoIterator<Item = (&'a str, String, Option<Place>)>) {
        let mut state = self.state();
        for (original, id, place) in places {
            if let Some(anchor) = self.control_of(original) {
                state.place(anchor, id, place);
            }
        }
        self.flush(state);
    }

    /// Ends a copy to whose clone nobody sends any more, after this time.
    pub(crate) async fn ends_after(self, copy: CopyName, handle: u32, rest: Duration) {
        time::sleep(rest).await;
        let mut state = self.state();
        let departure = state.interception.departures.by_copy.get(&copy);
        if departure.is_some_and(|of| of.handle == handle && of.open.is_empty()) {
            state.departed(&copy);
        }
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
