//! The variables that Windlass sets for commands: the one list of names that begin with `WL_`.
//!
//! | commands | what they are given |
//! |---|---|
//! | of steps, here and elsewhere | `RunId`, `StepId`, `Attempt`, `Epoch`, `IdempotencyKey`, `Server`, `Token`, variables |
//! | that read what became of a lost effect | `RunId`, `StepId`, `Epoch`, `IdempotencyKey`, variables |
//! | of guards | variables |
//! | that list issues | `IssuesFilter`, variables |
//! | of git, for guards | `Git0` to `Git4`, variables |
//! | of external queues | `Item` and `IdempotencyKey`, where one is taken |
//! | of described tools | `ToolInput`, `IdempotencyKey` |
//! | of notices | `NoticeId` to `NoticeSound`, `RunId`, `StepId` |
//!
//! Variables of a pipeline are `WL_VAR_<NAME>`. `Output` is set for every command, by the keeper, which also sets `Mark` to
//! recognise an attempt's processes, and `Keeper` for processes of its own.

/// A variable that Windlass sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The run.
    RunId,
    /// The step.
    StepId,
    /// Which try it is, from 1.
    Attempt,
    /// The fence of the attempt, or of the lock that is held.
    Epoch,
    /// What identifies the effect.
    IdempotencyKey,
    /// Where the API is: a URL, or `unix:` and a path.
    Server,
    /// The token of the attempt.
    Token,
    /// The file for typed output.
    Output,
    /// The item of an external queue, as JSON.
    Item,
    /// Which issues are asked for, as JSON.
    IssuesFilter,
    /// The notice.
    NoticeId,
    /// Its kind.
    NoticeKind,
    /// Its title.
    NoticeTitle,
    /// Its text.
    NoticeMessage,
    /// Whether it may be heard.
    NoticeSound,
    /// What a described tool reads from its standard input; its command does not see it.
    ToolInput,
    /// An argument of git, which reaches it without being read as a command.
    Git0,
    /// Another.
    Git1,
    /// Another.
    Git2,
    /// Another.
    Git3,
    /// Another.
    Git4,
    /// What the keeper recognises an attempt's processes by.
    Mark,
    /// What the keeper's own processes recognise each other by.
    Keeper,
}

impl Variable {
    /// What users read or may come across: all but those that no command of theirs sees.
    pub const OF_USERS: [Variable; 15] = [
        Variable::RunId,
        Variable::StepId,
        Variable::Attempt,
        Variable::Epoch,
        Variable::IdempotencyKey,
        Variable::Server,
        Variable::Token,
        Variable::Output,
        Variable::Item,
        Variable::IssuesFilter,
        Variable::NoticeId,
        Variable::NoticeKind,
        Variable::NoticeTitle,
        Variable::NoticeMessage,
        Variable::NoticeSound,
    ];

    /// The arguments of git, in their order.
    pub const GIT: [Variable; 5] =
        [Variable::Git0, Variable::Git1, Variable::Git2, Variable::Git3, Variable::Git4];

    /// Its name in the environment.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Variable::RunId => "WL_RUN_ID",
            Variable::StepId => "WL_STEP_ID",
            Variable::Attempt => "WL_ATTEMPT",
            Variable::Epoch => "WL_EPOCH",
            Variable::IdempotencyKey => "WL_IDEMPOTENCY_KEY",
            Variable::Server => "WL_SERVER",
            Variable::Token => "WL_TOKEN",
            Variable::Output => "WL_OUTPUT",
            Variable::Item => "WL_ITEM",
            Variable::IssuesFilter => "WL_ISSUES_FILTER",
            Variable::NoticeId => "WL_NOTICE_ID",
            Variable::NoticeKind => "WL_NOTICE_KIND",
            Variable::NoticeTitle => "WL_NOTICE_TITLE",
            Variable::NoticeMessage => "WL_NOTICE_MESSAGE",
            Variable::NoticeSound => "WL_NOTICE_SOUND",
            Variable::ToolInput => "WL_TOOL_INPUT",
            Variable::Git0 => "WL_GIT_0",
            Variable::Git1 => "WL_GIT_1",
            Variable::Git2 => "WL_GIT_2",
            Variable::Git3 => "WL_GIT_3",
            Variable::Git4 => "WL_GIT_4",
            Variable::Mark => "WL_ATTEMPT_MARK",
            Variable::Keeper => "WL_KEEPER",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The names that begin with `WL_` in a text, but for those of pipelines' variables.
    fn named(text: &str) -> BTreeSet<String> {
        let ends = |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        text.match_indices("WL_")
            .map(|(at, _)| text[at..].split(ends).next().unwrap_or_default().to_owned())
            .filter(|name| name != "WL_" && !name.starts_with("WL_VAR"))
            .collect()
    }

    #[test]
    fn the_documents_name_no_variable_that_is_not_set() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
        let mut found = BTreeSet::new();
        for page in pages.chain([root.join("README.md")]) {
            found.extend(named(&std::fs::read_to_string(page).unwrap()));
        }
        let known: BTreeSet<String> = Variable::OF_USERS.iter().map(|one| one.name().to_owned()).collect();
        let unknown: Vec<&String> = found.difference(&known).collect();
        assert!(unknown.is_empty(), "nobody sets {unknown:?}");
    }
}
