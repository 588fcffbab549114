//! A matcher for many patterns at once: a trie with failure links (Aho and Corasick, 1975).
//!
//! A state is the longest end of the text so far that is the beginning of a pattern. One byte moves it on in constant
//! time on average, whatever the number of patterns, and no byte is ever looked at again.

use std::collections::{BTreeSet, VecDeque};

/// No such node. The root is nobody's child, so its number is free to say so.
const NONE: u32 = 0;

/// A node of the trie. Children are a linked list: most nodes have one.
#[derive(Clone, Debug, Default)]
struct Node {
    byte: u8,
    depth: u32,
    /// The node of the longest end of this node's text that is in the trie too.
    fail: u32,
    /// The length of the longest pattern that ends here; 0 where none does.
    match_len: u32,
    child: u32,
    sibling: u32,
}

/// The patterns, compiled.
#[derive(Clone, Debug)]
pub(super) struct Matcher {
    nodes: Vec<Node>,
    /// The children of the root by their byte, as the root has many and is visited most.
    roots: Box<[u32; 256]>,
}

impl Matcher {
    /// The state before the first byte.
    pub(super) const START: u32 = 0;

    /// Compiles patterns. None of them is empty, and together they are bounded by whoever registers them.
    pub(super) fn new(patterns: &BTreeSet<Vec<u8>>) -> Matcher {
        let mut matcher = Matcher { nodes: vec![Node::default()], roots: Box::new([NONE; 256]) };
        for pattern in patterns {
            matcher.insert(pattern);
        }
        matcher.link();
        matcher
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// The state after one more byte.
    pub(super) fn next(&self, mut state: u32, byte: u8) -> u32 {
        while state != Self::START {
            let child = self.child(state, byte);
            if child != NONE {
                return child;
            }
            state = self.nodes[state as usize].fail;
        }
        self.roots[usize::from(byte)]
    }

    /// The length of the longest pattern that ends with the last byte; 0 where none does.
    pub(super) fn match_len(&self, state: u32) -> u32 {
        self.nodes[state as usize].match_len
    }

    /// How many of the last bytes can still become a pattern together with bytes to come.
    pub(super) fn open_len(&self, mut state: u32) -> u32 {
        // A node without children is a pattern's end and is not extended; its longest end that is in the trie may be.
        while state != Self::START && self.nodes[state as usize].child == NONE {
            state = self.nodes[state as usize].fail;
        }
        self.nodes[state as usize].depth
    }

    /// How many of the last bytes are the beginning of a pattern.
    pub(super) fn depth(&self, state: u32) -> usize {
        self.nodes[state as usize].depth as usize
    }

    fn child(&self, state: u32, byte: u8) -> u32 {
        if state == Self::START {
            return self.roots[usize::from(byte)];
        }
        let mut child = self.nodes[state as usize].child;
        while child != NONE && self.nodes[child as usize].byte != byte {
            child = self.nodes[child as usize].sibling;
        }
        child
    }

    fn insert(&mut self, pattern: &[u8]) {
        let mut at = Self::START;
        for (i, &byte) in pattern.iter().enumerate() {
            let known = self.child(at, byte);
            if known != NONE {
                at = known;
                continue;
            }
            let new = self.nodes.len() as u32;
            let sibling = if at == Self::START {
                self.roots[usize::from(byte)] = new;
                NONE
            } else {
                core::mem::replace(&mut self.nodes[at as usize].child, new)
            };
            self.nodes.push(Node { byte, depth: i as u32 + 1, sibling, ..Node::default() });
            at = new;
        }
        self.nodes[at as usize].match_len = pattern.len() as u32;
    }

    /// Sets the failure links level by level, so that a shorter text's link is known before a longer one needs it.
    fn link(&mut self) {
        let mut queue: VecDeque<u32> = self.roots.iter().copied().filter(|&node| node != NONE).collect();
        while let Some(parent) = queue.pop_front() {
            let mut child = self.nodes[parent as usize].child;
            while child != NONE {
                let fail = self.next(self.nodes[parent as usize].fail, self.nodes[child as usize].byte);
                let shorter = self.nodes[fail as usize].match_len;
                let node = &mut self.nodes[child as usize];
                node.fail = fail;
                node.match_len = node.match_len.max(shorter);
                queue.push_back(child);
                child = node.sibling;
            }
        }
    }
}
