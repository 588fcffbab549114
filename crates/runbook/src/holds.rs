//! Holds that a run could never get, as far as the file shows: a lock that the run itself holds, and more slots than the
//! semaphore has. Names computed by expressions are checked when the step is reached.

use super::build::Builder;
use super::problem::{Place, Problem};
use super::steps::Meta;
use windlass_core::id::Name;
use windlass_core::runbook::{Node, Pipeline, Runbook, StepDef};
use windlass_core::template::Template;

/// The name, if it is not computed by an expression.
fn literal(name: &Template) -> Option<&str> {
    match name {
        Template::Literal(name) => name.as_str(),
        Template::Expr(_)
        | Template::Text(_)
        | Template::Secret(_)
        | Template::List(_)
        | Template::Map(_) => None,
    }
}

fn lock_of(step: &StepDef) -> Option<&str> {
    literal(&step.lock.as_ref()?.name)
}

/// The groups that keep their holds while the step runs, from the inside out. A compensation runs at the end, when the
/// groups around the step it reverses have released theirs.
fn around<'m>(metas: &'m [Meta], node: Node) -> impl Iterator<Item = Node> + 'm {
    let outer = |node: &Node| {
        let meta = metas.get(*node as usize)?;
        meta.parent.filter(|_| meta.undo != Some(*node))
    };
    std::iter::successors(Some(node), outer).skip(1)
}

/// The place of another definition, for a message that refers to it.
fn line(builder: &Builder<'_>, at: Place, from: Place) -> String {
    let Some(source) = builder.sources.get(usize::from(at.file)) else { return String::new() };
    let before = source.text.as_bytes().iter().take(at.start as usize);
    let line = before.filter(|byte| **byte == b'\n').count() + 1;
    if at.file == from.file { format!("line {line}") } else { format!("line {line} of {}", source.name) }
}

/// Whether a step asks for a lock that its run, or a group around it, holds until the step has ended.
pub(super) fn locks(pipeline: &Pipeline, at: Place, metas: &[Meta], builder: &mut Builder<'_>) {
    let whole = pipeline.lock.as_ref().and_then(|lock| literal(&lock.name));
    for (place, (step, meta)) in (0..).zip(pipeline.nodes.iter().zip(metas)) {
        let Some(name) = lock_of(step) else { continue };
        let same = |node: &Node| pipeline.node(*node).and_then(lock_of) == Some(name);
        let holder = if whole == Some(name) {
            Some((at, "the pipeline".to_owned()))
        } else {
            around(metas, place).find(same).and_then(|group| {
                Some((metas.get(group as usize)?.at, format!("`{}` around it", pipeline.node(group)?.id)))
            })
        };
        let Some((at, holder)) = holder else { continue };
        let line = line(builder, at, meta.at);
        let message =
            format!("`{}` would wait for ever: {holder} holds the lock `{name}` already ({line})", step.id);
        let help = "take the `lock` away from one of them";
        builder.notes.add(Problem::at(meta.at, message).help(help));
    }
}

/// Whether a step, together with the groups around it, asks for more slots than the semaphore has.
pub(super) fn slots(runbook: &Runbook, name: &Name, metas: &[Meta], builder: &mut Builder<'_>) {
    let Some(pipeline) = runbook.pipelines.get(name) else { return };
    for (place, (step, meta)) in (0..).zip(pipeline.nodes.iter().zip(metas)) {
        let used = |step: &StepDef| {
            let semaphore = step.semaphore.as_ref()?;
            Some((Name::clean(literal(&semaphore.name)?), u64::from(semaphore.weight)))
        };
        let Some((semaphore, weight)) = used(step) else { continue };
        let Some(declared) = runbook.semaphores.get(&semaphore) else { continue };
        let others = around(metas, place).filter_map(|group| used(pipeline.node(group)?));
        let held: u64 = others.filter(|(other, _)| *other == semaphore).map(|(_, weight)| weight).sum();
        let capacity = u64::from(declared.capacity);
        if weight + held <= capacity {
            continue;
        }
        let beside = if held > 0 { format!(" beside {held} of the groups around it") } else { String::new() };
        let message = format!(
            "`{}` would wait for ever: it takes {weight} of the semaphore `{semaphore}`{beside}, which has {capacity}",
            step.id
        );
        builder.notes.add(Problem::at(meta.at, message).help("lower the `weight`, or raise the `capacity`"));
    }
}
