//! The machine against the network's end of the signalling bearers.

use ::rrc::bearer::*;
use ::rrc::cell_group::*;
use ::rrc::message::*;
use ::rrc::value::{DrbIdentity, SrbIdentity};
use ::rrc::{CellGroupConfig, DlDcch, RrcTransactionIdentifier, UlDcch};
use bytes::Bytes;
use l2::keys::AsKeys;
use l2::pdcp::{Config, Rx, RxConfig, Security, SrbId, Tx, Verdict};
use l2::security::{CipheringAlgorithm as Cipher, Direction, IntegrityAlgorithm as Integrity};
use types::{Key, PduSessionId, Qfi};

use super::{Action, Failure, Machine};

fn transaction(id: u8) -> RrcTransactionIdentifier {
    RrcTransactionIdentifier::new(id).unwrap()
}

fn k_gnb() -> Key<32> {
    Key::new([7; 32])
}

fn keys() -> AsKeys {
    AsKeys::derive(&k_gnb(), Cipher::Nea2, Integrity::Nia2)
}

fn group(drbs: &[(u8, u8)], released: &[u8]) -> Bytes {
    let bearer = |(drb, lcid): &(u8, u8)| RlcBearerConfig {
        logical_channel_identity: LogicalChannelIdentity::new(*lcid).unwrap(),
        served_radio_bearer: Some(ServedRadioBearer::Drb(DrbIdentity::new(*drb).unwrap())),
        reestablish_rlc: false,
        rlc_config: Some(RlcConfig::UmBiDirectional(UmRlc {
            ul_um_rlc: UlUmRlc { sn_field_length: Some(SnFieldLengthUm::Size12) },
            dl_um_rlc: DlUmRlc {
                sn_field_length: Some(SnFieldLengthUm::Size12),
                t_reassembly: TReassembly::new(50).unwrap(),
            },
        })),
        mac_logical_channel_config: None,
    };
    let config = CellGroupConfig {
        cell_group_id: CellGroupId::new(0).unwrap(),
        rlc_bearer_to_add_mod_list: drbs.iter().map(bearer).collect(),
        rlc_bearer_to_release_list: released
            .iter()
            .map(|id| LogicalChannelIdentity::new(*id).unwrap())
            .collect(),
    };
    config.encode().unwrap()
}

fn srb(id: u8) -> SrbToAddMod {
    let srb_identity = SrbIdentity::new(id).unwrap();
    SrbToAddMod { srb_identity, reestablish_pdcp: false, discard_on_pdcp: false, pdcp_config: None }
}

fn drb(id: u8, session: u8, default: bool) -> DrbToAddMod {
    let size = Some(PdcpSnSize::Len18Bits);
    DrbToAddMod {
        cn_association: Some(CnAssociation::SdapConfig(SdapConfig {
            pdu_session: PduSessionId::new(session).unwrap().into(),
            sdap_header_dl: SdapHeader::Present,
            sdap_header_ul: SdapHeader::Present,
            default_drb: default,
            mapped_qos_flows_to_add: vec![Qfi::new(id).unwrap()],
            mapped_qos_flows_to_release: Vec::new(),
        })),
        drb_identity: DrbIdentity::new(id).unwrap(),
        reestablish_pdcp: false,
        recover_pdcp: false,
        pdcp_config: Some(PdcpConfig {
            drb: Some(PdcpDrb { pdcp_sn_size_ul: size, pdcp_sn_size_dl: size, ..Default::default() }),
            t_reordering: TReordering::new(100),
            ciphering_disabled: false,
        }),
    }
}

fn reconfiguration(drbs: Vec<DrbToAddMod>, released: &[u8], group: Option<Bytes>) -> DlDcch {
    RrcReconfiguration {
        rrc_transaction_identifier: transaction(2),
        radio_bearer_config: Some(RadioBearerConfig {
            drb_to_add_mod_list: drbs,
            drb_to_release_list: released.iter().map(|id| DrbIdentity::new(*id).unwrap()).collect(),
            ..Default::default()
        }),
        secondary_cell_group: None,
        v1530: Some(RrcReconfigurationV1530 {
            master_cell_group: group,
            full_config: false,
            dedicated_nas_message_list: vec![Bytes::from_static(b"accept")],
        }),
    }
    .into()
}

fn command(ciphering_algorithm: CipheringAlgorithm) -> DlDcch {
    SecurityModeCommand {
        rrc_transaction_identifier: transaction(1),
        security_config_smc: SecurityConfigSmc {
            security_algorithm_config: SecurityAlgorithmConfig {
                ciphering_algorithm,
                integrity_prot_algorithm: Some(IntegrityProtAlgorithm::Nia2),
            },
        },
    }
    .into()
}

fn nas(octets: &'static [u8]) -> DlDcch {
    DlInformationTransfer {
        rrc_transaction_identifier: transaction(0),
        dedicated_nas_message: Some(Bytes::from_static(octets)),
    }
    .into()
}

/// The network's SRB1, and the UE.
struct World {
    ue: Machine,
    tx: Tx,
    rx: Rx,
}

impl World {
    /// A UE that has completed the set-up.
    fn new() -> World {
        let setup = RrcSetup {
            rrc_transaction_identifier: transaction(3),
            radio_bearer_config: RadioBearerConfig {
                srb_to_add_mod_list: vec![srb(1)],
                ..Default::default()
            },
            master_cell_group: group(&[], &[]),
        };
        let config = |direction| Config::srb(SrbId::Srb1, direction);
        let rx = RxConfig { t_reordering: None, ..RxConfig::default() };
        let mut world = World {
            ue: Machine::new(&setup).unwrap(),
            tx: Tx::new(config(Direction::Downlink), Security::none()),
            rx: Rx::new(config(Direction::Uplink), Security::none(), rx),
        };
        world.ue.complete_setup(transaction(3), None, Bytes::from_static(b"first"));
        assert!(matches!(world.heard(), UlDcch::RrcSetupComplete(complete)
            if complete.dedicated_nas_message == "first" && complete.rrc_transaction_identifier == transaction(3)));
        world
    }

    /// A UE with AS security.
    fn protected() -> World {
        let mut world = World::new();
        world.tx.set_security(keys().signalling(false));
        world.send(command(CipheringAlgorithm::Nea2));
        assert!(matches!(world.action(), Action::SecurityMode));
        world.ue.activate_security(&k_gnb());
        world.rx.set_security(keys().signalling(false));
        assert!(
            matches!(world.heard(), UlDcch::SecurityModeComplete(m) if m.rrc_transaction_identifier == transaction(1))
        );
        world.tx.set_security(keys().signalling(true));
        world.rx.set_security(keys().signalling(true));
        world
    }

    fn seal(&mut self, message: DlDcch) -> Vec<u8> {
        let message = message.encode().unwrap();
        let mut pdu = vec![0; self.tx.header_len()];
        pdu.extend_from_slice(&message);
        pdu.resize(pdu.len() + self.tx.trailer_len(), 0);
        self.tx.seal(&mut pdu).unwrap();
        pdu
    }

    fn send(&mut self, message: DlDcch) {
        let pdu = self.seal(message);
        self.ue.receive(1, pdu);
    }

    fn action(&mut self) -> Action {
        self.ue.next_action().expect("an action")
    }

    /// The next action, a message of the UE.
    fn heard(&mut self) -> UlDcch {
        match self.action() {
            Action::Send(1, mut pdu) => match self.rx.open(&mut pdu, 0) {
                Verdict::Deliver { sdu, .. } => UlDcch::decode(&pdu[sdu]).unwrap(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn is_given(&mut self, octets: &[u8]) {
        assert!(matches!(self.action(), Action::Nas(nas) if nas == octets));
    }

    /// Sends a reconfiguration that the UE cannot comply with.
    fn is_refused(message: DlDcch) -> &'static str {
        let mut world = World::protected();
        world.send(reconfiguration(vec![drb(1, 5, true)], &[], Some(group(&[(1, 4)], &[]))));
        while world.ue.next_action().is_some() {}
        world.send(message);
        let Action::Failed(Failure::Reconfiguration(why)) = world.action() else { panic!("it complies") };
        assert!(world.ue.next_action().is_none());
        why
    }
}

#[test]
fn nas_passes_in_order_before_and_after_security() {
    let mut world = World::new();
    world.send(nas(b"1"));
    world.is_given(b"1");
    world.tx.set_security(keys().signalling(false));
    world.send(command(CipheringAlgorithm::Nea2));
    assert!(matches!(world.action(), Action::SecurityMode));
    // What both send meanwhile waits for the key; the network ciphers at once.
    world.tx.set_security(keys().signalling(true));
    world.send(nas(b"2"));
    world.ue.send_nas(Bytes::from_static(b"up"));
    assert!(world.ue.next_action().is_none());
    world.ue.activate_security(&k_gnb());
    world.rx.set_security(keys().signalling(false));
    assert!(matches!(world.heard(), UlDcch::SecurityModeComplete(_)));
    world.rx.set_security(keys().signalling(true));
    assert!(
        matches!(world.heard(), UlDcch::UlInformationTransfer(m) if m.dedicated_nas_message.as_deref() == Some(b"up"))
    );
    world.is_given(b"2");
    assert_eq!(world.ue.rejected(), Default::default());
}

#[test]
fn a_command_that_overtakes_waits_for_its_place() {
    let mut world = World::new();
    let first = world.seal(nas(b"1"));
    world.tx.set_security(keys().signalling(false));
    let command = world.seal(command(CipheringAlgorithm::Nea2));
    world.tx.set_security(keys().signalling(true));
    let last = world.seal(nas(b"3"));
    world.ue.receive(1, last);
    world.ue.receive(1, command);
    assert!(world.ue.next_action().is_none(), "the first message is missing");
    world.ue.receive(1, first);
    world.is_given(b"1");
    assert!(matches!(world.action(), Action::SecurityMode));
    world.ue.activate_security(&k_gnb());
    world.rx.set_security(keys().signalling(false));
    assert!(matches!(world.heard(), UlDcch::SecurityModeComplete(_)));
    world.is_given(b"3");
    assert_eq!(world.ue.rejected(), Default::default());
}

#[test]
fn a_command_of_another_key_or_algorithm_fails_without_protection() {
    for (key, algorithm) in
        [(Key::new([8; 32]), CipheringAlgorithm::Nea2), (k_gnb(), CipheringAlgorithm::Nea3)]
    {
        let mut world = World::new();
        world.tx.set_security(keys().signalling(false));
        world.send(command(algorithm));
        assert!(matches!(world.action(), Action::SecurityMode));
        world.ue.activate_security(&key);
        assert!(
            matches!(world.heard(), UlDcch::SecurityModeFailure(m) if m.rrc_transaction_identifier == transaction(1))
        );
        assert_eq!(world.ue.rejected().integrity, 1);
        // There is no key to give any more.
        world.ue.activate_security(&k_gnb());
        assert_eq!(world.ue.rejected().state, 1);
        assert!(world.ue.next_action().is_none());
    }
}

#[test]
fn forged_and_replayed_messages_change_nothing() {
    let mut world = World::protected();
    let good = world.seal(nas(b"1"));
    for at in 0..good.len() {
        let mut forged = good.clone();
        forged[at] ^= 1;
        world.ue.receive(1, forged);
    }
    assert!(world.ue.next_action().is_none());
    assert_eq!(world.ue.rejected().integrity, good.len() as u64);
    world.ue.receive(1, good.clone());
    world.is_given(b"1");
    world.ue.receive(1, good);
    assert_eq!(world.ue.rejected().stale, 1);
    // A command has no place once there are keys.
    world.send(command(CipheringAlgorithm::Nea2));
    world.ue.receive(2, vec![0; 20]);
    assert_eq!(world.ue.rejected().state, 2);
    assert!(world.ue.next_action().is_none());
}

#[test]
fn bearers_come_before_the_answer_and_nas_after_it() {
    let mut world = World::protected();
    let session = PduSessionId::new(5).unwrap();
    world.send(reconfiguration(
        vec![drb(1, 5, true), drb(2, 5, false)],
        &[],
        Some(group(&[(1, 4), (2, 5)], &[])),
    ));
    assert!(
        matches!(world.action(), Action::AddBearer(id, setup) if id == session && setup.lcid == 4 && setup.default)
    );
    assert!(matches!(world.action(), Action::AddBearer(id, setup) if id == session && setup.lcid == 5));
    assert!(matches!(world.action(), Action::SessionsUp(ids) if ids == [session]));
    let complete = world.heard();
    assert!(
        matches!(complete, UlDcch::RrcReconfigurationComplete(m) if m.rrc_transaction_identifier == transaction(2))
    );
    world.is_given(b"accept");
    // Named again, with flows that move: nothing to do but to answer.
    world.send(reconfiguration(vec![drb(1, 5, true)], &[9], None));
    assert!(matches!(world.heard(), UlDcch::RrcReconfigurationComplete(_)));
    world.is_given(b"accept");
    world.send(reconfiguration(Vec::new(), &[1, 2], Some(group(&[], &[4, 5]))));
    assert!(matches!(world.action(), Action::RemoveBearer(4)));
    assert!(matches!(world.action(), Action::RemoveBearer(5)));
    assert!(matches!(world.action(), Action::RemoveSession(id) if id == session));
    assert!(matches!(world.heard(), UlDcch::RrcReconfigurationComplete(_)));
}

#[test]
fn contradictory_configurations_end_the_connection() {
    let refused = World::is_refused;
    let without_rlc = refused(reconfiguration(vec![drb(2, 6, true)], &[], None));
    assert_eq!(without_rlc, "a data bearer without RLC bearer or session");
    let left = refused(reconfiguration(Vec::new(), &[], Some(group(&[], &[4]))));
    assert_eq!(left, "a data bearer that stays without its logical channel");
    let taken = refused(reconfiguration(vec![drb(2, 6, true)], &[], Some(group(&[(2, 4)], &[]))));
    assert_eq!(taken, "a logical channel of two bearers");
    let low = refused(reconfiguration(vec![drb(2, 6, true)], &[], Some(group(&[(2, 3)], &[]))));
    assert_eq!(low, "a data bearer on a logical channel of signalling");
    let defaults = refused(reconfiguration(vec![drb(2, 5, true)], &[], Some(group(&[(2, 5)], &[]))));
    assert_eq!(defaults, "two default bearers of a session");
    let moved = refused(reconfiguration(vec![drb(1, 6, true)], &[], None));
    assert_eq!(moved, "a data bearer that changes its session or headers");
    let twice = refused(reconfiguration(vec![drb(1, 5, true), drb(1, 5, true)], &[], None));
    assert_eq!(twice, "a data bearer that is named twice");
    refused(reconfiguration(Vec::new(), &[], Some(Bytes::from_static(&[0xff]))));
}

#[test]
fn without_security_there_are_no_bearers() {
    let mut world = World::new();
    world.send(reconfiguration(vec![drb(1, 5, true)], &[], Some(group(&[(1, 4)], &[]))));
    assert!(matches!(world.action(), Action::Failed(Failure::Reconfiguration("bearers without security"))));
    world.send(nas(b"late"));
    assert!(world.ue.next_action().is_none());
}

#[test]
fn a_release_ends_the_connection_in_any_state() {
    for mut world in [World::new(), World::protected()] {
        let release = RrcRelease {
            rrc_transaction_identifier: transaction(0),
            deprioritisation_req: None,
            v1540: None,
        };
        world.send(release.into());
        assert!(matches!(world.action(), Action::Released));
        world.send(nas(b"late"));
        world.ue.send_nas(Bytes::from_static(b"late"));
        assert!(world.ue.next_action().is_none());
    }
}
