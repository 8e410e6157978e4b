//! Questions for the link-layer address of a user are turned round by the rules that `godwit mec controller` has on N6: what is of the
//! asker in the action set, what is of the user applied.

use crate::common::*;
use openflow::*;
use packet::ethernet;
use std::sync::Arc;

const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

fn arp(operation: u8, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) -> Vec<u8> {
    let begin = [0, 1, 8, 0, 6, 4, 0, operation];
    [&begin[..], &sender.0, &sender.1, &target.0, &target.1].concat()
}

#[test]
fn a_question_is_turned_round_for_a_known_asker() {
    let mut pipeline = pipeline();
    let (router, user) = ([10, 45, 0, 254], UE1.octets());
    let mac = MacAddr(ROUTER_MAC);
    let of_asker = Instructions {
        write_actions: Some(Arc::new([
            set(Oxm::eth_dst(mac)),
            set(Oxm::arp_tha(mac)),
            set(Oxm::arp_tpa(router.into())),
            Action::output(PortNo::IN_PORT),
        ])),
        goto_table: Some(TableId(1)),
        ..Instructions::default()
    };
    let asked = [Oxm::eth_type(0x0806), Oxm::arp_op(1)];
    let by = [&asked[..], &[Oxm::arp_spa(router.into()), Oxm::arp_sha(mac)]].concat();
    let of_user = [&asked[..], &[Oxm::arp_tpa(UE1)]].concat();
    let anchor = MacAddr(GW2_MAC);
    let answer =
        [Oxm::eth_src(anchor), Oxm::arp_op(2), Oxm::arp_sha(anchor), Oxm::arp_spa(UE1)].map(set).to_vec();
    let pass = Instructions { clear_actions: true, goto_table: Some(TableId(2)), ..Instructions::default() };
    install(&mut pipeline, forwarding());
    install(
        &mut pipeline,
        [
            add(0, 1, [], Instructions::goto(TableId(2))),
            add(0, 230, by, of_asker),
            add(1, 190, of_user, Instructions::apply(answer)),
            add(1, 100, [], pass),
        ],
    );
    let question = |sender: [u8; 6], target| {
        let body = arp(1, (sender, router), ([0; 6], target));
        ethernet::build([0xff; 6], sender, None, ethernet::ARP, &body)
    };
    let expected = ethernet::build(
        ROUTER_MAC,
        GW2_MAC,
        None,
        ethernet::ARP,
        &arp(2, (GW2_MAC, user), (ROUTER_MAC, router)),
    );
    assert_eq!(pass_one(&pipeline, &question(ROUTER_MAC, user)), (Some(2), expected));
    // Another user's, and another asker's, go on as they were.
    for (sender, target) in [(ROUTER_MAC, [10, 45, 0, 99]), (ENB_MAC, user)] {
        let frame = question(sender, target);
        assert_eq!(pass_one(&pipeline, &frame), (None, frame), "to the controllers, unchanged");
    }
}

fn pass_one(pipeline: &switch::pipeline::Pipeline, frame: &[u8]) -> (Option<u32>, Vec<u8>) {
    let (mut left, trace) = send(pipeline, 2, frame);
    assert_eq!(left.len(), 1, "{trace:?}");
    left.remove(0)
}
