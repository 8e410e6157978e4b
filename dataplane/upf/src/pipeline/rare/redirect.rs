//! Web requests of sessions whose FAR redirects to a URL: answered in the name of their server
//! ([`UrlRedirect`](crate::pipeline::url_redirect::UrlRedirect)).

use pktio::Vector;
use telemetry::DropReason;

use crate::pipeline::context::{Context, Pass, Snapshot, Source};
use crate::pipeline::exits::Exits;
use crate::pipeline::graph::Way;
use crate::pipeline::packets::Matched;
use crate::session::Policy;

/// Answers a packet, which ends here.
#[cold]
pub(in crate::pipeline) fn run(
    context: &Context,
    pass: &mut Pass,
    exits: &mut Exits,
    snapshot: Snapshot<'_>,
    batch: &Vector,
    matched: Matched<'_>,
) {
    context.count_way(Way::Redirect, 1);
    let Exits { injections, scratch, .. } = exits;
    let packet = batch.frames()[matched.at].packet();
    let answer = match snapshot.tables.policy(snapshot.inside, matched.entry.teid) {
        Some(Policy::Redirect(url)) if !pass.source.is_own() => {
            url.answer(packet, context.tables.translations.secret(), scratch)
        }
        _ => None,
    };
    // The interface of the session's data network.
    let network = matched.entry.peer as u8;
    let answered = answer.is_some_and(|length| {
        injections.push(Source::Injected, &scratch[..length], network, pass.input.local)
    });
    pass.drop(matched.at, if answered { DropReason::Redirected } else { DropReason::FarDrop });
}
