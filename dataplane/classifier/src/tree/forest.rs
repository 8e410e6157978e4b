//! A classifier with a few trees and a list, with updates, for any [`Policy`].
//!
//! A build asks the policy to divide the rules into groups and builds one tree per group; small groups become a
//! list, the last root. A look-up searches all roots, the one with the best rule first, and skips nodes without
//! better rules than the match so far.
//!
//! A new rule goes to the tree where it needs the fewest leaves, or to the list when it would need more than
//! [`INSERT_LEAVES`] in every tree. A leaf that becomes too long is built anew in place, with the policy's own
//! choices; a list that has become long is turned into further trees. Nothing is merged until
//! [`optimise`](Classifier::optimise), so many updates make look-ups slower. The nodes that updates may add are
//! bounded by the number of nodes of the last build.

use super::build::{Limits, MAX_DEPTH, Policy, Space, build};
use super::entry::Entry;
use super::node::{Extent, FIELDS, Step, Tree, Walk, for_children};
use crate::ids::{IdMap, map_bytes};
use crate::simd::{Compiled, Cpu, LookUp, Vector};
use crate::{Classifier, InsertError, Key, Matcher, Rule, Verdict};

/// Most trees, without the list.
pub const TREES: usize = 8;
/// At this length, and at every doubling, the list becomes trees.
const LIST_SPLIT: usize = 32;
/// A smaller group does not get a tree: one leaf is faster.
const GROUP_MIN: usize = 16;
/// Most leaves that one inserted rule may be in.
const INSERT_LEAVES: usize = 16;
/// Nodes that updates may add, besides as many as a build has made.
const SPARE_NODES: usize = 4096;
/// [`Stored::root`] of a rule that can never match.
const NOWHERE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Stored {
    entry: Entry,
    /// Index in [`Forest::roots`].
    root: u8,
}

/// Trees built by a policy, and a list.
#[derive(Clone, Debug)]
pub struct Forest<P> {
    policy: P,
    tree: Tree,
    /// Indices of the roots in the node array; the last is the list.
    roots: Vec<u32>,
    /// The roots, the one with the best rule first.
    order: Vec<u32>,
    rules: Vec<Stored>,
    /// Free indices in `rules`.
    free: Vec<u32>,
    ids: IdMap<u32>,
    /// Most nodes that there may be before an `optimise`.
    allowed_nodes: usize,
    walk: Walk,
    look_up: Compiled<Forest<P>>,
}

/// The look-up.
struct Search;

impl<P> LookUp<Forest<P>> for Search {
    #[inline(always)]
    fn look_up<V: Vector>(vector: V, forest: &Forest<P>, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = forest.tree.search(vector, forest.order.iter().copied(), key);
        }
    }
}

impl<P: Policy + Default> Default for Forest<P> {
    fn default() -> Forest<P> {
        Forest::new(P::default())
    }
}

impl<P: Policy> Forest<P> {
    /// A classifier without rules.
    pub fn new(policy: P) -> Forest<P> {
        let mut tree = Tree::default();
        let list = tree.add_root();
        Forest {
            policy,
            tree,
            roots: vec![list],
            order: vec![0],
            rules: Vec::new(),
            free: Vec::new(),
            ids: IdMap::default(),
            allowed_nodes: SPARE_NODES,
            walk: Walk::default(),
            look_up: Compiled::new::<Search>(Cpu::detect()),
        }
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, to be changed; a change affects nodes that are built from now on.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Builds all trees anew.
    fn rebuild(&mut self) {
        let mut entries: Vec<Entry> =
            self.rules_placed().map(|slot| self.rules[slot as usize].entry).collect();
        entries.sort_unstable_by_key(|entry| entry.rank());
        let mut tree = Tree::default();
        tree.pool = std::mem::take(&mut self.tree.pool);
        let list = tree.add_root();
        (self.tree, self.roots) = (tree, vec![list]);
        if entries.len() >= LIST_SPLIT {
            let space = self.space(&entries);
            self.policy.prepare(&space);
            self.grow(&space);
        } else {
            entries.iter().for_each(|entry| self.put_in_list(entry));
        }
        self.allowed_nodes = 2 * self.tree.nodes() + SPARE_NODES;
        self.sort_roots();
    }

    /// Indices of the rules that can match.
    fn rules_placed(&self) -> impl Iterator<Item = u32> {
        self.ids.values().copied().filter(|&slot| self.rules[slot as usize].root != NOWHERE)
    }

    fn space(&self, entries: &[Entry]) -> Space {
        Space::new(
            entries.iter().map(|entry| (*entry, Extent::all(&self.tree.pool.matcher(entry)))).collect(),
        )
    }

    fn list(&self) -> u32 {
        self.roots.last().copied().unwrap_or_default()
    }

    fn put_in_list(&mut self, entry: &Entry) {
        let list = (self.roots.len() - 1) as u8;
        let leaf = self.list();
        self.tree.insert_at(leaf, entry);
        self.set_root(entry.id(), list);
    }

    fn set_root(&mut self, id: u32, root: u8) {
        if let Some(&slot) = self.ids.get(&id) {
            self.rules[slot as usize].root = root;
        }
    }

    /// Builds trees of these rules before the list, and puts small groups into the list. The list must be
    /// empty.
    fn grow(&mut self, space: &Space) {
        let list = self.roots.pop().unwrap_or_default();
        let mut rest: Vec<u32> = Vec::new();
        for rules in self.policy.partition(space, (0..space.len() as u32).collect()) {
            if rules.len() < GROUP_MIN || self.roots.len() >= TREES {
                rest.extend(rules);
                continue;
            }
            let (root, place) = (self.tree.add_root(), self.roots.len() as u8);
            rules.iter().for_each(|&rule| self.set_root(space.entry(rule).id(), place));
            build(&mut self.tree, root, space, space.part(rules), &self.policy, (self.policy.limits(), 0));
            self.roots.push(root);
        }
        rest.sort_unstable();
        self.roots.push(list);
        self.tree.set_leaf(list, rest.iter().map(|&rule| *space.entry(rule)));
        let place = (self.roots.len() - 1) as u8;
        rest.iter().for_each(|&rule| self.set_root(space.entry(rule).id(), place));
    }

    fn sort_roots(&mut self) {
        self.order.clear();
        self.order.extend(&self.roots);
        let tree = &self.tree;
        self.order.sort_unstable_by_key(|&root| tree.node(root).best());
    }

    /// Puts an entry into the tree where it needs the fewest leaves.
    fn place(&mut self, entry: &Entry) {
        let mut extents = self.tree.extents(entry);
        let trees = self.roots.len() - 1;
        // The best tree so far, and the limit under which its leaves were found. The same limit must be used
        // again, as another may lead to other leaves.
        let (mut best, mut fewest, mut limit) = (trees, INSERT_LEAVES + 1, 0);
        let mut walked = trees;
        for at in 0..trees {
            if fewest <= 1 {
                break;
            }
            walked = at;
            if self.walk.insert(&self.tree, self.roots[at], &mut extents, fewest - 1) {
                limit = fewest - 1;
                (best, fewest) = (at, self.walk.leaves.len());
            }
        }
        self.set_root(entry.id(), best as u8);
        if best == trees {
            return self.place_in_list(entry);
        }
        if walked != best {
            self.walk.insert(&self.tree, self.roots[best], &mut extents, limit);
        }
        for &inner in &self.walk.inner {
            self.tree.improve(inner, entry.precedence());
        }
        let mut full = Vec::new();
        for &leaf in &self.walk.leaves {
            let len = self.tree.insert_at(leaf, entry);
            // Only when the leaf's length has doubled: a leaf that cannot be divided must not be tried at every
            // insertion.
            let rooms = (len - 1) / self.policy.leaf_rules();
            if rooms * self.policy.leaf_rules() == len - 1 && rooms.is_power_of_two() {
                full.push(leaf);
            }
        }
        full.into_iter().for_each(|leaf| self.divide(self.roots[best], leaf, &extents));
        self.sort_roots();
    }

    fn place_in_list(&mut self, entry: &Entry) {
        let list = self.list();
        let len = self.tree.insert_at(list, entry);
        if len >= LIST_SPLIT && len.is_power_of_two() && self.roots.len() <= TREES {
            let entries = self.tree.take_leaf(list);
            let space = self.space(&entries);
            if self.roots.len() == 1 {
                self.policy.prepare(&space);
            }
            self.grow(&space);
            self.allowed_nodes = self.allowed_nodes.max(2 * self.tree.nodes());
        }
        self.sort_roots();
    }

    /// Builds a full leaf anew. `extents` are those of a rule in the leaf.
    fn divide(&mut self, root: u32, leaf: u32, extents: &[Extent; FIELDS]) {
        let mut path = Vec::new();
        if self.tree.nodes() > self.allowed_nodes
            || !find(&self.tree, root, leaf, &mut extents.clone(), &mut path)
        {
            return;
        }
        let depth = path.len() as u32;
        if depth + 2 > MAX_DEPTH {
            return;
        }
        let entries = self.tree.take_leaf(leaf);
        let within = |entry: &Entry| {
            let extents = Extent::all(&self.tree.pool.matcher(entry));
            (*entry, follow(&self.tree, &path, extents))
        };
        let space = Space::new(entries.iter().map(within).collect());
        build(&mut self.tree, leaf, &space, space.whole(), &self.policy, (Limits::LOCAL, depth));
    }

    fn forget(&mut self, slot: u32) {
        let Stored { entry, root } = self.rules[slot as usize];
        if root == NOWHERE {
            return;
        }
        let mut extents = self.tree.extents(&entry);
        self.walk.find(&self.tree, self.roots[root as usize], &mut extents, entry.rank());
        for &leaf in &self.walk.leaves {
            let removed = self.tree.remove_at(leaf, entry.rank());
            debug_assert!(removed, "a rule stands in every leaf that it reaches");
        }
    }

    fn store(&mut self, rule: &Rule) -> (u32, bool) {
        let matcher = Matcher::new(&rule.filter);
        let entry = self.tree.pool.entry(&matcher.unwrap_or(Matcher::NEVER), rule.rank(), rule.value);
        let stored = Stored { entry, root: if matcher.is_none() { NOWHERE } else { 0 } };
        let slot = if let Some(slot) = self.free.pop() {
            self.rules[slot as usize] = stored;
            slot
        } else {
            self.rules.push(stored);
            self.rules.len() as u32 - 1
        };
        self.ids.insert(rule.id, slot);
        (slot, matcher.is_some())
    }
}

/// Finds the nodes above a leaf and the child taken at each, following a rule with these extents.
fn find(tree: &Tree, at: u32, leaf: u32, extents: &mut [Extent; FIELDS], path: &mut Vec<(u32, u32)>) -> bool {
    if at == leaf {
        return true;
    }
    let mut missing = true;
    for_children(tree.node(at), extents, &mut |child, extents| {
        path.push((at, child));
        missing = !find(tree, child, leaf, extents, path);
        if missing {
            path.pop();
        }
        missing
    });
    !missing
}

/// The part of a rule's extents that is left at the end of a path that the rule reaches.
fn follow(tree: &Tree, path: &[(u32, u32)], mut extents: [Extent; FIELDS]) -> [Extent; FIELDS] {
    for &(node, taken) in path {
        let mut next = extents;
        for_children(tree.node(node), &mut extents.clone(), &mut |child, extents| {
            if child == taken {
                next = *extents;
            }
            child != taken
        });
        extents = next;
    }
    extents
}

impl<P: Policy> Classifier for Forest<P> {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        self.look_up.call(self, keys, verdicts);
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if self.ids.contains_key(&rule.id) {
            return Err(InsertError::Exists(rule.id));
        }
        let (slot, matches) = self.store(&rule);
        if matches {
            let entry = self.rules[slot as usize].entry;
            self.place(&entry);
        }
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(slot) = self.ids.remove(&id) else { return false };
        self.forget(slot);
        self.tree.pool.release(&self.rules[slot as usize].entry);
        self.free.push(slot);
        true
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let Some(&slot) = self.ids.get(&id) else { return false };
        self.forget(slot);
        let stored = &mut self.rules[slot as usize];
        stored.entry = stored.entry.with_precedence(precedence);
        if stored.root != NOWHERE {
            let entry = stored.entry;
            self.place(&entry);
        }
        true
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        // A few rules go one by one into a large set; otherwise building anew pays.
        if rules.len() < self.len() / 4 {
            return rules.iter().try_for_each(|rule| self.insert(*rule));
        }
        let mut result = Ok(());
        for rule in rules {
            if self.ids.contains_key(&rule.id) {
                result = Err(InsertError::Exists(rule.id));
                break;
            }
            self.store(rule);
        }
        self.rebuild();
        result
    }

    fn optimise(&mut self) {
        self.rebuild();
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Forest<P>>()
            + self.tree.memory_bytes()
            + self.policy.memory_bytes()
            + self.rules.capacity() * size_of::<Stored>()
            + (self.free.capacity() + self.roots.capacity() + self.order.capacity()) * size_of::<u32>()
            + (self.walk.leaves.capacity() + self.walk.inner.capacity()) * size_of::<u32>()
            + map_bytes(&self.ids)
    }

    fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Size and stats of a tree, for tests and statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeStats {
    /// Number of leaves with rules.
    pub leaves: usize,
    /// Number of rules in the longest leaf.
    pub longest_leaf: usize,
    /// Number of rules in all leaves, copies included.
    pub copies: usize,
    /// Greatest number of nodes above a leaf.
    pub depth: usize,
}

impl<P: Policy> Forest<P> {
    /// Statistics of every tree, and of the list as the last.
    pub fn tree_stats(&self) -> Vec<TreeStats> {
        self.roots.iter().map(|&root| self.stats_of(root)).collect()
    }

    fn stats_of(&self, root: u32) -> TreeStats {
        let mut stats = TreeStats::default();
        let mut open = vec![(root, 0)];
        while let Some((at, depth)) = open.pop() {
            let node = self.tree.node(at);
            if let Step::Leaf { len } = node.step() {
                stats.leaves += usize::from(len > 0);
                stats.longest_leaf = stats.longest_leaf.max(len);
                stats.copies += len;
                stats.depth = stats.depth.max(depth);
            }
            open.extend((0..node.step().children() as u32).map(|child| (node.base() + child, depth + 1)));
        }
        stats
    }
}
