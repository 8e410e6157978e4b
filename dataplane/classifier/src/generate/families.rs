//! The statistics of the three ClassBench families.
//!
//! ACL: rounded from the published parameter file of seed set acl1 (733 filters). FW and IPC: estimated from
//! published sets that were generated from the seeds fw1 (283 filters) and ipc1 (1702 filters). Tables give
//! weights. Rows under about half a percent are merged into a neighbour, as the difference would not show in a
//! benchmark.

use super::Family;

/// Condition on a port (Taylor and Turner's classes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Port {
    /// Any (WC).
    Any,
    /// Ephemeral, 1024 to 65535 (HI).
    High,
    /// A range of the profile's list (AR).
    Range,
    /// One port of the profile's list (EM).
    Exact,
}
use Port::{Any, Exact, High, Range};

/// A table of alternatives with their weights.
type Table<T> = &'static [(u32, T)];
/// Source and destination prefix length.
type Lengths = (u8, u8);
/// First and last port.
type Ports = (u16, u16);
/// A combination of source and destination port class.
type Classes = (Port, Port);
/// Levels of an address tree, starting at the root. Each row: number of levels, permille of nodes with two
/// children, and by how many percent the lighter child is lighter (Taylor and Turner's "skew").
pub(super) type Levels = &'static [(u8, u32, u32)];

/// The statistics of a family.
pub(super) struct Profile {
    /// Number of filters of the seed set; larger sets have more addresses.
    pub scale: usize,
    /// IP protocols (`None` for any), each with its combinations of source and destination port classes.
    pub protocols: Table<(Option<u8>, Table<Classes>)>,
    /// Prefix lengths of source and destination for combinations of port classes; the last row is for all
    /// others.
    pub lengths: &'static [(&'static [Classes], Table<Lengths>)],
    pub source_ranges: Table<Ports>,
    pub source_ports: Table<u16>,
    pub destination_ranges: Table<Ports>,
    pub destination_ports: Table<u16>,
    /// Shape of the tree of source addresses.
    pub sources: Levels,
    pub destinations: Levels,
    /// Permille of rules whose two addresses share their first bits, and the number of these bits.
    pub correlated: u32,
    pub common_bits: u8,
}

impl Profile {
    pub(super) fn of(family: Family) -> &'static Profile {
        match family {
            Family::Fw => &FW,
            Family::Ipc => &IPC,
            // The two adversarial families have no statistics and never get here.
            Family::Acl | Family::OneTuple | Family::EachItsTuple => &ACL,
        }
    }

    /// The prefix lengths for these port classes.
    pub(super) fn lengths_of(&self, classes: Classes) -> Table<Lengths> {
        let found = self.lengths.iter().find(|(of, _)| of.contains(&classes));
        found.or(self.lengths.last()).map_or(&[(1, (32, 32))], |(_, table)| table)
    }
}

static ACL: Profile = Profile {
    scale: 733,
    protocols: &[
        (85, (None, &[(1, (Any, Any))])),
        (31, (Some(1), &[(1, (Any, Any))])),
        (873, (Some(6), &[(216, (Any, Any)), (131, (Any, Range)), (653, (Any, Exact))])),
        (11, (Some(17), &[(125, (Any, Range)), (875, (Any, Exact))])),
    ],
    lengths: &[
        (
            &[(Any, Any)],
            &[
                (4, (0, 0)),
                (4, (0, 8)),
                (4, (8, 0)),
                (4, (0, 13)),
                (20, (23, 0)),
                (20, (23, 6)),
                (58, (23, 16)),
                (13, (23, 25)),
                (27, (30, 22)),
                (9, (23, 31)),
                (81, (32, 22)),
                (99, (23, 32)),
                (116, (32, 24)),
                (18, (30, 32)),
                (27, (31, 32)),
                (5, (32, 31)),
                (489, (32, 32)),
            ],
        ),
        (&[(Any, Range)], &[(12, (23, 32)), (35, (31, 32)), (953, (32, 32))]),
        (
            &[(Any, Exact)],
            &[
                (5, (23, 28)),
                (14, (30, 22)),
                (7, (31, 22)),
                (2, (23, 31)),
                (42, (32, 22)),
                (28, (23, 32)),
                (12, (32, 30)),
                (26, (31, 32)),
                (17, (32, 31)),
                (847, (32, 32)),
            ],
        ),
    ],
    source_ranges: &[],
    source_ports: &[],
    destination_ranges: &[
        (70, (1300, 1349)),
        (70, (1300, 1350)),
        (82, (1600, 1649)),
        (47, (7500, 7599)),
        (47, (2200, 2210)),
        (35, (1025, 65535)),
        (35, (1700, 1750)),
        (35, (5001, 65535)),
        (35, (32200, 32207)),
        (35, (8000, 8100)),
        (24, (61000, 61009)),
        (24, (61100, 61119)),
        (24, (61200, 61209)),
        (24, (61300, 61309)),
        (24, (61400, 61409)),
        (24, (61500, 61509)),
        (24, (61600, 61609)),
        (24, (61700, 61709)),
        (24, (61800, 61809)),
        (24, (61900, 61909)),
        (24, (62000, 62009)),
        (24, (62100, 62109)),
        (24, (62400, 62409)),
        (24, (62500, 62509)),
        (24, (62600, 62609)),
        (24, (1700, 1720)),
        (24, (1600, 1650)),
        (12, (62200, 62219)),
        (12, (62200, 62239)),
        (12, (1300, 1399)),
    ],
    destination_ports: &[
        (188, 1521),
        (54, 1526),
        (42, 1221),
        (35, 1433),
        (28, 1525),
        (28, 135),
        (28, 14753),
        (24, 1712),
        (24, 1711),
        (24, 1704),
        (24, 1708),
        (21, 5555),
        (21, 1705),
        (21, 6000),
        (21, 20),
        (21, 21),
        (21, 1724),
        (21, 1717),
        (19, 1707),
        (19, 1733),
        (19, 1706),
        (19, 5540),
        (19, 5541),
        (16, 1734),
        (14, 1489),
        (14, 1490),
        (14, 5632),
        (14, 5631),
        (12, 6789),
        (9, 1715),
        (9, 2121),
        (7, 6790),
        (7, 32200),
        (7, 32201),
        (5, 2110),
        (5, 3031),
        (5, 31000),
        (5, 443),
        (5, 80),
        (5, 27000),
        (5, 65500),
        (2, 1650),
        (2, 512),
    ],
    sources: &[
        (1, 1000, 100),
        (5, 0, 0),
        (1, 500, 100),
        (17, 0, 0),
        (1, 500, 49),
        (1, 667, 74),
        (3, 780, 38),
        (1, 750, 36),
        (1, 530, 48),
        (1, 260, 46),
    ],
    destinations: &[(2, 1000, 67), (3, 750, 77), (6, 270, 70), (5, 200, 59), (8, 90, 65), (8, 90, 44)],
    correlated: 58,
    common_bits: 21,
};

static FW: Profile = Profile {
    scale: 283,
    protocols: &[
        (20, (None, &[(1, (Any, Any))])),
        (50, (Some(1), &[(1, (Any, Any))])),
        (55, (Some(47), &[(1, (Any, Any))])),
        (525, (Some(6), &[(780, (Any, Exact)), (165, (Any, Any)), (55, (High, High))])),
        (
            350,
            (
                Some(17),
                &[
                    (435, (Any, Exact)),
                    (260, (Exact, Any)),
                    (85, (Exact, Exact)),
                    (72, (High, Exact)),
                    (43, (Exact, High)),
                    (88, (High, High)),
                    (9, (High, Range)),
                    (8, (Range, High)),
                ],
            ),
        ),
    ],
    lengths: &[
        (
            &[(Any, Exact)],
            &[
                (640, (0, 32)),
                (110, (0, 31)),
                (85, (0, 30)),
                (55, (1, 32)),
                (25, (2, 32)),
                (50, (0, 0)),
                (15, (0, 1)),
                (15, (32, 32)),
                (5, (26, 22)),
            ],
        ),
        (
            &[(Exact, Any)],
            &[(46, (32, 0)), (32, (31, 0)), (6, (32, 2)), (6, (31, 1)), (2, (0, 32)), (8, (0, 0))],
        ),
        (
            &[(Exact, Exact)],
            &[(10, (28, 29)), (30, (32, 0)), (30, (0, 31)), (10, (32, 2)), (10, (31, 0)), (10, (1, 32))],
        ),
        (&[(High, Exact)], &[(30, (32, 32)), (25, (0, 31)), (20, (0, 32)), (15, (1, 32)), (10, (0, 30))]),
        (
            &[(Exact, High)],
            &[(15, (32, 32)), (15, (31, 32)), (15, (32, 31)), (10, (32, 2)), (15, (32, 0)), (30, (30, 0))],
        ),
        (
            &[(High, High)],
            &[
                (15, (32, 32)),
                (15, (32, 31)),
                (20, (32, 22)),
                (15, (32, 20)),
                (10, (31, 21)),
                (15, (0, 31)),
                (10, (0, 30)),
            ],
        ),
        (&[(High, Range), (Range, High)], &[(60, (0, 0)), (20, (0, 1)), (20, (1, 1))]),
        (
            &[(Any, Any)],
            &[
                (5, (32, 32)),
                (10, (31, 32)),
                (5, (32, 30)),
                (8, (29, 32)),
                (8, (28, 31)),
                (6, (32, 28)),
                (10, (32, 0)),
                (10, (31, 0)),
                (6, (30, 0)),
                (9, (28, 0)),
                (5, (26, 0)),
                (4, (24, 0)),
                (4, (23, 0)),
                (9, (21, 0)),
                (8, (12, 0)),
                (3, (0, 0)),
            ],
        ),
    ],
    source_ranges: &[(1, (33434, 33600))],
    source_ports: &[
        (250, 123),
        (200, 53),
        (150, 161),
        (150, 750),
        (60, 69),
        (60, 88),
        (40, 67),
        (30, 162),
        (30, 7648),
        (30, 24032),
    ],
    destination_ranges: &[(1, (33434, 33600))],
    destination_ports: &[
        (130, 22),
        (110, 53),
        (90, 80),
        (90, 25),
        (90, 123),
        (40, 750),
        (40, 2105),
        (35, 443),
        (35, 21),
        (35, 23),
        (30, 110),
        (30, 161),
        (25, 119),
        (25, 179),
        (25, 754),
        (20, 544),
        (20, 7648),
        (20, 69),
        (15, 37),
        (15, 67),
        (15, 88),
        (15, 162),
        (15, 879),
        (10, 871),
        (10, 873),
        (10, 1999),
        (10, 5999),
        (10, 139),
        (10, 24032),
        (5, 13),
        (5, 2401),
        (5, 8080),
    ],
    sources: &[(8, 350, 60), (16, 50, 60), (8, 250, 60)],
    destinations: &[(8, 300, 50), (16, 50, 60), (8, 500, 40)],
    correlated: 450,
    common_bits: 20,
};

static IPC: Profile = Profile {
    scale: 1702,
    protocols: &[
        (360, (None, &[(1, (Any, Any))])),
        (30, (Some(1), &[(1, (Any, Any))])),
        (20, (Some(47), &[(1, (Any, Any))])),
        (
            290,
            (
                Some(6),
                &[
                    (450, (Any, Exact)),
                    (220, (Exact, Any)),
                    (220, (Any, Any)),
                    (60, (Any, Range)),
                    (30, (Range, Any)),
                    (20, (Exact, Exact)),
                ],
            ),
        ),
        (
            300,
            (
                Some(17),
                &[
                    (620, (Any, Exact)),
                    (250, (Exact, Any)),
                    (60, (Any, Any)),
                    (30, (Exact, Exact)),
                    (20, (Any, Range)),
                    (20, (Any, High)),
                ],
            ),
        ),
    ],
    lengths: &[
        (
            &[(Any, Exact), (Any, Range), (Any, High)],
            &[
                (370, (32, 32)),
                (80, (32, 31)),
                (100, (31, 32)),
                (50, (30, 32)),
                (100, (25, 32)),
                (50, (26, 32)),
                (25, (27, 31)),
                (20, (16, 15)),
                (95, (0, 32)),
                (40, (0, 31)),
                (30, (0, 25)),
                (40, (24, 0)),
                (15, (0, 22)),
                (10, (15, 0)),
                (5, (0, 0)),
            ],
        ),
        (
            &[(Exact, Any), (Range, Any)],
            &[
                (6, (32, 32)),
                (6, (31, 32)),
                (6, (32, 28)),
                (12, (32, 27)),
                (16, (32, 26)),
                (20, (32, 25)),
                (12, (31, 26)),
                (6, (32, 24)),
                (4, (32, 0)),
                (6, (0, 32)),
                (6, (0, 31)),
            ],
        ),
        (&[(Exact, Exact)], &[(30, (32, 32)), (30, (31, 32)), (20, (32, 31)), (20, (31, 31))]),
        (
            &[(Any, Any)],
            &[
                (16, (24, 24)),
                (10, (23, 25)),
                (10, (25, 23)),
                (6, (24, 16)),
                (8, (17, 24)),
                (5, (26, 16)),
                (9, (23, 16)),
                (5, (16, 26)),
                (5, (22, 17)),
                (3, (16, 15)),
                (6, (25, 24)),
                (4, (24, 26)),
                (3, (28, 16)),
                (4, (0, 24)),
                (2, (0, 16)),
                (2, (24, 0)),
                (1, (17, 0)),
                (1, (32, 32)),
            ],
        ),
    ],
    source_ranges: &[(29, (20, 23)), (29, (109, 110)), (24, (20, 21)), (15, (1645, 1646)), (3, (5000, 5001))],
    source_ports: &[
        (220, 161),
        (150, 1433),
        (130, 53),
        (130, 80),
        (80, 22),
        (40, 5540),
        (40, 5550),
        (40, 5530),
        (30, 5510),
        (40, 5632),
        (30, 5631),
        (20, 25),
        (20, 443),
        (20, 123),
        (10, 6789),
    ],
    destination_ranges: &[
        (30, (20, 21)),
        (30, (109, 110)),
        (15, (20, 23)),
        (15, (1645, 1646)),
        (10, (1812, 1813)),
    ],
    destination_ports: &[
        (130, 514),
        (140, 80),
        (130, 69),
        (100, 53),
        (70, 9003),
        (60, 25),
        (70, 1433),
        (50, 161),
        (20, 22),
        (20, 137),
        (20, 143),
        (20, 110),
        (20, 119),
        (15, 113),
        (15, 500),
        (15, 1645),
        (15, 1646),
        (15, 162),
        (10, 445),
        (10, 5500),
        (10, 5520),
        (10, 5530),
        (10, 5540),
        (10, 1723),
        (10, 6789),
        (5, 8875),
        (5, 7777),
        (5, 7000),
    ],
    sources: &[(8, 400, 60), (16, 70, 60), (8, 300, 50)],
    destinations: &[(8, 400, 60), (16, 100, 60), (8, 400, 50)],
    correlated: 50,
    common_bits: 16,
};
