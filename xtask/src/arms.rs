//! Arms that drop something: a catch-all in a match over one of the enums that say what happens.
//!
//! `Effect`, `Command`, `Event` and `Reply` are what the parts of Windlass say to each other. Where a match names one of them,
//! an arm that takes the rest without looking at it loses what is added next year, and no compiler and no log line tells. So
//! such an arm is written out, or has a comment `// tidy: ` with its reason.
//!
//! This reads text, as all rules here do: it knows brackets, the ends of arms and what a pattern is made of, and no types.

use crate::source::words;
use std::ops::Range;

/// The enums that say what happens.
const SAID: &[&str] = &["Effect::", "Command::", "Event::", "Reply::"];

/// An arm of a match: its pattern without a guard, and what it comes to.
struct Arm<'a> {
    at: usize,
    pattern: &'a str,
    guarded: bool,
    body: Range<usize>,
}

/// Where the arms begin that drop what one of the enums says. `masked` has no comments and literals, `text` has them.
pub(crate) fn dropped(masked: &str, text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for at in words(masked, "match") {
        let Some(body) = body_of(masked, at + "match".len()) else { continue };
        let arms = arms(masked, body);
        let named: Vec<String> = arms
            .iter()
            .flat_map(|arm| alternatives(arm.pattern))
            .filter_map(|part| before_name(&part))
            .collect();
        if named.is_empty() {
            continue;
        }
        let all =
            |arm: &&Arm<'_>| !arm.guarded && alternatives(arm.pattern).any(|part| takes_all(&part, &named));
        found.extend(arms.iter().filter(all).filter(|arm| !uses(arm, text)).map(|arm| arm.at));
    }
    found
}

/// The inside of the braces of a match.
fn body_of(masked: &str, from: usize) -> Option<Range<usize>> {
    let (mut depth, mut open) = (0_usize, None);
    for (i, b) in masked.bytes().enumerate().skip(from) {
        match b {
            b'{' if depth == 0 && open.is_none() => open = Some(i + 1),
            b'}' if depth == 0 => return open.map(|open| open..i),
            b';' if depth == 0 && open.is_none() => return None,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

fn arms(masked: &str, body: Range<usize>) -> Vec<Arm<'_>> {
    let (mut arms, mut at) = (Vec::new(), body.start);
    while let Some(arrow) = find(masked, at..body.end, "=>") {
        let begin = at + (masked[at..arrow].len() - masked[at..arrow].trim_start().len());
        let whole = attributes_off(&masked[begin..arrow]);
        let (pattern, guarded) = match find(whole, 0..whole.len(), " if ") {
            Some(guard) => (&whole[..guard], true),
            None => (whole, false),
        };
        let start = arrow + 2;
        let end = arm_end(masked, start..body.end);
        arms.push(Arm { at: begin, pattern: pattern.trim(), guarded, body: start..end });
        at = end;
        if masked[at..body.end].trim_start().starts_with(',') {
            at += masked[at..body.end].find(',').unwrap_or(0) + 1;
        }
    }
    arms
}

fn attributes_off(pattern: &str) -> &str {
    let pattern = pattern.trim_start();
    match pattern.strip_prefix("#[").and_then(|rest| rest.split_once(']')) {
        Some((_, rest)) => attributes_off(rest),
        None => pattern,
    }
}

/// Where an arm ends: after its block, or before the comma.
fn arm_end(masked: &str, arm: Range<usize>) -> usize {
    let skipped = masked[arm.clone()].len() - masked[arm.clone()].trim_start().len();
    let start = arm.start + skipped;
    if masked[start..].starts_with('{') {
        return body_of(masked, start).map_or(arm.end, |body| body.end + 1);
    }
    find(masked, arm.clone(), ",").unwrap_or(arm.end)
}

/// Where a text stands outside of brackets and of the types of a call.
fn find(masked: &str, within: Range<usize>, needle: &str) -> Option<usize> {
    let (mut depth, mut types) = (0_usize, 0_usize);
    let bytes = masked.as_bytes();
    for i in within {
        let before = i.checked_sub(1).map(|before| bytes[before]);
        match bytes[i] {
            b'<' if types > 0 || before == Some(b':') => types += 1,
            b'>' if types > 0 && before != Some(b'-') => types -= 1,
            _ if depth == 0 && types == 0 && bytes[i..].starts_with(needle.as_bytes()) => return Some(i),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The parts of `A | B`, without blanks and without what only says how a part is bound.
fn alternatives(pattern: &str) -> impl Iterator<Item = String> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while let Some(bar) = find(pattern, at..pattern.len(), "|") {
        parts.push(&pattern[at..bar]);
        at = bar + 1;
    }
    parts.push(&pattern[at..]);
    let bare = |part: &str| {
        let part: Vec<&str> =
            part.split_whitespace().filter(|word| !matches!(*word, "ref" | "mut")).collect();
        part.concat().replace('&', "")
    };
    parts.into_iter().map(bare).filter(|part| !part.is_empty()).collect::<Vec<_>>().into_iter()
}

/// What stands before the name of one of the enums: `Some(` of `Some(Effect::Stop{..})`.
fn before_name(part: &str) -> Option<String> {
    let at = SAID.iter().filter_map(|name| words(part, name).next()).min()?;
    // With the module it is named by: `effect::Effect::`.
    let path = |c: char| c == ':' || c == '_' || c.is_ascii_alphanumeric();
    Some(part[..at].trim_end_matches(path).to_owned())
}

/// Whether a part takes whatever comes, or whatever comes where others name an enum.
fn takes_all(part: &str, named: &[String]) -> bool {
    if is_open(part) {
        return true;
    }
    let wrapped = part.strip_suffix(')').and_then(|part| part.split_once('('));
    wrapped.is_some_and(|(around, inner)| {
        is_open(inner) && named.iter().any(|name| *name == format!("{around}("))
    })
}

/// `_`, `..`, a name, or a tuple of those.
fn is_open(part: &str) -> bool {
    if let Some(inner) = part.strip_prefix('(').and_then(|part| part.strip_suffix(')')) {
        return inner.split(',').filter(|part| !part.is_empty()).all(is_open);
    }
    matches!(part, "_" | "..") || is_name(part)
}

fn is_name(part: &str) -> bool {
    part.starts_with(|c: char| c == '_' || c.is_ascii_lowercase())
        && part.bytes().all(|b| b == b'_' || b.is_ascii_lowercase() || b.is_ascii_digit())
        && !matches!(part, "true" | "false")
}

/// Whether the arm does something with what it takes: a name that it binds stands in it, and not only to be dropped.
fn uses(arm: &Arm<'_>, text: &str) -> bool {
    let body = &text[arm.body.clone()];
    let mut names = arm.pattern.split(|c: char| !(c == '_' || c.is_ascii_alphanumeric()));
    names.any(|name| {
        is_name(name)
            && name != "_"
            && words(body, name).count() > body.matches(&format!("drop({name})")).count()
    })
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::source::mask;

    fn count(arms: &str) -> usize {
        let text = format!("fn f() {{ match e {{ {arms} }} }}");
        dropped(&mask(&text), &text).len()
    }

    #[test]
    fn arms_that_drop_are_found() {
        for arms in [
            "Effect::Stop { .. } => 1, _ => 2",
            "Effect::Stop { run, .. } => { stop(run) } effect => drop(effect),",
            "Effect::Stop { .. } => f::<Map<_, _>>(), other => {}",
            "Event::A(_) | Event::B(_) => 1, _other => 2",
            "Some(Command::Begin(id)) => 1, Some(_) => 2, None => 3",
            "Ok(Reply::Done) => 1, Ok(other) => 2, Err(error) => say(error)",
            "(&Effect::A, x) => x, (_, _) => 1",
            "effect::Effect::A => 1, ref all => 2",
            "Command::A if late => 1, Command::A => 2, #[cfg(x)] _ => 3",
            "Effect::A => match b { B::C => 1, B::D => 2 }, _ => 3",
            "Told::B => match b { Effect::C => 1, _ => 2 }, Told::D => 3",
        ] {
            assert_eq!(count(arms), 1, "{arms}");
        }
    }

    #[test]
    fn arms_that_say_what_they_take_are_not() {
        for arms in [
            "Effect::Stop { .. } => 1, Effect::Probe { .. } => 2",
            "Effect::Stop { .. } => 1, other => pass_on(other)",
            "Effect::Stop { .. } => 1, other => panic!(\"{other:?}\")",
            "Some(Effect::A(_)) => 1, None => 2",
            "Ok(Reply::Done) => 1, Ok(Reply::Nothing) => 2, Err(_) => 3",
            "Ok(Reply::Done) => 1, Ok(other) => say(other), Err(_) => 3",
            "Effect::A(_) => 1, _ if late => 2, Effect::B { x: _, .. } => 3",
            "B::C => 1, _ => 2",
            "Effect::A => match b { B::C => 1, _ => 2 }, Effect::B => 3",
            "b'{' => Effect::A, b'}' => Effect::B, _ => Effect::C",
            "1 => f(Event::A), x => 2",
        ] {
            assert_eq!(count(arms), 0, "{arms}");
        }
    }
}
