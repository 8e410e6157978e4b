//! RRC of a UE: a network that has the keys sends what it likes.

use ::rrc::bearer::*;
use ::rrc::cell_group::{CellGroupConfig, CellGroupId};
use ::rrc::message::*;
use ::rrc::value::SrbIdentity;
use ::rrc::{DlDcch, RrcTransactionIdentifier};
use l2::keys::AsKeys;
use l2::pdcp::{Config, Security, SrbId, Tx};
use l2::security::{self, Direction};
use types::Key;
use ue::rrc::{Action, Machine};

/// Messages of one input.
const MESSAGES: usize = 100;

/// A UE after RRCSetup.
fn machine() -> Option<Machine> {
    let srb1 = SrbToAddMod {
        srb_identity: SrbIdentity::new(1)?,
        reestablish_pdcp: false,
        discard_on_pdcp: false,
        pdcp_config: None,
    };
    let group = CellGroupConfig {
        cell_group_id: CellGroupId::new(0)?,
        rlc_bearer_to_add_mod_list: Vec::new(),
        rlc_bearer_to_release_list: Vec::new(),
    };
    let setup = RrcSetup {
        rrc_transaction_identifier: RrcTransactionIdentifier::new(0)?,
        radio_bearer_config: RadioBearerConfig { srb_to_add_mod_list: vec![srb1], ..Default::default() },
        master_cell_group: group.encode().ok()?,
    };
    Machine::new(&setup).ok()
}

fn command() -> Option<Vec<u8>> {
    let command = SecurityModeCommand {
        rrc_transaction_identifier: RrcTransactionIdentifier::new(1)?,
        security_config_smc: SecurityConfigSmc {
            security_algorithm_config: SecurityAlgorithmConfig {
                ciphering_algorithm: CipheringAlgorithm::Nea2,
                integrity_prot_algorithm: Some(IntegrityProtAlgorithm::Nia2),
            },
        },
    };
    DlDcch::from(command).encode().ok().map(Vec::from)
}

fn seal(tx: &mut Tx, message: &[u8]) -> Vec<u8> {
    let header = tx.header_len();
    let mut pdu = vec![0; header + message.len() + tx.trailer_len()];
    pdu[header..header + message.len()].copy_from_slice(message);
    // What is too long stays as it is.
    let _ = tx.seal(&mut pdu);
    pdu
}

/// Executes the actions; whether the connection has ended.
fn act(machine: &mut Machine, ended: bool) -> bool {
    let (mut over, mut added) = (ended, 0);
    while let Some(action) = machine.next_action() {
        assert!(!over, "nothing follows the end: {action:?}");
        match action {
            Action::Released | Action::Failed(_) => over = true,
            Action::AddBearer(_, setup) => {
                assert!((4..=32).contains(&setup.lcid));
                added += 1;
            }
            Action::SessionsUp(sessions) => assert!(!sessions.is_empty() && sessions.len() <= added),
            Action::Send(srb, pdu) => assert!((1..=2).contains(&srb) && !pdu.is_empty()),
            Action::Nas(_) | Action::SecurityMode | Action::RemoveBearer(_) | Action::RemoveSession(_) => {}
        }
    }
    over
}

/// The first octet says whether there is security. Then messages, each behind an octet of its length and one that says what it is.
pub fn run(data: &[u8]) {
    let key = Key::new([7; 32]);
    let keys = AsKeys::derive(&key, security::CipheringAlgorithm::Nea2, security::IntegrityAlgorithm::Nia2);
    let mut machine = machine().expect("a set-up");
    let mut tx = Tx::new(Config::srb(SrbId::Srb1, Direction::Downlink), Security::none());
    let Some((protected, mut rest)) = data.split_first() else { return };
    if protected & 1 == 1 {
        tx.set_security(keys.signalling(false));
        machine.receive(1, seal(&mut tx, &command().expect("a command")));
        machine.activate_security(&key);
        tx.set_security(keys.signalling(true));
    }
    let mut ended = act(&mut machine, false);
    for _ in 0..MESSAGES {
        let Some(([length, kind], more)) = rest.split_first_chunk::<2>() else { break };
        let (octets, more) = more.split_at(more.len().min(usize::from(*length)));
        rest = more;
        match kind & 7 {
            0 => machine.receive(1 + (kind >> 3 & 1), octets.to_vec()),
            1 => machine.send_nas(octets.to_vec().into()),
            2 => machine.activate_security(&key),
            _ => machine.receive(1, seal(&mut tx, octets)),
        }
        ended = act(&mut machine, ended);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let one = |protected: u8, message: &[u8]| [&[protected, message.len() as u8, 7][..], message].concat();
    let messages = crate::rrc::seeds();
    // Each seed of the codec begins with the number of its channel; 3 is DL-DCCH.
    let dl_dcch = messages.iter().filter(|seed| seed.first() == Some(&3) && seed.len() < 256);
    let of_codec = dl_dcch.map(|seed| one(1, seed.get(1..).unwrap_or_default()));
    of_codec.chain(command().map(|command| one(0, &command))).collect()
}
