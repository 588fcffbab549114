//! Whose a data directory is, and where one is looked for.

use crate::support::{Done, Process, Project, text};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

const BOOK: &str = "name: b\npipelines: { p: { steps: [ { run: 'echo ran >> ran' } ] } }\n";

/// Runs a command in a directory of the project, without a data directory that is named.
fn below(project: &Project, dir: &str, words: &[&str]) -> Done {
    let mut command = project.command(words);
    command.current_dir(project.path(dir)).env_remove("WINDLASS_DATA");
    Process::spawn(command, words).wait()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_data_directory_of_another_user_is_refused_by_every_command() {
    let project = Project::with(BOOK);
    // Root plants one for another user; anybody else finds one of root's on every machine.
    let foreign = if rustix::process::geteuid().is_root() {
        project.run(&[], 0);
        let data = project.path("data");
        for path in [data.clone(), data.join("log"), data.join("lock")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        data
    } else {
        Path::new("/usr").to_owned()
    };
    let before = (fs::metadata(&foreign).unwrap().mode(), project.read("ran"));
    let named = foreign.to_str().unwrap();
    for words in [
        &["run", "book.yaml"][..],
        &["runs"],
        &["resume", "--all"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["secret", "list"],
        &["store", "verify"],
    ] {
        let words = [&["--data", named], words].concat();
        project.windlass(&words).code(7).warns("FORBIDDEN").warns("another user");
    }
    assert_eq!((fs::metadata(&foreign).unwrap().mode(), project.read("ran")), before);
}

#[test]
fn one_that_somebody_put_above_is_not_taken_over() {
    let project = Project::new();
    project.write("shared/work/book.yaml", BOOK);
    let planted = project.path("shared/.windlass");
    fs::create_dir(&planted).unwrap();
    // What everybody may write to is sticky where it is set up well: there nothing is looked for.
    mode(&project.path("shared"), 0o1777);
    below(&project, "shared/work", &["run", "book.yaml"]).code(0);
    assert!(project.has("shared/work/.windlass/log") && !project.has("shared/.windlass/log"));
    fs::remove_dir_all(project.path("shared/work/.windlass")).unwrap();
    // Where it is not, what belongs to another user is refused rather than passed over.
    mode(&project.path("shared"), 0o777);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&planted, Some(65534), Some(65534)).unwrap();
        below(&project, "shared/work", &["run", "book.yaml"])
            .code(7)
            .warns("FORBIDDEN")
            .warns("another user");
        assert!(!project.has("shared/work/.windlass"));
        // And above a directory of another user nothing is looked for at all.
        std::os::unix::fs::chown(project.path("shared"), Some(65534), Some(65534)).unwrap();
        below(&project, "shared/work", &["run", "book.yaml"]).code(0);
        assert!(project.has("shared/work/.windlass/log"));
    }
}

#[test]
fn one_of_ones_own_is_found_from_below() {
    let project = Project::new();
    project.write("work/deep/er/book.yaml", BOOK);
    fs::create_dir(project.path("work/.windlass")).unwrap();
    let run = below(&project, "work/deep/er", &["run", "book.yaml", "--json"]).code(0).last();
    assert!(!text(&run, "id").is_empty());
    assert!(project.has("work/.windlass/log") && !project.has("work/deep/er/.windlass"));
}
