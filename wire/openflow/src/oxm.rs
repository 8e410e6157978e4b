//! Fields of packets and their matches (§7.2.3): OXM, and what Open vSwitch adds to it.
//!
//! `fields!` is the table of all fields; numbers, widths, masks, pre-requisites and constructors follow from it. A field on
//! the wire is `class (16 bits) · number (7) · has mask (1) · length (8) · [experimenter (32)] · value · [mask]`.
//!
//! Values and masks are `u128`s, the last bit of the field being the lowest, so that a switch compares any field with one
//! operation: a packet's value matches if `(value ^ oxm.value()) & oxm.mask() == 0`.

use std::hash::{BuildHasher as _, Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use foldhash::quality::RandomState;

use crate::codec::{Reader, Wire, align, pad, set_length};
use crate::{Code, EXPERIMENTER_NICIRA, PortNo};

/// Values that a field can have.
pub trait Value: Copy {
    /// The field's bits.
    fn to_bits(self) -> u128;
    /// The value of these bits.
    fn from_bits(bits: u128) -> Self;
}

macro_rules! values {
    ($($ty:ty: $value:ident => $to:expr, $bits:ident => $from:expr;)*) => {$(
        impl Value for $ty {
            fn to_bits(self) -> u128 {
                let $value = self;
                $to
            }

            fn from_bits($bits: u128) -> Self {
                $from
            }
        }
    )*};
}

values! {
    u8: value => value.into(), bits => bits as u8;
    u16: value => value.into(), bits => bits as u16;
    u64: value => value.into(), bits => bits as u64;
    PortNo: value => value.0.into(), bits => PortNo(bits as u32);
    Ipv4Addr: value => value.to_bits().into(), bits => Ipv4Addr::from_bits(bits as u32);
    Ipv6Addr: value => value.to_bits(), bits => Ipv6Addr::from_bits(bits);
    MacAddr: value => value.0.iter().fold(0, |bits, octet| bits << 8 | u128::from(*octet)), bits => {
        let [.., a, b, c, d, e, f] = bits.to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    };
    PacketType: value => u128::from(value.namespace) << 16 | u128::from(value.ns_type), bits => PacketType {
        namespace: (bits >> 16) as u16,
        ns_type: bits as u16,
    };
}

/// A link-layer address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl Wire for MacAddr {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        r.array().map(Self)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// With what a packet begins (OpenFlow 1.5 §7.2.3.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketType {
    /// What `ns_type` means.
    pub namespace: u16,
    /// The type in the namespace.
    pub ns_type: u16,
}

impl PacketType {
    /// An Ethernet header.
    pub const ETHERNET: Self = Self { namespace: 0, ns_type: 0 };
    /// An IPv4 header.
    pub const IPV4: Self = Self { namespace: 1, ns_type: 0x0800 };
    /// An IPv6 header.
    pub const IPV6: Self = Self { namespace: 1, ns_type: 0x86dd };
}

/// A value of a field whose width is not one of octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bits<const WIDTH: u32>(u32);

impl<const WIDTH: u32> Bits<WIDTH> {
    /// `None`: too large for the field.
    pub const fn new(value: u32) -> Option<Self> {
        if value >> WIDTH == 0 { Some(Self(value)) } else { None }
    }

    /// The value.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<const WIDTH: u32> Value for Bits<WIDTH> {
    fn to_bits(self) -> u128 {
        self.0.into()
    }

    fn from_bits(bits: u128) -> Self {
        Self((bits & ((1 << WIDTH) - 1)) as u32)
    }
}

/// What must be matched beside a field (§7.2.3.8, table 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// The field, with any value.
    Present(Field),
    /// The field, with exactly one of these values, and what it needs itself.
    OneOf(Field, &'static [u128]),
}

/// What a field is on the wire, and what may be done with it.
struct Form {
    name: &'static str,
    class: u16,
    number: u8,
    experimenter: Option<u32>,
    bits: u32,
    maskable: bool,
    settable: bool,
    needs: Needs,
}

/// Classes of fields (§7.2.3.3).
mod class {
    /// Open vSwitch's own fields.
    pub const NXM_NX: u16 = 0x0001;
    pub const OPENFLOW_BASIC: u16 = 0x8000;
    pub const EXPERIMENTER: u16 = 0xffff;
}

macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident $make:ident: $ty:ty = $class:ident $number:literal, $bits:literal bits
        $(, $how:ident)* ; needs $needs:expr;)*) => {
        /// A field that can be matched; most can be set, too. In the order in which a match has them, so that each comes behind
        /// what it needs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field { $($(#[$doc])* $field,)* }

        impl Field {
            /// Every field.
            pub const ALL: &'static [Field] = &[$(Field::$field,)*];

            const fn form(self) -> Form {
                match self {
                    $(Self::$field => {
                        #[allow(unused_mut, reason = "not every field has properties")]
                        let mut form = Form { needs: $needs, ..Form::of(stringify!($make), class::$class, $number, $bits) };
                        $(form.$how = true;)*
                        form
                    })*
                }
            }

            /// The field with this number, whoever the experimenter is.
            const fn numbered(class: u16, number: u8) -> Option<Field> {
                match (class, number) {
                    $((class::$class, $number) => Some(Self::$field),)*
                    // The key of a tunnel had a number of Open vSwitch's own before the standard gave it one. Both are in use.
                    (class::NXM_NX, 16) => Some(Self::TunnelId),
                    _ => None,
                }
            }
        }

        impl Oxm {
            $($(#[$doc])*
            pub fn $make(value: $ty) -> Oxm {
                Oxm { field: Field::$field, value: Value::to_bits(value), mask: Field::$field.all_bits() }
            })*
        }

        impl Match {
            $($(#[$doc])* ///
            /// `None`: any value, or some bits of it only.
            pub fn $make(&self) -> Option<$ty> {
                self.get(Field::$field).filter(Oxm::is_exact).map(|oxm| <$ty as Value>::from_bits(oxm.value))
            })*
        }
    };
}

const IP: Needs = Needs::OneOf(Field::EthType, &[0x0800, 0x86dd]);
const IPV4: Needs = Needs::OneOf(Field::EthType, &[0x0800]);
const IPV6: Needs = Needs::OneOf(Field::EthType, &[0x86dd]);
const ARP: Needs = Needs::OneOf(Field::EthType, &[0x0806]);
const TCP: Needs = Needs::OneOf(Field::IpProto, &[6]);
const UDP: Needs = Needs::OneOf(Field::IpProto, &[17]);
const ICMPV4: Needs = Needs::OneOf(Field::IpProto, &[1]);
const ICMPV6: Needs = Needs::OneOf(Field::IpProto, &[58]);

fields! {
    /// The port that the packet came in by.
    InPort in_port: PortNo = OPENFLOW_BASIC 0, 32 bits; needs Needs::Nothing;
    /// The physical port below it.
    InPhyPort in_phy_port: PortNo = OPENFLOW_BASIC 1, 32 bits; needs Needs::Present(Field::InPort);
    /// What tables have written for later ones.
    Metadata metadata: u64 = OPENFLOW_BASIC 2, 64 bits, maskable; needs Needs::Nothing;
    /// With what the packet begins. Of OpenFlow 1.5; Open vSwitch has it in 1.3, too.
    PacketType packet_type: PacketType = OPENFLOW_BASIC 44, 32 bits; needs Needs::Nothing;
    /// The key of the tunnel that the packet came by, or is sent by: with GTP-U the TEID.
    TunnelId tunnel_id: u64 = OPENFLOW_BASIC 38, 64 bits, maskable, settable; needs Needs::Nothing;
    /// Source address of the tunnel (Open vSwitch).
    TunIpv4Src tun_ipv4_src: Ipv4Addr = NXM_NX 31, 32 bits, maskable, settable; needs Needs::Nothing;
    /// Destination address of the tunnel (Open vSwitch).
    TunIpv4Dst tun_ipv4_dst: Ipv4Addr = NXM_NX 32, 32 bits, maskable, settable; needs Needs::Nothing;
    /// Source address of the tunnel (Open vSwitch).
    TunIpv6Src tun_ipv6_src: Ipv6Addr = NXM_NX 109, 128 bits, maskable, settable; needs Needs::Nothing;
    /// Destination address of the tunnel (Open vSwitch).
    TunIpv6Dst tun_ipv6_dst: Ipv6Addr = NXM_NX 110, 128 bits, maskable, settable; needs Needs::Nothing;
    /// First octet of the GTP-U header (Open vSwitch).
    TunGtpuFlags tun_gtpu_flags: u8 = EXPERIMENTER 15, 8 bits, maskable; needs Needs::Nothing;
    /// Message type of the GTP-U header (Open vSwitch).
    TunGtpuMsgtype tun_gtpu_msgtype: u8 = EXPERIMENTER 16, 8 bits, maskable; needs Needs::Nothing;
    /// Destination address of the Ethernet header.
    EthDst eth_dst: MacAddr = OPENFLOW_BASIC 3, 48 bits, maskable, settable; needs Needs::Nothing;
    /// Source address of the Ethernet header.
    EthSrc eth_src: MacAddr = OPENFLOW_BASIC 4, 48 bits, maskable, settable; needs Needs::Nothing;
    /// Type of what is behind Ethernet header and VLAN tags.
    EthType eth_type: u16 = OPENFLOW_BASIC 5, 16 bits; needs Needs::Nothing;
    /// VLAN identifier, and bit 12 for packets with a tag.
    VlanVid vlan_vid: Bits<13> = OPENFLOW_BASIC 6, 13 bits, maskable, settable; needs Needs::Nothing;
    /// Priority of the VLAN tag.
    VlanPcp vlan_pcp: Bits<3> = OPENFLOW_BASIC 7, 3 bits, settable; needs Needs::Present(Field::VlanVid);
    /// The upper six bits of the ToS or traffic class.
    IpDscp ip_dscp: Bits<6> = OPENFLOW_BASIC 8, 6 bits, settable; needs IP;
    /// The lower two bits of the ToS or traffic class.
    IpEcn ip_ecn: Bits<2> = OPENFLOW_BASIC 9, 2 bits, settable; needs IP;
    /// Protocol of IPv4 or IPv6.
    IpProto ip_proto: u8 = OPENFLOW_BASIC 10, 8 bits, settable; needs IP;
    /// Source address.
    Ipv4Src ipv4_src: Ipv4Addr = OPENFLOW_BASIC 11, 32 bits, maskable, settable; needs IPV4;
    /// Destination address.
    Ipv4Dst ipv4_dst: Ipv4Addr = OPENFLOW_BASIC 12, 32 bits, maskable, settable; needs IPV4;
    /// Source address.
    Ipv6Src ipv6_src: Ipv6Addr = OPENFLOW_BASIC 26, 128 bits, maskable, settable; needs IPV6;
    /// Destination address.
    Ipv6Dst ipv6_dst: Ipv6Addr = OPENFLOW_BASIC 27, 128 bits, maskable, settable; needs IPV6;
    /// Flow label.
    Ipv6Flabel ipv6_flabel: Bits<20> = OPENFLOW_BASIC 28, 20 bits, maskable, settable; needs IPV6;
    /// Source port.
    TcpSrc tcp_src: u16 = OPENFLOW_BASIC 13, 16 bits, settable; needs TCP;
    /// Destination port.
    TcpDst tcp_dst: u16 = OPENFLOW_BASIC 14, 16 bits, settable; needs TCP;
    /// Source port.
    UdpSrc udp_src: u16 = OPENFLOW_BASIC 15, 16 bits, settable; needs UDP;
    /// Destination port.
    UdpDst udp_dst: u16 = OPENFLOW_BASIC 16, 16 bits, settable; needs UDP;
    /// Type of an ICMP message.
    Icmpv4Type icmpv4_type: u8 = OPENFLOW_BASIC 19, 8 bits, settable; needs ICMPV4;
    /// Code of an ICMP message.
    Icmpv4Code icmpv4_code: u8 = OPENFLOW_BASIC 20, 8 bits, settable; needs ICMPV4;
    /// Request or reply.
    ArpOp arp_op: u16 = OPENFLOW_BASIC 21, 16 bits, settable; needs ARP;
    /// IPv4 address of the sender.
    ArpSpa arp_spa: Ipv4Addr = OPENFLOW_BASIC 22, 32 bits, maskable, settable; needs ARP;
    /// IPv4 address that is asked for.
    ArpTpa arp_tpa: Ipv4Addr = OPENFLOW_BASIC 23, 32 bits, maskable, settable; needs ARP;
    /// Link-layer address of the sender.
    ArpSha arp_sha: MacAddr = OPENFLOW_BASIC 24, 48 bits, maskable, settable; needs ARP;
    /// Link-layer address that is asked for.
    ArpTha arp_tha: MacAddr = OPENFLOW_BASIC 25, 48 bits, maskable, settable; needs ARP;
    /// Type of an ICMPv6 message.
    Icmpv6Type icmpv6_type: u8 = OPENFLOW_BASIC 29, 8 bits, settable; needs ICMPV6;
    /// Code of an ICMPv6 message.
    Icmpv6Code icmpv6_code: u8 = OPENFLOW_BASIC 30, 8 bits, settable; needs ICMPV6;
    /// The address that neighbour discovery is about.
    Ipv6NdTarget ipv6_nd_target: Ipv6Addr = OPENFLOW_BASIC 31, 128 bits, maskable, settable;
        needs Needs::OneOf(Field::Icmpv6Type, &[135, 136]);
    /// Link-layer address of a solicitation's sender.
    Ipv6NdSll ipv6_nd_sll: MacAddr = OPENFLOW_BASIC 32, 48 bits, settable; needs Needs::OneOf(Field::Icmpv6Type, &[135]);
    /// Link-layer address of an advertisement's target.
    Ipv6NdTll ipv6_nd_tll: MacAddr = OPENFLOW_BASIC 33, 48 bits, settable; needs Needs::OneOf(Field::Icmpv6Type, &[136]);
}

impl Form {
    const fn of(name: &'static str, class: u16, number: u8, bits: u32) -> Form {
        let experimenter = if class == class::EXPERIMENTER { Some(EXPERIMENTER_NICIRA) } else { None };
        Form {
            name,
            class,
            number,
            experimenter,
            bits,
            maskable: false,
            settable: false,
            needs: Needs::Nothing,
        }
    }

    /// Octets of a value.
    const fn octets(&self) -> usize {
        self.bits.div_ceil(8) as usize
    }
}

impl Field {
    /// The name, as controllers and `ovs-ofctl` know it.
    pub fn name(self) -> &'static str {
        self.form().name
    }

    /// The mask of all bits that the field has.
    pub const fn all_bits(self) -> u128 {
        u128::MAX >> (128 - self.form().bits)
    }

    /// Whether some bits of it can be matched.
    pub fn is_maskable(self) -> bool {
        self.form().maskable
    }

    /// Whether a set-field action can have it.
    pub fn is_settable(self) -> bool {
        self.form().settable
    }

    /// The header of the field in lists of table features, without mask.
    pub fn id(self) -> OxmId {
        let form = self.form();
        let experimenter = form.experimenter;
        let length = form.octets() + if experimenter.is_some() { 4 } else { 0 };
        let header = u32::from(form.class) << 16 | u32::from(form.number) << 9 | length as u32;
        OxmId { header, experimenter }
    }
}

/// The header of a field, as lists of table features have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OxmId {
    /// Class, number, whether there is a mask, and length.
    pub header: u32,
    /// Whose field it is, if it is an experimenter's.
    pub experimenter: Option<u32>,
}

impl OxmId {
    /// The field, if we know it.
    pub fn field(self) -> Option<Field> {
        Field::numbered((self.header >> 16) as u16, (self.header >> 9 & 0x7f) as u8)
            .filter(|field| field.form().experimenter == self.experimenter)
    }

    fn has_mask(self) -> bool {
        self.header & 0x100 != 0
    }
}

impl Wire for OxmId {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let header = u32::read(r)?;
        let is_experimenter = header >> 16 == u32::from(class::EXPERIMENTER);
        Ok(Self { header, experimenter: if is_experimenter { Some(u32::read(r)?) } else { None } })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.header.write(out);
        if let Some(experimenter) = self.experimenter {
            experimenter.write(out);
        }
    }
}

/// A field with a value, and the bits of it that count. No bit outside the mask or the field is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Oxm {
    field: Field,
    value: u128,
    mask: u128,
}

impl Oxm {
    /// Of bits that come from elsewhere. The error is the standard's for a field on the wire.
    pub fn new(field: Field, value: u128, mask: u128) -> Result<Oxm, Code> {
        let form = field.form();
        if mask & !field.all_bits() != 0 || (!form.maskable && mask != field.all_bits()) {
            return Err(Code::OFPBMC_BAD_MASK);
        }
        if value & !field.all_bits() != 0 {
            return Err(Code::OFPBMC_BAD_VALUE);
        }
        if value & !mask != 0 {
            return Err(Code::OFPBMC_BAD_WILDCARDS);
        }
        Ok(Oxm { field, value, mask })
    }

    /// The same field, of which only the bits of the mask count. The value loses the others.
    pub fn masked(self, mask: impl Value) -> Result<Oxm, Code> {
        let mask = mask.to_bits();
        Oxm::new(self.field, self.value & mask, mask)
    }

    /// The same address, of which only the first `length` bits count.
    pub fn prefix(self, length: u32) -> Result<Oxm, Code> {
        let host_bits = self.field.form().bits.checked_sub(length).ok_or(Code::OFPBMC_BAD_MASK)?;
        let mask = self.field.all_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0);
        Oxm::new(self.field, self.value & mask, mask)
    }

    /// Which field.
    pub fn field(&self) -> Field {
        self.field
    }

    /// Its bits.
    pub fn value(&self) -> u128 {
        self.value
    }

    /// The bits that count.
    pub fn mask(&self) -> u128 {
        self.mask
    }

    /// Whether all bits count.
    pub fn is_exact(&self) -> bool {
        self.mask == self.field.all_bits()
    }

    /// One field from the wire, or what we do not know. A mask of ones is none.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Result<Oxm, UnknownOxm>, Code> {
        let header = u32::read(r)?;
        let mut body = r.part((header & 0xff) as usize, Code::OFPBMC_BAD_LEN)?;
        let is_experimenter = header >> 16 == u32::from(class::EXPERIMENTER);
        let id =
            OxmId { header, experimenter: if is_experimenter { Some(u32::read(&mut body)?) } else { None } };
        let Some(field) = id.field() else {
            return Ok(Err(UnknownOxm { id, body: body.rest().to_vec() }));
        };
        let octets = field.form().octets();
        let mut bits =
            || body.take(octets).map(|octets| octets.iter().fold(0, |bits, o| bits << 8 | u128::from(*o)));
        let value = bits()?;
        let mask = if id.has_mask() { Some(bits()?) } else { None };
        body.end()?;
        if mask.is_some() && !field.is_maskable() {
            return Err(Code::OFPBMC_BAD_MASK);
        }
        Oxm::new(field, value, mask.unwrap_or(field.all_bits())).map(Ok)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let octets = self.field.form().octets();
        let OxmId { header, experimenter } = self.field.id();
        let mask_bits = if self.is_exact() { 0 } else { 0x100 + octets as u32 };
        OxmId { header: header + mask_bits, experimenter }.write(out);
        out.extend_from_slice(&self.value.to_be_bytes()[16 - octets..]);
        if !self.is_exact() {
            out.extend_from_slice(&self.mask.to_be_bytes()[16 - octets..]);
        }
    }
}

/// A field of another switch that we do not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnknownOxm {
    /// Its header.
    pub id: OxmId,
    /// Value and mask.
    pub body: Vec<u8>,
}

/// Which packets a flow is for: all of the fields must match. Without fields it is for every packet.
///
/// The fields are in the order of [`Field`], so that equal matches are equal values. Clones share them: a rule's match is in many places.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Match {
    /// Of all else, as rules are looked up by their matches again and again. First, so that other matches differ early.
    hash: u64,
    fields: Arc<[Oxm]>,
    unknown: Vec<UnknownOxm>,
}

impl std::fmt::Debug for Match {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Match").field("fields", &self.fields).field("unknown", &self.unknown).finish()
    }
}

impl Hash for Match {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Others cannot know it, so that they cannot choose matches of one hash.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// OFPMT_OXM.
const MATCH_OXM: u16 = 1;
/// Room for the fields of nearly every match.
const USUAL: usize = 8;

impl Match {
    /// Of these fields: each once, and none without what it needs.
    pub fn new(fields: impl IntoIterator<Item = Oxm>) -> Result<Match, Code> {
        let mut all = Vec::with_capacity(USUAL);
        fields.into_iter().try_for_each(|oxm| insert(&mut all, oxm))?;
        let all = Match::of(all, Vec::new());
        all.check()?;
        Ok(all)
    }

    /// The fields.
    pub fn iter(&self) -> impl Iterator<Item = Oxm> + '_ {
        self.fields.iter().copied()
    }

    /// One field.
    pub fn get(&self, field: Field) -> Option<Oxm> {
        let at = self.fields.binary_search_by_key(&field, Oxm::field).ok()?;
        Some(self.fields[at])
    }

    /// What another switch matches, and we do not know.
    pub fn unknown(&self) -> &[UnknownOxm] {
        &self.unknown
    }

    /// Whether every packet of `other` is one of this match, so that a request with this match is for a flow with
    /// `other` (§6.4: not strict). What is unknown must be the same.
    pub fn includes(&self, other: &Match) -> bool {
        let field_includes = |mine: &Oxm| {
            other.get(mine.field).is_some_and(|theirs| {
                theirs.mask & mine.mask == mine.mask && (theirs.value ^ mine.value) & mine.mask == 0
            })
        };
        self.fields.iter().all(field_includes) && self.unknown.iter().all(|oxm| other.unknown.contains(oxm))
    }

    /// Whether packets of this match have the field, so that an action may set it.
    pub fn allows(&self, field: Field) -> bool {
        match field.form().needs {
            Needs::Nothing => true,
            Needs::Present(needed) => self.get(needed).is_some() && self.allows(needed),
            Needs::OneOf(needed, values) => self.exactly(needed, values) && self.allows(needed),
        }
    }

    /// Whether the field has one of these values.
    fn exactly(&self, field: Field, values: &[u128]) -> bool {
        let has = |field, is: &dyn Fn(u128) -> bool| {
            self.get(field).is_some_and(|oxm| oxm.is_exact() && is(oxm.value))
        };
        // A packet without Ethernet header has its type in the packet type.
        has(field, &|value| values.contains(&value))
            || field == Field::EthType
                && has(Field::PacketType, &|value| value >> 16 == 1 && values.contains(&(value & 0xffff)))
    }

    fn of(fields: Vec<Oxm>, unknown: Vec<UnknownOxm>) -> Match {
        if fields.is_empty() && unknown.is_empty() {
            return Match::default();
        }
        let hash = SEED.hash_one((&fields, &unknown));
        Match { hash, fields: fields.into(), unknown }
    }

    fn check(&self) -> Result<(), Code> {
        let all = self.fields.iter().all(|oxm| self.allows(oxm.field));
        if all { Ok(()) } else { Err(Code::OFPBMC_BAD_PREREQ) }
    }
}

/// Puts a field into its place among others.
fn insert(fields: &mut Vec<Oxm>, oxm: Oxm) -> Result<(), Code> {
    // Without a bit that counts it is as if it were not there.
    if oxm.mask == 0 {
        return Ok(());
    }
    match fields.binary_search_by_key(&oxm.field, Oxm::field) {
        Ok(_) => Err(Code::OFPBMC_DUP_FIELD),
        Err(at) => {
            fields.insert(at, oxm);
            Ok(())
        }
    }
}

impl Wire for Match {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let before = r.len();
        let mut header = r.part(4.min(r.len()), Code::OFPBMC_BAD_LEN)?;
        let (kind, length) = (u16::read(&mut header)?, usize::from(u16::read(&mut header)?));
        if kind != MATCH_OXM {
            return Err(Code::OFPBMC_BAD_TYPE);
        }
        let padded = length.next_multiple_of(8);
        if length < 4 || padded > before {
            return Err(Code::OFPBMC_BAD_LEN);
        }
        let mut body = r.part(length - 4, Code::OFPBMC_BAD_LEN)?;
        r.skip(padded - length)?;
        let (mut fields, mut unknown) = (Vec::with_capacity(USUAL), Vec::new());
        while !body.is_empty() {
            match Oxm::read(&mut body)? {
                Ok(oxm) => insert(&mut fields, oxm)?,
                Err(other) if body.lenient => unknown.push(other),
                Err(_) => return Err(Code::OFPBMC_BAD_FIELD),
            }
        }
        let all = Match::of(fields, unknown);
        if !r.lenient {
            all.check()?;
        }
        Ok(all)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        MATCH_OXM.write(out);
        pad(out, 2);
        self.fields.iter().for_each(|oxm| oxm.write(out));
        for oxm in &self.unknown {
            oxm.id.write(out);
            out.extend_from_slice(&oxm.body);
        }
        set_length(out, start + 2, start);
        align(out, start);
    }
}
