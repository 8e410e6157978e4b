//! The operations, by the NF that offers them. Each `operation!` declares everything about an
//! operation: path, parameters, content and access. Bindings read it from the [`crate::Operation`] that
//! the macro defines.

pub mod amf;
pub mod ausf;
pub mod nrf;
pub mod pcf;
pub mod smf;
pub mod udm;
pub mod udr;

use crate::{model::nrf::NfType, operation::Service};

/// Declares operations and their request types:
/// `Name(Request) NAME-for-logs: SERVICE METHOD path { path parameters } ? { query parameters } body Body => Response | Error where Access;`
macro_rules! operation {
    ($(
        $(#[$meta:meta])*
        $name:ident($request:ident) $title:literal: $service:ident $method:ident $path:literal
        { $($param:ident: $param_ty:ty = $param_name:literal),* }
        $(? { $($query:ident: $query_ty:ty = $query_name:literal),* $(; $($opt:ident: $opt_ty:ty = $opt_name:literal),*)? })?
        body $body:ty => $response:ty $(| $error:ty)? $(where $access:ident $(($scope:expr))?)?;
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        pub enum $name {}

        const _: () = assert!(
            $crate::param::template_has($path, &[$($param_name),*]),
            "the path parameters must be those of the template, in its order"
        );

        #[doc = concat!("Request of [`", stringify!($name), "`].")]
        #[derive(Debug, Clone, PartialEq)]
        pub struct $request {
            $(#[doc = concat!("Path parameter `", $param_name, "`.")] pub $param: $param_ty,)*
            $($(#[doc = concat!("Query parameter `", $query_name, "`.")] pub $query: $query_ty,)*
            $($(#[doc = concat!("Optional query parameter `", $opt_name, "`.")] pub $opt: Option<$opt_ty>,)*)?)?
            /// Content.
            pub body: $body,
        }

        impl $crate::operation::Operation for $name {
            const SERVICE: $crate::operation::Service = $service;
            const NAME: &'static str = $title;
            const METHOD: $crate::operation::Method = $crate::operation::Method::$method;
            const PATH: &'static str = $path;
            $(const ACCESS: $crate::access::Access = $crate::access::Access::$access $(($scope))?;)?
            type Request = $request;
            type Response = $response;
            type Error = $crate::op::error_type!($($error)?);
        }

        impl $crate::operation::Request for $request {
            type Body = $body;

            fn write_params(&self, _params: &mut $crate::param::ParamWriter) {
                $(_params.path(&self.$param);)*
                $($(_params.query($query_name, &self.$query);)*
                $($(if let Some(value) = &self.$opt {
                    _params.query($opt_name, value);
                })*)?)?
            }

            fn into_body(self) -> $body {
                self.body
            }

            fn read(
                _params: &$crate::param::ParamReader<'_>,
                body: $body,
            ) -> Result<Self, $crate::param::InvalidParam> {
                Ok(Self {
                    $($param: _params.path($param_name)?,)*
                    $($($query: _params.query($query_name)?,)*
                    $($($opt: _params.query_optional($opt_name)?,)*)?)?
                    body,
                })
            }
        }
    )*};
}
pub(crate) use operation;

/// The error type given, or `ProblemDetails`.
macro_rules! error_type {
    () => {
        $crate::problem::ProblemDetails
    };
    ($error:ty) => {
        $error
    };
}
pub(crate) use error_type;

/// Declares callbacks: `Name(body) NAME-for-logs: SERVICE path;` with one path parameter `{id}`.
macro_rules! callback {
    ($($(#[$meta:meta])* $name:ident($body:ty) $title:literal: $service:ident $path:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        pub enum $name {}

        impl $crate::operation::Operation for $name {
            const SERVICE: $crate::operation::Service = $service;
            const NAME: &'static str = $title;
            const METHOD: $crate::operation::Method = $crate::operation::Method::Post;
            const PATH: &'static str = $path;
            type Request = $crate::operation::Notification<$body>;
            type Response = ();
            type Error = $crate::problem::ProblemDetails;
        }

        impl $crate::operation::Callback for $name {
            type Body = $body;
        }
    )*};
}
pub(crate) use callback;

/// Declares services: `NAME = name version full-version [offered by] [=> [consumers]]`.
///
/// The consumers are those that TS 23.501 §7.2 names, as far as we know them; without them, every NF.
macro_rules! service {
    ($(
        $(#[$meta:meta])*
        $const:ident = $name:literal $version:literal $full:literal $($by:ident)? $(=> [$($consumer:ident),*])?;
    )*) => {$(
        $(#[$meta])*
        pub const $const: $crate::operation::Service = $crate::operation::Service {
            name: $name,
            version: $version,
            full_version: $full,
            offered_by: $crate::op::offered_by!($($by)?),
            consumers: &[$($($crate::model::nrf::NfType::$consumer),*)?],
        };
    )*

        /// The services of this module.
        pub(crate) const SERVICES: &[$crate::operation::Service] = &[$($const),*];
    };
}
pub(crate) use service;

/// The NF type given, or none.
macro_rules! offered_by {
    () => {
        None
    };
    ($by:ident) => {
        Some($crate::model::nrf::NfType::$by)
    };
}
pub(crate) use offered_by;

/// Every service, callbacks included: those for which the NRF grants tokens.
pub fn services() -> impl Iterator<Item = &'static Service> {
    let modules = [
        amf::SERVICES,
        ausf::SERVICES,
        nrf::SERVICES,
        pcf::SERVICES,
        smf::SERVICES,
        udm::SERVICES,
        udr::SERVICES,
    ];
    modules.into_iter().flatten()
}

/// Resource-level scopes, with the one NF type that gets them: the one that manages subscribers or decides policies.
pub const RESOURCE_SCOPES: &[(&str, NfType)] = &[
    (udr::SUBSCRIPTION_DATA, NfType::Udm),
    (udr::READ_CREDENTIALS, NfType::Udm),
    (udr::MODIFY_CREDENTIALS, NfType::Udm),
    (udr::POLICY_DATA, NfType::Pcf),
];
