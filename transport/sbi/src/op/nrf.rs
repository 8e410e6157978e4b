//! Operations of NRF (TS 29.510).

use types::{Dnn, Guami, Plmn, SNssai};

use super::{callback, operation, service};
use crate::{
    model::{
        common::{NfInstanceId, Patch},
        nrf::*,
    },
    operation::{Created, Stored},
};

service! {
    /// Nnrf_NFManagement; every NF registers.
    NNRF_NFM = "nnrf-nfm" "v1" "1.2.0" Nrf;
    /// Nnrf_NFDiscovery; every NF discovers.
    NNRF_DISC = "nnrf-disc" "v1" "1.2.0" Nrf;
    /// Callbacks of NRF, served by whoever subscribed.
    NRF_CALLBACK = "nnrf-callback" "v1" "1.0.0" => [Nrf];
    /// Nnrf_AccessToken, whose path `/oauth2/token` has no version.
    NNRF_OAUTH2 = "oauth2" "token" "1.2.0" Nrf;
}

operation! {
    /// Registers an instance or replaces its profile.
    RegisterNf(RegisterNfRequest) "Nnrf_NFManagement_NFRegister":
    NNRF_NFM Put "/nf-instances/{nfInstanceID}" { nf_instance_id: NfInstanceId = "nfInstanceID" }
    body NfProfile => Stored<NfProfile>;

    /// Changes a profile; `replace /nfStatus REGISTERED` is the heartbeat.
    UpdateNf(UpdateNfRequest) "Nnrf_NFManagement_NFUpdate":
    NNRF_NFM Patch "/nf-instances/{nfInstanceID}" { nf_instance_id: NfInstanceId = "nfInstanceID" }
    body Patch => Option<NfProfile>;

    /// Removes an instance.
    DeregisterNf(DeregisterNfRequest) "Nnrf_NFManagement_NFDeregister":
    NNRF_NFM Delete "/nf-instances/{nfInstanceID}" { nf_instance_id: NfInstanceId = "nfInstanceID" } body () => ();

    /// Shows an instance.
    GetNf(GetNfRequest) "Nnrf_NFManagement_NFProfileRetrieval":
    NNRF_NFM Get "/nf-instances/{nfInstanceID}" { nf_instance_id: NfInstanceId = "nfInstanceID" } body () => NfProfile;

    /// Lists instances.
    ListNf(ListNfRequest) "Nnrf_NFManagement_NFListRetrieval":
    NNRF_NFM Get "/nf-instances" {} ? { ; nf_type: NfType = "nf-type", limit: u32 = "limit" } body () => UriList;

    /// Asks for notifications.
    SubscribeNf(SubscribeNfRequest) "Nnrf_NFManagement_NFStatusSubscribe":
    NNRF_NFM Post "/subscriptions" {} body SubscriptionData => Created<SubscriptionData>;

    /// Ends them.
    UnsubscribeNf(UnsubscribeNfRequest) "Nnrf_NFManagement_NFStatusUnsubscribe":
    NNRF_NFM Delete "/subscriptions/{subscriptionID}" { subscription_id: String = "subscriptionID" } body () => ();

    /// Finds instances of a type.
    DiscoverNf(DiscoverNfRequest) "Nnrf_NFDiscovery_Request":
    NNRF_DISC Get "/nf-instances" {}
    ? { target_nf_type: NfType = "target-nf-type", requester_nf_type: NfType = "requester-nf-type";
        service_names: Vec<String> = "service-names", dnn: Dnn = "dnn", snssais: Vec<SNssai> = "snssais",
        target_plmn_list: Vec<Plmn> = "target-plmn-list", guami: Guami = "guami",
        target_nf_instance_id: NfInstanceId = "target-nf-instance-id", limit: u32 = "limit" }
    body () => SearchResult;

    /// Asks for an access token.
    RequestToken(RequestTokenRequest) "Nnrf_AccessToken_Get":
    NNRF_OAUTH2 Post "" {} body AccessTokenReq => AccessTokenRsp | AccessTokenErr where Open;
}

callback! {
    /// NRF says what happened to an instance.
    NfStatusNotify(NotificationData) "Nnrf_NFManagement_NFStatusNotify":
    NRF_CALLBACK "/nf-status/{id}";
}
