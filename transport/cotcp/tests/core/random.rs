//! Arbitrary programs for [`crate::program`] and arbitrary octets for [`crate::flood`], from proptest; the fuzz targets run
//! the same for longer.

use std::time::Instant;

use proptest::prelude::*;

use crate::{flood, program};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_whole_and_once_or_fails(data in prop::collection::vec(any::<u8>(), 0..600)) {
        program::run(Instant::now(), &data);
    }

    #[test]
    fn arbitrary_octets_into_a_server(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        flood::server(Instant::now(), &data);
    }

    #[test]
    fn arbitrary_octets_into_a_client(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        flood::client(Instant::now(), &data);
    }
}

/// The stream cut at every octet of a conversation: each call is answered before the cut or fails at it.
#[test]
fn loss_at_every_octet() {
    use crate::pair::{Pair, body, carry};
    use cotcp::Config;
    use cotcp::core::{ClientEvent, ServerEvent};
    for cut in 0.. {
        let mut pair = Pair::new(Config::default(), Config::default());
        let ids: Vec<_> = [10, 5000, 3, 9000].map(|size| pair.call(body(size))).into();
        let (mut left, mut moved) = (cut, 1);
        while moved > 0 && left > 0 {
            pair.client.fill(pair.now);
            moved = carry(pair.client.output(), pair.server.input(), left);
            left -= moved;
            pair.poll_server();
            for event in std::mem::take(&mut pair.server_events) {
                if let ServerEvent::Request(request) = event {
                    pair.respond(request.id, request.body);
                }
            }
            pair.server.fill(pair.now);
            let back = carry(pair.server.output(), pair.client.input(), left);
            left -= back;
            moved += back;
            pair.poll_client();
        }
        pair.client.end_of_stream();
        pair.server.end_of_stream();
        pair.poll_client();
        pair.poll_server();
        for id in ids {
            let ends = pair.client_events.iter().filter(|event| match event {
                ClientEvent::Answered { id: ended, .. } | ClientEvent::Failed { id: ended, .. } => {
                    *ended == id
                }
                _ => false,
            });
            assert_eq!(ends.count(), 1, "cut at {cut}");
        }
        assert!(pair.client_error.is_some() && pair.server_error.is_some());
        if left > 0 {
            assert!(cut > 28_000, "{cut}");
            break;
        }
    }
}
