//! AUSF, UDM and UDR over real HTTP/2, with a USIM at one end and a SQLite file at the other (CP-1).

use std::{collections::HashMap, sync::Arc};

use nas::{
    ProtectionScheme, Suci,
    aka::{self, AkaFailure, Milenage, Usim},
    suci,
};
use sbi::{
    CallError, Client, ResourceUri, Target,
    model::{
        ausf::{
            AuthResult, AuthenticationInfo, ConfirmationData, ConfirmationDataResponse, UeAuthenticationCtx,
        },
        common::ResynchronizationInfo,
        nrf::NfType,
    },
    op::{
        ausf::{Authenticate, AuthenticateRequest, Confirm5gAka, Confirm5gAkaRequest, NAUSF_AUTH},
        udr::{QueryAuthSubscription, QueryAuthSubscriptionRequest},
    },
};
use store::{Authentication, KeySource, OnConflict, OperatorCode, Sqlite, Store, Subscriber};
use types::{Imsi, Key, Plmn};

pub const IMSI: &str = "999700000000001";
const HOME_KEY: &str = "c53c22208b61860b06c62e5406a7b330c2b577aa5558981510d128247d38bd1d";

fn k() -> Key<16> {
    "465B5CE8B199B49FAA5F0A2EE238A6BC".parse().unwrap()
}

fn opc() -> Key<16> {
    "E8ED289DEBA952E4283B54E88E6183CA".parse().unwrap()
}

fn plmn() -> Plmn {
    "999-70".parse().unwrap()
}

/// The three network functions, each with its own address, and a client in place of the AMF.
pub struct Home {
    pub client: Client,
    pub store: Arc<dyn Store>,
    running: Vec<nf::Running>,
    _folder: tempfile::TempDir,
}

impl Home {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeySource::File(folder.path().join("store.key"));
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&folder.path().join("godwit.db"), &key).unwrap());
        let authentication = Authentication {
            k: k(),
            operator_code: OperatorCode::Opc(opc()),
            amf: Key::new([0x80, 0]),
            sqn: 0,
        };
        let subscriber = Subscriber::new(IMSI.parse().unwrap(), authentication);
        store.put_subscribers(vec![subscriber], OnConflict::Fail).await.unwrap();

        let free = "127.0.0.1:0".parse().unwrap();
        let env = |peers: &[(NfType, &nf::Running)]| {
            let mut env = nf::Env::new(folder.path(), None);
            let root = |running: &nf::Running| running.sbi().into();
            env.client.peers =
                peers.iter().map(|(kind, nf)| (kind.clone(), root(nf))).collect::<HashMap<_, _>>();
            env
        };
        let udr = udr::start(udr::Config { sbi: free }, store.clone(), env(&[])).await.unwrap();
        let private_key_file = folder.path().join("suci.key");
        net::private_file::create(&private_key_file, HOME_KEY).unwrap();
        let suci_keys = vec![udm::SuciKey { id: 1, profile: udm::Profile::A, private_key_file }];
        let config = udm::Config { sbi: free, suci_keys };
        let udm = udm::start(config, plmn(), env(&[(NfType::Udr, &udr)])).await.unwrap();
        let ausf =
            ausf::start(ausf::Config { sbi: free }, plmn(), env(&[(NfType::Udm, &udm)])).await.unwrap();
        let client = env(&[(NfType::Ausf, &ausf), (NfType::Udm, &udm), (NfType::Udr, &udr)])
            .client(NfType::Amf)
            .unwrap();
        Self { client, store, running: vec![ausf, udm, udr], _folder: folder }
    }

    async fn challenge(
        &self,
        supi_or_suci: &str,
        resynchronization_info: Option<ResynchronizationInfo>,
    ) -> Result<(UeAuthenticationCtx, ResourceUri), CallError> {
        let body = AuthenticationInfo {
            supi_or_suci: supi_or_suci.to_owned(),
            serving_network_name: plmn().serving_network_name(),
            resynchronization_info,
            pei: None,
            supported_features: None,
        };
        let created =
            self.client.call::<Authenticate>(Target::Discover, AuthenticateRequest { body }).await?;
        let uri = ResourceUri::parse(&created.location, &NAUSF_AUTH).unwrap();
        Ok((created.body, uri))
    }

    async fn confirm(
        &self,
        uri: &ResourceUri,
        res_star: Option<Key<16>>,
    ) -> Result<ConfirmationDataResponse, CallError> {
        let body = ConfirmationData { res_star, supported_features: None };
        let request = Confirm5gAkaRequest { auth_ctx_id: uri.id.clone(), body };
        self.client.call::<Confirm5gAka>(uri, request).await
    }

    pub async fn stop(self) {
        for nf in self.running {
            nf.stop().await;
        }
    }
}

fn usim(sqn: u64) -> Usim {
    Usim::new(Milenage::new(&k(), &opc()), sqn)
}

fn concealed(profile: bool) -> Suci {
    let imsi: Imsi = IMSI.parse().unwrap();
    let private = suci::PrivateKey::new(ProtectionScheme::ProfileA, &HOME_KEY.parse().unwrap()).unwrap();
    let public = suci::PublicKey::new(ProtectionScheme::ProfileA, 1, &private.public_key()).unwrap();
    suci::conceal(imsi, 2, "0", profile.then_some(&public)).unwrap()
}

#[tokio::test]
async fn a_usim_proves_itself_and_both_ends_hold_the_same_key() {
    let home = Home::start().await;
    let mut usim = usim(0);
    for suci in [concealed(false), concealed(true)] {
        let (challenge, uri) = home.challenge(&suci.to_string(), None).await.unwrap();
        let av = challenge.five_g_auth_data;
        let name = plmn().serving_network_name();
        let answer = usim.answer(&av.rand, &av.autn, &name).unwrap();
        assert!(aka::accepts_res_star(&av.rand, &av.hxres_star, &answer.res_star));
        let verdict = home.confirm(&uri, Some(answer.res_star.clone())).await.unwrap();
        assert_eq!(verdict.auth_result, AuthResult::Success);
        assert_eq!(verdict.supi, Some(IMSI.parse().unwrap()));
        assert_eq!(verdict.kseaf, Some(aka::kseaf(&answer.kausf, &name).unwrap()));
        let again = home.confirm(&uri, Some(answer.res_star)).await.unwrap_err();
        assert!(again.is("CONTEXT_NOT_FOUND"), "{again}");
    }
    home.stop().await;
}

#[tokio::test]
async fn a_wrong_answer_or_none_gets_no_key() {
    let home = Home::start().await;
    for res_star in [Some(Key::new([7; 16])), None] {
        let (_, uri) = home.challenge(IMSI, None).await.unwrap();
        let verdict = home.confirm(&uri, res_star).await.unwrap();
        assert_eq!((verdict.auth_result, verdict.kseaf), (AuthResult::Failure, None));
    }
    home.stop().await;
}

#[tokio::test]
async fn an_unknown_subscriber_a_forged_suci_and_a_foreign_network_are_refused() {
    let home = Home::start().await;
    let unknown = home.challenge("imsi-999700000000099", None).await.unwrap_err();
    assert_eq!((unknown.status(), unknown.is("USER_NOT_FOUND")), (Some(404), true));
    let mut forged = concealed(true);
    forged.output[40] ^= 1;
    assert!(home.challenge(&forged.to_string(), None).await.unwrap_err().is("INVALID_SCHEME_OUTPUT"));
    let no_key = Suci { key_id: 2, ..concealed(true) };
    let refused = home.challenge(&no_key.to_string(), None).await.unwrap_err();
    assert!(refused.is("INVALID_HN_PUBLIC_KEY_IDENTIFIER"));
    let body = AuthenticationInfo {
        supi_or_suci: IMSI.to_owned(),
        serving_network_name: "5G:mnc001.mcc001.3gppnetwork.org".to_owned(),
        resynchronization_info: None,
        pei: None,
        supported_features: None,
    };
    let foreign = home.client.call::<Authenticate>(Target::Discover, AuthenticateRequest { body }).await;
    assert!(foreign.unwrap_err().is("SERVING_NETWORK_NOT_AUTHORIZED"));
    home.stop().await;
}

#[tokio::test]
async fn resynchronisation_takes_the_number_of_the_usim_but_only_with_its_proof() {
    let home = Home::start().await;
    let mut usim = usim(5000 << 5);
    let name = plmn().serving_network_name();
    let (challenge, _) = home.challenge(IMSI, None).await.unwrap();
    let av = challenge.five_g_auth_data;
    let Err(AkaFailure::Synchronisation { auts }) = usim.answer(&av.rand, &av.autn, &name) else {
        panic!("an old sequence number was accepted");
    };
    let forged = ResynchronizationInfo { rand: av.rand.clone(), auts: Key::new([1; 14]) };
    assert_eq!(home.challenge(IMSI, Some(forged)).await.unwrap_err().status(), Some(403));
    let proof = ResynchronizationInfo { rand: av.rand, auts };
    let (challenge, _) = home.challenge(IMSI, Some(proof)).await.unwrap();
    let av = challenge.five_g_auth_data;
    usim.answer(&av.rand, &av.autn, &name).unwrap();
    home.stop().await;
}

/// Every vector has its own sequence number, also when many are requested at once.
#[tokio::test]
async fn simultaneous_challenges_never_share_a_sequence_number() {
    let home = Home::start().await;
    let challenges = (0..6).map(|_| home.challenge(IMSI, None));
    let mut autns = Vec::new();
    for challenge in futures_join(challenges).await {
        autns.push(challenge.unwrap().0.five_g_auth_data.autn.to_hex());
    }
    autns.sort();
    autns.dedup();
    assert_eq!(autns.len(), 6);
    let query = QueryAuthSubscriptionRequest { ue_id: IMSI.parse().unwrap(), body: () };
    let stored = home.client.call::<QueryAuthSubscription>(Target::Discover, query).await.unwrap();
    assert!(stored.sequence_number.is_some());
    let sqn = home.store.subscriber(IMSI.parse().unwrap()).await.unwrap().unwrap().authentication.sqn;
    assert_eq!(sqn >> 5, 6, "six vectors, six steps of SEQ");
    home.stop().await;
}

/// Polls all futures side by side until all have completed.
async fn futures_join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) {
            return std::task::Poll::Ready(());
        }
        std::task::Poll::Pending
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
