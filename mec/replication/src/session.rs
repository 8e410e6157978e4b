//! A session as it is worked on: a record with its requests as they are in datagrams.

use crate::record::{Bearer, Kept, Record};
use crate::table::Table;
use crate::template::{self, Misfit, Spot, Template};

/// Finds the octets of a message in which users differ; none of a message that cannot be read.
pub type Spots = fn(&[u8], &mut Vec<Spot>);

/// See [`Record`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named as in `Record`
pub struct Session {
    pub peer: u8,
    pub subject: u64,
    pub control: u64,
    pub anchor: u64,
    pub wide: bool,
    pub idle: bool,
    pub incomplete: bool,
    pub bearers: Vec<Bearer>,
    /// The requests that make it, in order. Their sequence numbers are zero once they were kept.
    pub requests: Vec<Vec<u8>>,
}

impl Session {
    /// A record's session.
    ///
    /// # Errors
    /// The record names templates that are not there.
    pub fn of<'a>(
        record: &Record,
        template: impl Fn(u16) -> Option<&'a Template>,
    ) -> Result<Session, Misfit> {
        let keys = record.keys();
        let again = |kept: &Kept| {
            let template = template(kept.template).ok_or(Misfit)?;
            let mut message = Vec::with_capacity(template.len());
            template.join(&kept.stored, &keys.borrow(), &mut message)?;
            Ok(message)
        };
        let requests = record.messages.iter().map(again).collect::<Result<_, _>>()?;
        let Record { peer, subject, control, anchor, wide, idle, incomplete, ref bearers, .. } = *record;
        Ok(Session {
            peer,
            subject,
            control,
            anchor,
            wide,
            idle,
            incomplete,
            bearers: bearers.clone(),
            requests,
        })
    }

    /// Without its requests.
    fn record(&self) -> Record {
        let Session { peer, subject, control, anchor, wide, idle, incomplete, ref bearers, .. } = *self;
        let (bearers, messages) = (bearers.clone(), Vec::new());
        Record { peer, subject, control, anchor, wide, idle, incomplete, bearers, messages }
    }

    /// The anchor addresses it otherwise from now on; 0: not at all, as it has lost it.
    pub(crate) fn set_anchor(&mut self, anchor: u64, patch: fn(&mut [u8], u64, u32)) {
        self.anchor = anchor;
        // Only the first request has no receiver yet.
        self.requests.iter_mut().skip(1).for_each(|request| patch(request, anchor, 0));
    }

    /// The session of a table's record.
    pub fn load(table: &Table, number: u32) -> Option<Session> {
        Session::of(&table.get(number)?, |number| table.templates().get(number).map(|template| &**template))
            .ok()
    }

    /// Puts it into a table, in the place of record `number` if there is one. Its number.
    ///
    /// # Errors
    /// It has more bearers or requests than there is room for; then nothing is changed.
    pub fn save(&self, table: &mut Table, number: Option<u32>, spots: Spots) -> Result<u32, Misfit> {
        let mut record = self.record();
        let keys = record.keys();
        let mut found = Vec::new();
        for request in &self.requests {
            found.clear();
            spots(request, &mut found);
            let mut stored = Vec::new();
            let template = template::split(request, &found, &keys.borrow(), &mut stored);
            let entered = table.enter_template(template).map(|template| (template, stored)).or_else(|_| {
                let length = u16::try_from(request.len()).map_err(|_| Misfit)?;
                Ok((table.enter_template(Template::whole(length))?, request.clone()))
            });
            match entered {
                Ok((template, stored)) => record.messages.push(Kept { template, stored: stored.into() }),
                Err(misfit) => {
                    record.messages.iter().for_each(|kept| table.leave_template(kept.template));
                    return Err(misfit);
                }
            }
        }
        let before = number.and_then(|number| table.get(number));
        let saved = match number {
            Some(number) => table.replace(number, &record).map(|()| number),
            None => table.insert(&record),
        };
        let unused = if saved.is_ok() { before } else { Some(record) };
        for kept in unused.into_iter().flat_map(|record| record.messages) {
            table.leave_template(kept.template);
        }
        saved
    }
}
