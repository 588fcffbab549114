//! The vault: what it keeps, for whom, and what it refuses.

use super::*;
use std::os::unix::fs::PermissionsExt as _;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn place() -> (tempfile::TempDir, Vault) {
    let dir = tempfile::tempdir().unwrap();
    let vault = Vault::with_key(&dir.path().join("data"), &dir.path().join("config/key"));
    (dir, vault)
}

#[test]
fn a_secret_is_kept_sealed_and_its_versions_only_grow() {
    let (dir, vault) = place();
    let own = name("default");
    assert_eq!(vault.set(&own, "TOKEN", "first-value").unwrap(), 1);
    assert_eq!(vault.set(&own, "TOKEN", "second-value").unwrap(), 2);
    let found = vault.reveal(&own, "TOKEN").unwrap().unwrap();
    assert_eq!((found.value.as_str(), found.version.as_str()), ("second-value", "2"));
    assert!(!format!("{found:?}").contains("second-value"));
    let stored = std::fs::read_to_string(dir.path().join("data/secrets.json")).unwrap();
    assert!(!stored.contains("second-value") && stored.contains("TOKEN"));
    assert!(vault.remove(&own, "TOKEN").unwrap() && !vault.remove(&own, "TOKEN").unwrap());
    assert!(vault.reveal(&own, "TOKEN").unwrap().is_none() && vault.list(&own).unwrap().is_empty());
    assert_eq!(vault.set(&own, "TOKEN", "third-value").unwrap(), 3, "a version never means two values");
}

#[test]
fn another_tenants_secret_is_as_absent_as_one_that_is_not_there() {
    let (_dir, vault) = place();
    vault.set(&name("a"), "TOKEN", "of-tenant-a").unwrap();
    assert!(vault.reveal(&name("b"), "TOKEN").unwrap().is_none());
    assert!(vault.list(&name("b")).unwrap().is_empty());
}

#[test]
fn a_sealed_value_cannot_be_passed_off_as_another() {
    let (dir, vault) = place();
    let own = name("default");
    vault.set(&own, "A", "value-of-a").unwrap();
    vault.set(&own, "B", "value-of-b").unwrap();
    let path = dir.path().join("data/secrets.json");
    let stored = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, stored.replace("\"A\"", "\"x\"").replace("\"B\"", "\"A\"")).unwrap();
    assert!(matches!(vault.reveal(&own, "A"), Err(Error::Sealed(_))));
}

#[test]
fn the_key_is_private_and_lies_outside_of_the_data_directory() {
    let (dir, vault) = place();
    let own = name("default");
    vault.set(&own, "A", "value-of-a").unwrap();
    let key = dir.path().join("config/key");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(vault.reveal(&own, "A"), Err(Error::Key { .. })));
    std::fs::remove_file(&key).unwrap();
    assert!(matches!(vault.reveal(&own, "A"), Err(Error::Key { .. })), "no new key is made by a look");
    let data = dir.path().join("data");
    let beside = Vault::with_key(&data, &data.join("key"));
    assert!(matches!(beside.set(&own, "A", "value-of-a"), Err(Error::Key { .. })));
}

#[test]
fn names_and_values_that_cannot_be_kept_safe_are_refused() {
    let (_dir, vault) = place();
    let own = name("default");
    for bad in ["", ".x", "a/b", "a b", "é", &"x".repeat(NAME_LEN_MAX + 1)] {
        assert!(matches!(vault.set(&own, bad, "long-enough"), Err(Error::Name(_))), "{bad}");
    }
    assert!(matches!(vault.set(&own, "A", "abc"), Err(Error::Value(_))), "too short to be redacted");
    assert!(matches!(vault.set(&own, "A", &"x".repeat(Redactor::LEN_MAX + 1)), Err(Error::Value(_))));
}
