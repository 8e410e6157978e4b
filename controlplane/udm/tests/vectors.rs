//! Authentication vectors from a UDM over real HTTP/2, with a scripted UDR that answers slowly.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nas::aka::{AkaFailure, Milenage, Usim};
use sbi::model::common::{AuthType, Patch, PatchOperation, ResynchronizationInfo};
use sbi::model::nrf::NfType;
use sbi::model::udm::{AuthenticationInfoRequest, Av5GHeAka};
use sbi::model::udr::{AuthenticationSubscription, SequenceNumber};
use sbi::op::{udm as udm_op, udr};
use sbi::{ApiRoot, Client, ClientConfig, ProblemDetails, Router, Server, ServerConfig, serve};
use types::{Key, Plmn, Supi};

const NETWORK: &str = "5G:mnc070.mcc999.3gppnetwork.org";

fn milenage() -> Milenage {
    Milenage::new(&k(), &opc())
}

fn k() -> Key<16> {
    "465B5CE8B199B49FAA5F0A2EE238A6BC".parse().unwrap()
}

fn opc() -> Key<16> {
    "E8ED289DEBA952E4283B54E88E6183CA".parse().unwrap()
}

fn supi(n: u32) -> Supi {
    format!("imsi-999700000000{n:03}").parse().unwrap()
}

/// Sequence numbers by subscriber, and how often each was read and changed.
#[derive(Default)]
struct Udr {
    numbers: Mutex<HashMap<Supi, u64>>,
    advanced: Mutex<HashMap<Supi, usize>>,
    conflicts: Mutex<usize>,
}

fn octets(sqn: u64) -> Key<6> {
    let [_, _, octets @ ..] = sqn.to_be_bytes();
    Key::new(octets)
}

fn number(sqn: u64) -> SequenceNumber {
    SequenceNumber {
        sqn_scheme: None,
        sqn: Some(octets(sqn)),
        last_indexes: BTreeMap::new(),
        ind_length: None,
    }
}

async fn query(
    udr: Arc<Udr>,
    request: udr::QueryAuthSubscriptionRequest,
) -> Result<AuthenticationSubscription, ProblemDetails> {
    net::time::sleep(Duration::from_millis(2)).await;
    let sqn = *udr.numbers.lock().unwrap().entry(request.ue_id).or_insert(64);
    Ok(AuthenticationSubscription {
        authentication_method: AuthType::FiveGAka,
        enc_permanent_key: Some(k()),
        protection_parameter_id: None,
        sequence_number: Some(number(sqn)),
        authentication_management_field: None,
        algorithm_id: None,
        enc_opc_key: Some(opc()),
        enc_topc_key: None,
        supi: None,
    })
}

async fn modify(udr: Arc<Udr>, request: udr::ModifyAuthSubscriptionRequest) -> Result<(), ProblemDetails> {
    net::time::sleep(Duration::from_millis(2)).await;
    let Patch(items) = request.body;
    let value = |op: PatchOperation| -> u64 {
        let item = items.iter().find(|item| item.op == op).unwrap();
        let number: SequenceNumber = serde_json::from_value(item.value.clone().unwrap()).unwrap();
        number.sqn.unwrap().expose().iter().fold(0, |value, octet| value << 8 | u64::from(*octet))
    };
    let mut numbers = udr.numbers.lock().unwrap();
    let stored = numbers.get_mut(&request.ue_id).unwrap();
    if *stored != value(PatchOperation::Test) {
        *udr.conflicts.lock().unwrap() += 1;
        return Err(ProblemDetails::new(409, "CONFLICT"));
    }
    *stored = value(PatchOperation::Replace);
    *udr.advanced.lock().unwrap().entry(request.ue_id).or_default() += 1;
    Ok(())
}

struct World {
    udr: Arc<Udr>,
    root: ApiRoot,
    client: Client,
    _servers: (Server, nf::Running),
}

impl World {
    async fn start(name: &str) -> World {
        let udr = Arc::new(Udr::default());
        let router = Router::new(udr.clone())
            .on::<udr::QueryAuthSubscription>(query)
            .on::<udr::ModifyAuthSubscription>(modify);
        let server = serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap();
        let run_dir = std::env::temp_dir().join(format!("godwit-udm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&run_dir).unwrap();
        let mut env = nf::Env::new(&run_dir, None);
        env.client.peers.insert(NfType::Udr, server.address().into());
        let config = udm::Config { sbi: "127.0.0.1:0".parse().unwrap(), ..udm::Config::default() };
        let running = udm::start(config, Plmn::new("999", "70").unwrap(), env).await.unwrap();
        let root = running.sbi().into();
        World { udr, root, client: Client::new(ClientConfig::default()), _servers: (server, running) }
    }

    async fn vector(
        &self,
        n: u32,
        resynchronization_info: Option<ResynchronizationInfo>,
    ) -> Result<Av5GHeAka, u16> {
        let body = AuthenticationInfoRequest {
            serving_network_name: NETWORK.to_owned(),
            resynchronization_info,
            ausf_instance_id: "6f0b3a1e-2f0a-4d6e-9a53-0c7f4f1b2a3c".parse().unwrap(),
            supported_features: None,
        };
        let request = udm_op::GenerateAuthDataRequest { supi_or_suci: supi(n).to_string(), body };
        match self.client.call::<udm_op::GenerateAuthData>(self.root.clone(), request).await {
            Ok(result) => Ok(result.authentication_vector.unwrap()),
            Err(error) => Err(error.status().unwrap_or(0)),
        }
    }
}

/// The sequence number of a vector, decoded as by a USIM that accepts any number.
fn sqn_of(vector: &Av5GHeAka) -> u64 {
    let mut usim = Usim::new(milenage(), 0);
    assert!(usim.answer(&vector.rand, &vector.autn, NETWORK).is_ok());
    usim.sqn_ms()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_for_one_subscriber_locks_nobody_out() {
    let world = Arc::new(World::start("flood").await);
    let flood: Vec<_> = (0..400)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { world.vector(1, None).await })
        })
        .collect();
    // During the flood, a request for another subscriber and a genuine one for the flooded subscriber.
    let (other, itself) = tokio::join!(world.vector(2, None), world.vector(1, None));
    assert_eq!(sqn_of(&other.unwrap()) >> 5, (64 >> 5) + 1);
    let mut numbers = BTreeSet::from([sqn_of(&itself.unwrap())]);
    for request in flood {
        let vector = request.await.unwrap().expect("no request of the flood fails for another's sake");
        assert!(numbers.insert(sqn_of(&vector)), "a number is used once");
    }
    assert_eq!(*world.udr.conflicts.lock().unwrap(), 0);
    let advanced = world.udr.advanced.lock().unwrap()[&supi(1)];
    assert!(advanced < 200, "{advanced} advances for 401 vectors");
    let stored = world.udr.numbers.lock().unwrap()[&supi(1)];
    assert_eq!(Some(&stored), numbers.last(), "what is stored is the highest that left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resynchronisation_in_the_middle_of_a_flood_is_heeded() {
    let world = Arc::new(World::start("resync").await);
    let mut usim = Usim::new(milenage(), 1 << 20);
    let first = world.vector(1, None).await.unwrap();
    let Err(AkaFailure::Synchronisation { auts }) = usim.answer(&first.rand, &first.autn, NETWORK) else {
        panic!("the USIM's number is far ahead");
    };
    let flood: Vec<_> = (0..100)
        .map(|n| {
            let world = world.clone();
            // Every second request reports a forged number.
            let forged = ResynchronizationInfo { rand: Key::new([7; 16]), auts: Key::new([n; 14]) };
            tokio::spawn(async move { (n, world.vector(1, (n % 2 == 0).then_some(forged)).await) })
        })
        .collect();
    let info = ResynchronizationInfo { rand: first.rand.clone(), auts };
    let vector = world.vector(1, Some(info)).await.unwrap();
    assert!(usim.answer(&vector.rand, &vector.autn, NETWORK).is_ok());
    for request in flood {
        let (n, answer) = request.await.unwrap();
        if n % 2 == 0 {
            assert_eq!(answer.unwrap_err(), 403, "a forged AUTS is refused");
        } else {
            assert!(answer.is_ok(), "and costs nobody else anything");
        }
    }
}
