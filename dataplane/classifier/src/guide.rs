//! Which backend to choose.
//!
//! All backends give the same verdicts (`tests/suite/conformance`), so the choice is about time and memory only. Take
//! [`auto`](crate::auto) unless you have measured: it changes between two of the others as rules come and go.
//! The rest are here for comparison, for study, and for loads unlike those of Godwit.
//!
//! | name | idea | from | look-up | update | memory | take it when |
//! |---|---|---|---|---|---|---|
//! | [`auto`](crate::auto) | the fastest for the number of rules | | as what it uses | the same, now and then a move | as what it uses | always, unless measured otherwise |
//! | [`list`](crate::list) | rules in order, one by one | TS 29.244 §5.2.1 | n comparisons | a place in an array | least | one to four rules; as the reference |
//! | [`simd`](crate::simd) | sixteen rules at a time | TCAMs; DBTable's leaves | n/16 vector comparisons | one block | near the least | up to some sixty rules, whatever they look like |
//! | [`tss`](crate::tss) | a hash table per combination of masks | Srinivasan, Suri, Varghese, SIGCOMM 1999 | one hash per combination | one table | moderate | updates count most and rules have few combinations of masks |
//! | [`tss_sorted`](crate::tss) | the same, best table first, early end | Pfaff et al., NSDI 2015 | as above, often fewer | one table | moderate | as `tss`, where important rules match most |
//! | [`tuple_merge`](crate::tuple_merge) | combinations that are alike share a table | Daly et al., ToN 2019 | a few hashes and short lists | one table, seldom a split | moderate | many combinations of masks and many updates |
//! | [`partition_sort`](crate::partition_sort) | few partitions, each sorted like search keys | Yingchareonthawornchai et al., ICNP 2016 | a tree descent per partition | the same | moderate | ranges in many fields, steady updates |
//! | [`hyper_cuts`](crate::tree) | a tree that cuts several fields into equal parts | Singh et al., SIGCOMM 2003 | a node per level, a leaf | leaves that the rule reaches | more, as rules are copied | few updates, narrow rules |
//! | [`hyper_split`](crate::tree) | a tree that halves at ends of ranges | Qi et al., INFOCOM 2009 | about log₂ n nodes | as above | less | few updates, little memory |
//! | [`cut_split`](crate::tree) | cut while nothing is copied, then split | Li et al., INFOCOM 2018 | few nodes in one to three trees | as above | little | large stable sets of wide and narrow rules |
//! | [`rl_tree`](crate::rl_tree) | a tree whose cuts a policy has learned | Liang et al. (NeuroCuts), SIGCOMM 2019 | as a tree | as a tree; training apart | by its objective | rule sets that last, and time to train |
//! | [`nuevo_match`](crate::nuevo_match) | a learned index of where a rule lies | Rashelbach et al., SIGCOMM 2020 | a prediction and a comparison per group, and the rest | the rest; training apart | some 80 octets a rule | tens of thousands of rules that seldom change |
//! | [`bit_select`](crate::bit_select) | a few bits tell most rules apart | Woo, INFOCOM 2000; Liao et al. (DBTable), ToN 2024 | usually two cache lines | one row and its lines | moderate | from some sixty rules up |
//!
//! `godwit bench pdr` measures all of them for every size and family; SPECIFICATION.md has the figures that are
//! promised.
//!
//! # How to measure a choice
//! Draw rules like yours with `generate` (feature `generate`), or take your own. Look up in batches of the size
//! in which your packets come. A benchmark with warm caches says little about a million sessions with four
//! rules each: for these see [`session`](crate::session), which is built for many sessions with few rules. A
//! [`cache`](crate::cache) of verdicts pays where few flows are most of the traffic.
//!
//! # Updates while others look up
//! Backends are plain data: changing one needs `&mut`. [`shared`](crate::shared) holds two copies of a backend,
//! so that readers never wait while one writer changes rules. Memory doubles, and every update is done twice.
//!
//! # Rules without effect
//! Every backend accepts a filter that can never match, a filter that repeats another, and a filter behind a
//! wider one. They cost time in most backends. [`audit`](mod@crate::audit) reports them.
