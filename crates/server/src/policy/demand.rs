//! The requirements of `@approval`, and how several are combined.
//!
//! `@approval("tier: high, count: 2, approvers: sre or oncall, two_person, expires: 1h")`: every part may be left out.
//! The strictest of several applies: the highest tier, the most humans, two persons where one of them says so, the shortest
//! time, and only approvers that all of them name.

use windlass_core::approval::{COUNT_MAX, Tier};
use windlass_core::id::Name;
use windlass_core::time::Span;
use windlass_runbook::problem::did_you_mean;
use windlass_runbook::span;

/// The most approvers in one annotation.
const APPROVERS_MAX: usize = 32;
/// The longest that an approval may wait.
const EXPIRES_MAX: Span = Span::hours(24 * 90);
const WORDS: [&str; 5] = ["tier", "count", "approvers", "two_person", "expires"];

/// What an approval must meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// How much is at stake; the action's risk where absent.
    pub tier: Option<Tier>,
    /// How many humans.
    pub count: u32,
    /// Whether none of them may be the requester, and they are two at least.
    pub two_person: bool,
    /// Who; anyone who may approve where empty.
    pub approvers: Vec<Name>,
    /// How long they have.
    pub expires: Option<Span>,
}

/// Two rules name approvers without a common member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NobodyLeft;

impl Demand {
    /// Reads an annotation. `count` is 0 where it does not say.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Demand, String> {
        let mut demand = Demand::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (word, value) = match part.split_once(':') {
                Some((word, value)) => (word.trim(), Some(value.trim()).filter(|value| !value.is_empty())),
                None => (part, None),
            };
            let Some(known) = WORDS.into_iter().find(|known| *known == word) else {
                let help = did_you_mean(word, WORDS).map_or_else(
                    || format!("it takes {}", WORDS.join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                return Err(format!("`@approval` does not know `{word}`: {help}"));
            };
            if seen.contains(&known) {
                return Err(format!("`@approval` says `{known}` twice"));
            }
            seen.push(known);
            demand.set(known, value)?;
        }
        Ok(demand)
    }

    fn set(&mut self, word: &str, value: Option<&str>) -> Result<(), String> {
        if word == "two_person" {
            return match value {
                None | Some("true") => {
                    self.two_person = true;
                    Ok(())
                }
                Some(other) => Err(format!("`two_person` stands alone; `{other}` is too much")),
            };
        }
        let value = value.ok_or_else(|| format!("`{word}` needs a value, as in `{word}: …`"))?;
        match word {
            "tier" => {
                let tier = Tier::parse(value);
                self.tier = Some(tier.ok_or_else(|| format!("`{value}` is no tier: low, medium or high"))?);
            }
            "count" => {
                let count = value.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
                self.count = count
                    .ok_or_else(|| format!("`count` is a number from 1 to {COUNT_MAX}, not `{value}`"))?;
            }
            "expires" => {
                let span = span::parse(value)?;
                if span == Span::ZERO || span > EXPIRES_MAX {
                    return Err("`expires` is longer than nothing and 90 days at most".to_owned());
                }
                self.expires = Some(span);
            }
            _ => {
                for name in value.split(" or ").map(str::trim) {
                    let name = Name::new(name).map_err(|error| error.to_string())?;
                    if !self.approvers.contains(&name) {
                        self.approvers.push(name);
                    }
                }
                if self.approvers.len() > APPROVERS_MAX {
                    return Err(format!("`approvers` are {APPROVERS_MAX} at most"));
                }
            }
        }
        Ok(())
    }

    /// What meets this demand and the other.
    ///
    /// # Errors
    /// No approver is named by both.
    pub fn and(&self, other: &Demand) -> Result<Demand, NobodyLeft> {
        let approvers: Vec<Name> = match (self.approvers.as_slice(), other.approvers.as_slice()) {
            ([], list) | (list, []) => list.to_vec(),
            (mine, theirs) => mine.iter().filter(|name| theirs.contains(name)).cloned().collect(),
        };
        // No approvers would mean anyone.
        if approvers.is_empty() && !(self.approvers.is_empty() && other.approvers.is_empty()) {
            return Err(NobodyLeft);
        }
        Ok(Demand {
            tier: self.tier.max(other.tier),
            count: self.count.max(other.count),
            two_person: self.two_person || other.two_person,
            approvers,
            expires: match (self.expires, other.expires) {
                (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
                (only, None) | (None, only) => only,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(text: &str) -> Demand {
        Demand::parse(text).unwrap()
    }

    #[test]
    fn an_annotation_reads_as_it_is_written() {
        let read = demand("tier: high, count: 2, approvers: sre or on call, two_person, expires: 1h30m");
        assert_eq!((read.tier, read.count, read.two_person), (Some(Tier::High), 2, true));
        assert_eq!(read.approvers, [Name::clean("sre"), Name::clean("on call")]);
        assert_eq!(read.expires, Some(Span::mins(90)));
        assert_eq!(demand(""), Demand::default());
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_is() {
        for (text, word) in [
            ("teir: high", "did you mean `tier`?"),
            ("tier: huge", "low, medium or high"),
            ("tier", "needs a value"),
            ("count: 0", "from 1 to"),
            ("count: 17", "from 1 to"),
            ("count: two", "from 1 to"),
            ("expires: 1", "no unit"),
            ("expires: 0s", "longer than nothing"),
            ("expires: 91d", "90 days"),
            ("two_person: no", "stands alone"),
            ("approvers: ", "needs a value"),
            ("approvers: a or  or b", "not a name"),
            ("tier: low, tier: high", "twice"),
        ] {
            let error = Demand::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn several_demands_come_to_the_strictest() {
        let all = demand("tier: low, count: 2, approvers: sre or ops, expires: 2h")
            .and(&demand("tier: high, count: 1, approvers: ops or dev, two_person, expires: 1h"))
            .unwrap();
        assert_eq!((all.tier, all.count, all.two_person), (Some(Tier::High), 2, true));
        assert_eq!((all.approvers, all.expires), (vec![Name::clean("ops")], Some(Span::hours(1))));
        // An empty list would mean anyone, so approvers that exclude each other are an error.
        assert_eq!(demand("approvers: sre").and(&demand("approvers: dev")), Err(NobodyLeft));
        assert_eq!(demand("approvers: sre").and(&demand("")).unwrap().approvers.len(), 1);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}") {
            let _ = Demand::parse(&text);
        }

        #[test]
        fn putting_demands_together_never_asks_for_less(
            counts in (0_u32..17, 0_u32..17), two in any::<(bool, bool)>(),
            who in (proptest::collection::vec("[abc]", 0..3), proptest::collection::vec("[abc]", 0..3)),
        ) {
            let make = |count, two_person, who: &[String]| Demand {
                count, two_person, approvers: who.iter().map(|name| Name::clean(name)).collect(), ..Demand::default()
            };
            let (one, other) = (make(counts.0, two.0, &who.0), make(counts.1, two.1, &who.1));
            if let Ok(both) = one.and(&other) {
                for part in [&one, &other] {
                    prop_assert!(both.count >= part.count && both.two_person >= part.two_person);
                    prop_assert!(part.approvers.is_empty()
                        || !both.approvers.is_empty() && both.approvers.iter().all(|name| part.approvers.contains(name)));
                }
            }
        }
    }
}
