//! Rules as applications want them, and the differences to what a switch has.
//!
//! A rule is named by table, priority and match ([`RuleKey`]), as in OpenFlow. Its cookie says whose it is and what it is for: the
//! first octet is the application, the last one the [`Kind`]. So each application finds its own rules in a switch again, and leaves
//! those of others alone.

use foldhash::HashMap;
use openflow::{Field, FlowMod, FlowModCommand, FlowModFlags, FlowStats, Instructions, Match, Oxm, TableId};

/// Who owns a rule: the first octet of its cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum App {
    /// Learns where stations are.
    Forwarding = 1,
    /// Steers users in their tunnels.
    Diverting = 2,
    /// Copies control messages.
    Capture = 3,
}

/// Bits of a cookie that name the application.
pub const APP_MASK: u64 = 0xff << 56;

impl App {
    /// Every application.
    pub const ALL: [App; 3] = [App::Forwarding, App::Diverting, App::Capture];

    /// The cookie of its rules without their kinds.
    pub const fn cookie(self) -> u64 {
        (self as u64) << 56
    }

    /// Whose cookie it is.
    pub fn of_cookie(cookie: u64) -> Option<App> {
        App::ALL.into_iter().find(|app| app.cookie() == cookie & APP_MASK)
    }

    /// Its name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            App::Forwarding => "forwarding",
            App::Diverting => "diverting",
            App::Capture => "capture",
        }
    }

    /// The application of a name.
    pub fn named(name: &str) -> Option<App> {
        App::ALL.into_iter().find(|app| app.name() == name)
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// What a rule is for: the last octet of its cookie. The first ones are those of Table I.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            /// Its name in listings.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The kind in a cookie.
            pub fn of_cookie(cookie: u64) -> Option<Kind> {
                match cookie as u8 { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Packets that the GTP port has decapsulated.
    T0High = 1, "SW-T0-H";
    /// Tunnelled packets of a base station for its anchor: to decapsulation.
    T0Decapsulate = 2, "SW-T0-M1";
    /// Packets that the GTP port has encapsulated again.
    T0Encapsulated = 3, "SW-T0-M2";
    /// Everything else: forwarding.
    T0Low = 4, "SW-T0-L";
    /// A user who is diverted.
    T1High = 5, "SW-T1-H";
    /// All other users.
    T1Low = 6, "SW-T1-L";
    /// Unknown destinations.
    T2Low = 7, "SW-T2-L";
    /// Known destinations.
    T2Medium = 8, "SW-T2-M";
    /// Path messages that Open vSwitch gives back as whole frames.
    T1Path = 9, "path messages";
    /// Answers to the controller's probes.
    Probe = 10, "probe";
    /// A user's packets on SGi or N6, towards the user.
    SgiDown = 11, "SGi down";
    /// A user's packets on SGi or N6, whose address is restored.
    SgiUp = 12, "SGi up";
    /// Questions for a user's link-layer address.
    SgiNeighbour = 13, "SGi neighbour";
    /// Control messages to copy.
    Copy = 14, "copy";
    /// Everything else that passes a switch before the MME or SMF.
    Pass = 15, "pass";
    /// Questions for a user's link-layer address, answered by the switch.
    SgiAnswer = 16, "SGi answer";
    /// Questions of a known asker.
    SgiAsker = 17, "SGi asker";
    /// Questions that are not for a diverted user.
    SgiPass = 18, "SGi pass";
    /// Packets of a user's new path that wait for those of the old one.
    Hold = 19, "hold";
    /// What comes behind the last packet of the old path.
    Token = 20, "token";
    /// Control messages of an anchor some of whose users are at another one: the controller says what becomes of them.
    Intercept = 21, "intercept";
}

/// What names a rule in a switch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleKey {
    /// Its table.
    pub table: TableId,
    /// Its priority.
    pub priority: u16,
    /// Its match.
    pub matching: Match,
}

/// A rule that an application wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What names it.
    pub key: RuleKey,
    /// What it does.
    pub instructions: Instructions,
    /// What it is for.
    pub kind: Kind,
    /// Seconds without packets until the switch removes it; 0: never.
    pub idle_timeout_s: u16,
    /// Seconds until the switch removes it; 0: never.
    pub hard_timeout_s: u16,
}

impl Rule {
    /// A rule that stays.
    pub fn new(kind: Kind, table: u8, priority: u16, matching: Match, instructions: Instructions) -> Rule {
        let key = RuleKey { table: TableId(table), priority, matching };
        Rule { key, instructions, kind, idle_timeout_s: 0, hard_timeout_s: 0 }
    }

    /// The message that installs it, also over a rule of the same key.
    pub(crate) fn add(&self, app: App) -> FlowMod {
        FlowMod {
            cookie: app.cookie() | self.kind as u64,
            idle_timeout_s: self.idle_timeout_s,
            hard_timeout_s: self.hard_timeout_s,
            flags: FlowModFlags::SEND_FLOW_REM,
            ..FlowMod::add(
                self.key.table,
                self.key.priority,
                self.key.matching.clone(),
                self.instructions.clone(),
            )
        }
    }
}

impl RuleKey {
    /// The message that removes the rule if it is this application's.
    pub(crate) fn delete(&self, app: App) -> FlowMod {
        FlowMod {
            cookie: app.cookie(),
            cookie_mask: APP_MASK,
            command: FlowModCommand::DeleteStrict,
            priority: self.priority,
            ..FlowMod::delete(self.table, self.matching.clone())
        }
    }

    /// The key in the form in which rules are compared.
    ///
    /// Open vSwitch reports `tun_gtpu_flags` with the value as its mask.
    pub(crate) fn canonical(&self) -> RuleKey {
        let fields = self.matching.iter().map(|oxm| match oxm.field() {
            Field::TunGtpuFlags => Oxm::tun_gtpu_flags(oxm.value() as u8),
            _ => oxm,
        });
        match Match::new(fields) {
            // What is unknown to us is not ours, so that it may be left as it is.
            Ok(matching) if self.matching.unknown().is_empty() => RuleKey { matching, ..self.clone() },
            _ => self.clone(),
        }
    }
}

/// The rules that an application wants of one switch.
pub(crate) type RuleSet = HashMap<RuleKey, Rule>;

/// What turns the rules of a switch into those that are wanted.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    pub(crate) flow_mods: Vec<FlowMod>,
    pub(crate) report: SyncReport,
}

/// What a comparison with a switch has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SyncReport {
    /// Rules that were missing or different, and were sent.
    pub added: usize,
    /// Rules that were too many, and were removed.
    pub removed: usize,
    /// Rules that were right.
    pub kept: usize,
}

/// Compares what a switch has of an application with what is wanted.
pub(crate) fn difference(app: App, wanted: &RuleSet, installed: &[FlowStats]) -> Difference {
    let mut found: HashMap<RuleKey, &FlowStats> =
        HashMap::with_capacity_and_hasher(installed.len(), <_>::default());
    let mut all = Difference::default();
    for flow in installed.iter().filter(|flow| App::of_cookie(flow.cookie) == Some(app)) {
        let key = RuleKey { table: flow.table_id, priority: flow.priority, matching: flow.matching.clone() };
        found.insert(key.canonical(), flow);
    }
    for rule in wanted.values() {
        let is_right = |flow: &FlowStats| {
            flow.instructions == rule.instructions
                && flow.idle_timeout_s == rule.idle_timeout_s
                && flow.hard_timeout_s == rule.hard_timeout_s
                && flow.cookie == app.cookie() | rule.kind as u64
        };
        match found.remove(&rule.key.canonical()) {
            Some(flow) if is_right(flow) => all.report.kept += 1,
            _ => {
                all.report.added += 1;
                all.flow_mods.push(rule.add(app));
            }
        }
    }
    // Installed first, removed afterwards: where both concern one packet, it always finds a rule.
    for flow in found.into_values() {
        let key = RuleKey { table: flow.table_id, priority: flow.priority, matching: flow.matching.clone() };
        all.report.removed += 1;
        all.flow_mods.push(key.delete(app));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::{Duration, PortNo};

    fn rule(priority: u16, port: u32) -> Rule {
        let to = Instructions::apply([openflow::Action::output(PortNo(port))]);
        Rule::new(Kind::T2Medium, 2, priority, Match::default(), to)
    }

    fn installed(rule: &Rule, cookie: u64) -> FlowStats {
        FlowStats {
            table_id: rule.key.table,
            duration: Duration::default(),
            priority: rule.key.priority,
            idle_timeout_s: rule.idle_timeout_s,
            hard_timeout_s: 0,
            flags: FlowModFlags::SEND_FLOW_REM,
            cookie,
            packet_count: 0,
            byte_count: 0,
            matching: rule.key.matching.clone(),
            instructions: rule.instructions.clone(),
        }
    }

    #[test]
    fn only_differences_are_sent_and_foreign_rules_stay() {
        let app = App::Forwarding;
        let own = app.cookie() | Kind::T2Medium as u64;
        let wanted: RuleSet =
            [rule(1, 1), rule(2, 2), rule(3, 3)].map(|rule| (rule.key.clone(), rule)).into_iter().collect();
        let found = [
            installed(&rule(1, 1), own),
            installed(&rule(2, 9), own),
            installed(&rule(4, 4), own),
            installed(&rule(5, 5), App::Diverting.cookie()),
            installed(&rule(6, 6), 0),
        ];
        let all = difference(app, &wanted, &found);
        assert_eq!(all.report, SyncReport { added: 2, removed: 1, kept: 1 });
        let mut priorities: Vec<_> =
            all.flow_mods.iter().map(|flow_mod| (flow_mod.command as u8, flow_mod.priority)).collect();
        priorities.sort_unstable();
        assert_eq!(priorities, [(0, 2), (0, 3), (4, 4)]);
        assert_eq!(all.flow_mods.last().unwrap().cookie_mask, APP_MASK);
    }

    #[test]
    fn the_mask_that_open_vswitch_reports_is_no_difference() {
        let flags = Oxm::tun_gtpu_flags(0x34);
        let masked =
            Rule { key: RuleKey { matching: Match::new([flags]).unwrap(), ..rule(1, 1).key }, ..rule(1, 1) };
        let mut found = installed(&masked, App::Diverting.cookie() | Kind::T2Medium as u64);
        found.matching = Match::new([flags.masked(0x34_u8).unwrap()]).unwrap();
        let wanted = RuleSet::from_iter([(masked.key.clone(), masked)]);
        assert_eq!(difference(App::Diverting, &wanted, &[found]).report.kept, 1);
    }

    #[test]
    fn cookies_name_application_and_kind() {
        for app in App::ALL {
            assert_eq!(App::of_cookie(app.cookie() | 7), Some(app));
            assert_eq!(App::named(app.name()), Some(app));
        }
        assert_eq!(App::of_cookie(0), None);
        assert_eq!(Kind::of_cookie(5).unwrap().name(), "SW-T1-H");
    }
}
