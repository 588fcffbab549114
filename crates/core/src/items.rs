//! Items: which item of a `foreach` a step is for, by value.
//!
//! A run that goes on from another takes over what an item gave only where it has the same item. The place in the list says
//! nothing about that: the list is evaluated again, and may be longer, shorter or in another order. So an item is known by
//! its value, and among equal ones by how many of them stand before it. Inside of several lists it is known by all of them.

use crate::canonical;
use crate::digest::Digest;
use crate::id::StepId;
use crate::packed::Packed;
use crate::run::{Inherited, Run, Section};
use crate::runbook::{Pipeline, StepDef};
use crate::step::Step;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

/// The list of an item is not there any more, so nobody can say which item it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

/// What a step is for, by its own index and the place of the group around it: none outside of every `foreach`.
///
/// # Errors
/// [`Unknown`].
pub(crate) fn of(run: &Run, item: Option<u32>, parent: Option<u32>) -> Result<Option<Digest>, Unknown> {
    nested(run, item, parent, |_, list, index| one(list, index))
}

/// The items of the lists that were looked at so far, by the place of their group: for many steps of one run.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<u32, Vec<Digest>>);

impl Known {
    /// The same as [`of`].
    ///
    /// # Errors
    /// [`Unknown`].
    pub(crate) fn of(&mut self, run: &Run, step: &Step) -> Result<Option<Digest>, Unknown> {
        nested(run, step.item, step.parent, |place, list, index| {
            self.0.entry(place).or_insert_with(|| all(list)).get(index).copied()
        })
    }
}

/// Walks outwards, and puts what each list says together.
fn nested(
    run: &Run,
    mut item: Option<u32>,
    mut parent: Option<u32>,
    mut look: impl FnMut(u32, &Packed, usize) -> Option<Digest>,
) -> Result<Option<Digest>, Unknown> {
    let mut found: Option<Digest> = None;
    while let Some(place) = parent {
        let group = run.at(place).ok_or(Unknown)?;
        if let Some(index) = item {
            let list = group.input.as_ref().ok_or(Unknown)?;
            let own = look(place, list, index as usize).ok_or(Unknown)?;
            found = Some(found.map_or(own, |inner| Digest::of(&[&own.0, &inner.0])));
        }
        (item, parent) = (group.item, group.parent);
    }
    Ok(found)
}

/// One item of a list: its value, and the number of equal ones before it.
fn one(list: &Packed, index: usize) -> Option<Digest> {
    let Value::Array(list) = list.get() else { return None };
    let own = list.get(index)?;
    let before = list.iter().take(index).filter(|other| *other == own).count();
    Some(known_by(Digest::of(&[&canonical::bytes(own)]), before as u64))
}

/// All items of a list.
fn all(list: &Packed) -> Vec<Digest> {
    let Value::Array(list) = list.get() else { return Vec::new() };
    let mut seen: BTreeMap<Digest, u64> = BTreeMap::new();
    let each = |item: &Value| {
        let value = Digest::of(&[&canonical::bytes(item)]);
        let before = seen.entry(value).or_insert(0);
        *before += 1;
        known_by(value, *before - 1)
    };
    list.iter().map(each).collect()
}

fn known_by(value: Digest, before: u64) -> Digest {
    Digest::of(&[&value.0, &before.to_be_bytes()])
}

/// The result that a step takes over: that of the step with its name, or for an item of the one with an equal item.
pub(crate) fn inherited<'a>(run: &'a Run, step: &StepId, items: Option<Digest>) -> Option<&'a Inherited> {
    let known = &run.rare().inherited;
    let Some(items) = items else { return known.get(step).filter(|one| one.items.is_none()) };
    let name = plain(step.as_str());
    known.values().find(|one| one.items == Some(items) && plain(one.step.as_str()) == name)
}

/// The earlier run's group that a group of this run is, where it is taken over whole: it succeeded, and it is made of the
/// same. It stands at the attempt at which it succeeded, so its members have the names that they had.
pub(crate) fn stood<'a>(run: &'a Run, def: &Pipeline, group: &Step) -> Option<&'a Inherited> {
    if run.rare().inherited.is_empty() || group.group.is_none() || group.section != Section::Main {
        return None;
    }
    let known = inherited(run, &group.id, of(run, group.item, group.parent).ok()?)?;
    let node = def.node(group.node)?;
    let same = || known.question == Some(made_of(def, node, group.item, group.input.as_ref()));
    (known.attempt == Some(group.attempt) && same()).then_some(known)
}

/// What a group is made of: its list, where it stands for all items of one, and the names of its members at all depths.
pub(crate) fn made_of(def: &Pipeline, node: &StepDef, item: Option<u32>, list: Option<&Packed>) -> Digest {
    let list = list.filter(|_| node.foreach.is_some() && item.is_none());
    let mut names = String::new();
    push_names(def, node, &mut names);
    Digest::of(&[list.map_or("", Packed::as_str).as_bytes(), b"\n", names.as_bytes()])
}

fn push_names(def: &Pipeline, node: &StepDef, names: &mut String) {
    names.push_str(node.id.as_str());
    names.push('(');
    for member in node.kind.members().iter().filter_map(|member| def.node(*member)) {
        push_names(def, member, names);
    }
    names.push(')');
}

/// The result that a step of the run has taken over, if it has.
pub(crate) fn taken_over<'a>(run: &'a Run, step: &Step) -> Option<&'a Inherited> {
    if run.rare().inherited.is_empty() {
        return None;
    }
    inherited(run, &step.id, of(run, step.item, step.parent).ok()?)
}

/// The call of an earlier run that is this run's step: for an item, that of an equal one. The last of several tries.
pub(crate) fn earlier_call<'a>(earlier: &'a Run, run: &Run, step: &Step) -> Option<&'a Step> {
    let items = of(run, step.item, step.parent).ok()?;
    let named = |step: &Step| crate::origin::without_rounds(&plain(step.id.as_str()));
    let (name, mut known) = (named(step), Known::default());
    let mut same = |other: &&Step| {
        other.child().is_some()
            && other.section == step.section
            && named(other) == name
            && known.of(earlier, other) == Ok(items)
    };
    earlier.steps.iter().filter(|other| same(other)).last()
}

/// Whether two steps of two runs of a lineage are the same one, for an equal item.
pub(crate) fn same(run: &Run, step: &Step, earlier: &Run, other: &Step) -> bool {
    let own = |run: &Run, step: &Step| of(run, step.item, step.parent);
    plain(step.id.as_str()) == plain(other.id.as_str()) && own(run, step) == own(earlier, other)
}

/// A step's name without the places of its items: `deploy[3]#2` is `deploy#2`.
fn plain(id: &str) -> String {
    let mut inside = false;
    let shown = |c: &char| {
        let hidden = inside || *c == '[';
        inside = hidden && *c != ']';
        !hidden
    };
    id.chars().filter(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_item_is_its_value_and_the_number_of_equal_ones_before_it() {
        let list = Packed::of(&json!(["a", "b", "a", { "x": 1, "y": 2 }, { "y": 2, "x": 1 }, 1, 1.0]));
        let known = all(&list);
        let each: Vec<Digest> = (0..known.len()).map(|n| one(&list, n).unwrap()).collect();
        assert_eq!(each, known, "both ways of asking agree");
        let moved = Packed::of(&json!(["b", { "y": 2, "x": 1 }, "a", "a"]));
        assert_eq!(all(&moved), [known[1], known[3], known[0], known[2]]);
        let distinct: alloc::collections::BTreeSet<Digest> = known.iter().copied().collect();
        assert_eq!(distinct.len(), known.len());
        assert_eq!(one(&list, known.len()), None);
    }

    #[test]
    fn names_lose_their_places_and_keep_their_tries() {
        for (id, expected) in [("a", "a"), ("a[3]", "a"), ("a[3]#2", "a#2"), ("a[1]#2[30]#3", "a#2#3")] {
            assert_eq!(plain(id), expected);
        }
    }
}
