//! The Merkle tree under a seal, and proofs that a stream's head is in it.
//!
//! The tree of RFC 6962: a leaf is SHA-256(0x00 ‖ canonical leaf), a node SHA-256(0x01 ‖ left ‖ right), and the
//! left side holds the largest power of two that is smaller than the whole. So no leaf can pass for a node, and
//! no two lists of leaves have one root. Leaves stand in the order of their streams' texts, which no new kind
//! of stream can change.

use crate::canonical;
use crate::digest::Digest;
use crate::stream::StreamId;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The head of a stream at a version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaf {
    /// Which stream.
    pub stream: StreamId,
    /// How many records it has.
    pub ver: u64,
    /// The chain value after the last of them.
    pub head: Digest,
}

impl Leaf {
    /// The hash at the bottom of the tree.
    #[must_use]
    pub fn hash(&self) -> Digest {
        leaf(&canonical::bytes(self))
    }
}

/// The way from a leaf to the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InclusionProof {
    /// Which leaf, from 0.
    pub index: u64,
    /// Of how many.
    pub leaves: u64,
    /// The siblings, from the leaf upwards.
    pub path: Vec<Digest>,
}

fn leaf(bytes: &[u8]) -> Digest {
    Digest::of(&[&[0], bytes])
}

fn node(left: &Digest, right: &Digest) -> Digest {
    Digest::of(&[&[1], &left.0, &right.0])
}

/// Where a tree of `len` leaves is split; `len` is at least 2.
fn split(len: u64) -> u64 {
    1 << (u64::BITS - 1 - (len - 1).leading_zeros())
}

fn subtree(hashes: &[Digest]) -> Digest {
    match hashes {
        [] => Digest::of(&[]),
        [only] => *only,
        // tidy: two or more.
        _ => {
            let (left, right) = hashes.split_at(split(hashes.len() as u64) as usize);
            node(&subtree(left), &subtree(right))
        }
    }
}

/// The root that a path leads to. The tree gets smaller with each call, so there are at most 64.
fn climb(index: u64, leaves: u64, hash: Digest, path: &[Digest]) -> Option<Digest> {
    if leaves < 2 {
        return (index == 0 && leaves == 1 && path.is_empty()).then_some(hash);
    }
    let (sibling, rest) = path.split_last()?;
    let half = split(leaves);
    if index < half {
        Some(node(&climb(index, half, hash, rest)?, sibling))
    } else {
        Some(node(sibling, &climb(index - half, leaves - half, hash, rest)?))
    }
}

/// The leaves in the order of the tree. Of two with one stream the higher version stays.
fn sorted(leaves: &[Leaf]) -> BTreeMap<String, &Leaf> {
    let mut sorted: BTreeMap<String, &Leaf> = BTreeMap::new();
    for leaf in leaves {
        let kept = sorted.entry(leaf.stream.to_string()).or_insert(leaf);
        if leaf.ver > kept.ver {
            *kept = leaf;
        }
    }
    sorted
}

/// The root over these heads. Without any it is the SHA-256 of nothing.
#[must_use]
pub fn root(leaves: &[Leaf]) -> Digest {
    let hashes: Vec<Digest> = sorted(leaves).values().map(|leaf| leaf.hash()).collect();
    subtree(&hashes)
}

/// A tree that gives many proofs: building it costs its leaves, a proof their logarithm.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The streams, in the order of the tree.
    streams: Vec<String>,
    /// The hashes from the leaves upwards; each level pairs those below it, and one that is left over moves up.
    levels: Vec<Vec<Digest>>,
}

impl Tree {
    /// The tree over these heads.
    #[must_use]
    pub fn new(leaves: &[Leaf]) -> Tree {
        let sorted = sorted(leaves);
        let mut level: Vec<Digest> = sorted.values().map(|leaf| leaf.hash()).collect();
        let streams = sorted.into_keys().collect();
        let mut levels = Vec::new();
        while level.len() > 1 {
            let above = level.chunks(2).map(|pair| match pair {
                [left, right] => node(left, right),
                [only] => *only,
                // tidy: chunks of two have one or two.
                _ => Digest::default(),
            });
            let above = above.collect();
            levels.push(core::mem::replace(&mut level, above));
        }
        levels.push(level);
        Tree { streams, levels }
    }

    /// How many leaves it has.
    #[must_use]
    pub fn leaves(&self) -> u64 {
        self.streams.len() as u64
    }

    /// The root. Without leaves it is the SHA-256 of nothing.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.levels.last().and_then(|top| top.first()).copied().unwrap_or_else(|| Digest::of(&[]))
    }

    /// The proof that a stream's head is under the root; `None` where it is not among the leaves.
    #[must_use]
    pub fn proof(&self, stream: &StreamId) -> Option<InclusionProof> {
        let index = self.streams.binary_search(&stream.to_string()).ok()?;
        let mut at = index;
        let mut path = Vec::new();
        for level in &self.levels {
            if level.len() > 1 {
                path.extend(level.get(at ^ 1));
            }
            at /= 2;
        }
        Some(InclusionProof { index: index as u64, leaves: self.leaves(), path })
    }
}

/// The proof that a stream's head is under the root; `None` where it is not among the leaves.
#[must_use]
pub fn proof(leaves: &[Leaf], stream: &StreamId) -> Option<InclusionProof> {
    Tree::new(leaves).proof(stream)
}

/// Whether the leaf is under the root.
#[must_use]
pub fn verify_inclusion(root: &Digest, leaf: &Leaf, proof: &InclusionProof) -> bool {
    climb(proof.index, proof.leaves, leaf.hash(), &proof.path).as_ref() == Some(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;
    use alloc::vec;
    use proptest::prelude::*;

    fn leaves(count: u64) -> Vec<Leaf> {
        let leaf =
            |n: u64| Leaf { stream: StreamId::Run(RunId(n.into())), ver: n + 1, head: Digest([n as u8; 32]) };
        (0..count).map(leaf).collect()
    }

    #[test]
    fn the_tree_is_the_one_of_rfc_6962() {
        // The test vectors of Certificate Transparency.
        let data: [&[u8]; 8] = [
            b"",
            b"\x00",
            b"\x10",
            b"\x20\x21",
            b"\x30\x31",
            b"\x40\x41\x42\x43",
            b"\x50\x51\x52\x53\x54\x55\x56\x57",
            b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
        ];
        let hashes: Vec<Digest> = data.iter().map(|bytes| leaf(bytes)).collect();
        for (count, root) in [
            (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
            (2, "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
            (3, "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
            (8, "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"),
        ] {
            assert_eq!(subtree(&hashes[..count]).to_string(), root, "{count}");
        }
    }

    #[test]
    fn the_order_of_the_leaves_does_not_matter_and_a_doubled_one_does_not_count() {
        let ordered = leaves(7);
        let mut mixed = ordered.clone();
        mixed.reverse();
        mixed.push(ordered[3].clone());
        assert_eq!(root(&mixed), root(&ordered));
        assert_ne!(root(&leaves(6)), root(&leaves(7)));
        assert_eq!(proof(&ordered, &StreamId::System), None);
    }

    #[test]
    fn an_empty_tree_proves_nothing() {
        let leaf = &leaves(1)[0];
        for count in [0, 1] {
            let empty = InclusionProof { index: 0, leaves: count, path: vec![] };
            assert!(!verify_inclusion(&root(&[]), leaf, &empty));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn every_leaf_has_a_proof_and_no_other_leaf_has_it(count in 1..70u64, pick in 0..70u64, bit in 0..8u32) {
            let leaves = leaves(count);
            let (root, mine) = (root(&leaves), &leaves[(pick % count) as usize]);
            let good = proof(&leaves, &mine.stream).unwrap();
            prop_assert_eq!(Tree::new(&leaves).root(), root);
            prop_assert!(verify_inclusion(&root, mine, &good));
            let other = Leaf { ver: mine.ver + 1, ..mine.clone() };
            prop_assert!(!verify_inclusion(&root, &other, &good));
            for at in 0..good.path.len() {
                let mut bad = good.clone();
                bad.path[at].0[7] ^= 1 << bit;
                prop_assert!(!verify_inclusion(&root, mine, &bad));
            }
            let mut short = good.clone();
            if short.path.pop().is_some() {
                prop_assert!(!verify_inclusion(&root, mine, &short));
            }
            let mut long = good.clone();
            long.path.push(root);
            prop_assert!(!verify_inclusion(&root, mine, &long));
            for index in (0..count).filter(|&index| index != good.index) {
                let moved = InclusionProof { index, ..good.clone() };
                prop_assert!(!verify_inclusion(&root, mine, &moved));
            }
        }

        #[test]
        fn no_proof_makes_it_panic(index: u64, leaves: u64, len in 0..80usize) {
            let path = vec![Digest::default(); len];
            let leaf = Leaf { stream: StreamId::System, ver: 1, head: Digest::default() };
            let proof = InclusionProof { index, leaves, path };
            prop_assert!(!verify_inclusion(&Digest::default(), &leaf, &proof));
        }
    }
}
