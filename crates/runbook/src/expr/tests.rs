//! What expressions give, what they refuse, and that hostile ones come to nothing.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn scope(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is not a scope"),
    }
}

fn evaluate(source: &str) -> Result<Value, String> {
    let names = json!({
        "vars": { "env": "prod", "n": 3, "big": u64::MAX, "half": 0.5, "list": ["a", "b"], "none": null },
        "steps": { "disk": { "output": { "free": 12 }, "status": "succeeded" }, "other": { "output": 1 } },
        "item": { "name": "x" },
        "run": { "id": "run_1" },
    });
    Cel::new().evaluate(source, &scope(names))
}

#[test]
fn values_keep_their_types() {
    for (source, expected) in [
        ("vars.env", json!("prod")),
        ("vars.n + 1", json!(4)),
        ("vars.big", json!(u64::MAX)),
        ("vars.half", json!(0.5)),
        ("vars.list", json!(["a", "b"])),
        ("vars.none", json!(null)),
        (
            "vars",
            json!({ "env": "prod", "n": 3, "big": u64::MAX, "half": 0.5, "list": ["a", "b"], "none": null }),
        ),
        ("steps.disk.output.free > 10 && steps.disk.status == 'succeeded'", json!(true)),
        ("steps['disk'].output", json!({ "free": 12 })),
        ("vars.env in ['prod', 'stage']", json!(true)),
        ("vars.list.map(x, x + '!')", json!(["a!", "b!"])),
        ("{'a': [1, {'b': 2u}]}", json!({ "a": [1, { "b": 2 }] })),
        ("has(vars.absent) ? 1 : 2", json!(2)),
        ("has(error.message)", json!(false)),
        ("vars.env == 'prod' ? run.id : ''", json!("run_1")),
        ("9223372036854775807", json!(i64::MAX)),
        ("item.name", json!("x")),
    ] {
        assert_eq!(evaluate(source), Ok(expected), "{source}");
    }
}

#[test]
fn the_functions_do_what_they_say() {
    for (source, expected) in [
        ("toJSON(steps.disk.output)", json!("{\"free\":12}")),
        ("fromJSON('{\"a\": [1, 2.5, null]}').a", json!([1, 2.5, null])),
        ("format('{0} of {1}, {{x}}', vars.n, vars.list)", json!("3 of [\"a\",\"b\"], {x}")),
        ("join(vars.list)", json!("a,b")),
        ("join(vars.list, ' + ')", json!("a + b")),
        ("vars.list.join('-')", json!("a-b")),
        ("hash('abc')", json!("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")),
        ("hash({'b': 1, 'a': 2}) == hash({'a': 2, 'b': 1})", json!(true)),
        ("vars.env.matches('^p.*d$')", json!(true)),
        ("size(vars.list)", json!(2)),
    ] {
        assert_eq!(evaluate(source), Ok(expected), "{source}");
    }
    for (source, message) in [
        ("join([1, 2])", "not a text"),
        ("format('{2}', 1)", "belongs to no value"),
        ("format('{', 1)", "belongs to no value"),
        ("fromJSON('{')", "not JSON"),
        ("fromJSON(1)", "takes one text"),
        ("'a'.matches('(')", "not a regular expression"),
        ("'a'.matches('(a{1000}){1000}')", "not a regular expression"),
        ("toJSON()", "takes one value"),
    ] {
        let error = evaluate(source).unwrap_err();
        assert!(error.contains(message), "{source}: {error}");
    }
}

/// A map with enough keys that no two processes have them in the same order by chance.
fn many() -> Map<String, Value> {
    let deep: Map<String, Value> = (0..24).rev().map(|n| (format!("d{n:02}"), json!(n))).collect();
    let map: Map<String, Value> = (0..24).rev().map(|n| (format!("k{n:02}"), json!(deep))).collect();
    scope(json!({ "vars": { "m": map, "zeta": 1, "alpha": 2 } }))
}

#[test]
fn maps_have_the_order_of_their_keys() {
    let names: Vec<String> = (0..24).map(|n| format!("k{n:02}")).collect();
    let cel = Cel::new();
    for source in [
        "vars.m.map(k, k)",
        "vars.m.filter(k, k != '')",
        "fromJSON(toJSON(vars.m)).map(k, k)",
        "[vars.m].map(m, m.map(k, k))[0]",
    ] {
        assert_eq!(cel.evaluate(source, &many()), Ok(json!(names)), "{source}");
    }
    assert_eq!(cel.evaluate("vars.m.map(k, k).join()", &many()), Ok(json!(names.join(","))));
    // The bytes are compared, not the values: maps are equal in any order.
    let text = cel.evaluate("vars", &many()).unwrap().to_string();
    assert!(text.starts_with(r#"{"alpha":2,"m":{"k00":{"d00":0,"d01":1,"#), "{text}");
    for source in ["toJSON(vars)", "format('{0}', vars)"] {
        assert_eq!(cel.evaluate(source, &many()), Ok(json!(text)), "{source}");
    }
    assert_eq!(cel.evaluate("{2: 'b', 1: 'a', 3: 'c'}.map(k, k)", &many()), Ok(json!([1, 2, 3])));
    // The first of several errors is the same one too.
    let first = cel.evaluate("vars.m.map(k, int(k))", &many()).unwrap_err();
    for _ in 0..8 {
        assert_eq!(cel.evaluate("vars.m.map(k, int(k))", &many()).unwrap_err(), first);
    }
}

#[test]
fn no_message_shows_a_map_as_the_interpreter_keeps_it() {
    for source in
        ["-vars", "!vars.list", "vars.list[vars]", "vars[vars]", "{vars: 1}", "vars.startsWith('a')"]
    {
        let error = evaluate(source).unwrap_err();
        assert!(!error.contains("prod") && !error.contains("String("), "{source}: {error}");
    }
}

#[test]
fn what_is_missing_or_of_another_type_is_an_error() {
    for (source, message) in [
        ("vars.absent", "there is no `absent`"),
        ("nothing.at.all", "`nothing` is not known here"),
        ("error.message", "there is no `message`"),
        ("vars.n == 3 && vars.env > 1", "overload"),
        ("vars.n + '1'", "does not go with int and string"),
        ("1 / 0", "zero"),
        ("9223372036854775807 + 1", "verflow"),
        ("1.0 / 0.0", "not a finite number"),
        ("b'abc'", "no form in JSON"),
        ("{1: 2}", "not text"),
        ("vars.list[7]", "bounds"),
    ] {
        let error = evaluate(source).unwrap_err();
        assert!(error.contains(message), "{source}: {error}");
        assert!(error.len() < 4 * MESSAGE_LEN_MAX);
    }
}

#[test]
fn a_condition_is_true_or_false() {
    let cel = Cel::new();
    assert_eq!(cel.holds("1 < 2", &Map::new()), Ok(true));
    assert!(cel.holds("'true'", &Map::new()).unwrap_err().contains("not true or false"));
    for source in ["'a'", "1 + 1", "[1]", "{}", "size('a')", "true ? 1 : 2", "[1].map(x, true)"] {
        assert!(!compile(source).unwrap().may_be_bool(), "{source}");
    }
    for source in ["vars.x", "true", "a == b", "has(a.b)", "[1].all(x, x > 0)", "!a", "fromJSON('true')"] {
        assert!(compile(source).unwrap().may_be_bool(), "{source}");
    }
}

#[test]
fn what_is_wrong_is_found_when_it_is_compiled() {
    for (source, message, at) in [
        ("vars.x ==", "not an expression", None),
        ("vars.x == 'a", "not an expression", None),
        ("a b", "not an expression", Some(2..3)),
        ("lenght(vars.x)", "no function `lenght`", None),
        ("toJson(vars.x)", "did you mean `toJSON`", None),
        ("vars.x.frobnicate()", "functions: ", None),
        ("Foo{a: 1}", "no type `Foo`", None),
        ("", "empty", Some(0..0)),
        ("  ", "empty", Some(0..2)),
        ("a.?b", "not an expression", None),
    ] {
        let error = compile(source).unwrap_err();
        assert!(error.to_string().contains(message), "{source}: {error}");
        assert!(error.at.end <= source.len(), "{source}: {error:?}");
        assert!(at.is_none_or(|at| at == error.at), "{source}: {:?}", error.at);
    }
}

#[test]
fn references_leave_out_what_macros_bind() {
    let source = "steps['a-b'].output.x + vars.list.map(x, x + item.y)[0] + vars.map(y, y)[0]";
    let compiled = compile(source).unwrap();
    let paths: Vec<String> = compiled.references().iter().map(|r| r.path.join("/")).collect();
    assert_eq!(paths, ["steps/a-b/output/x", "vars/list", "item/y", "vars"]);
    let starts: Vec<&str> = compiled.references().iter().map(|r| &source[r.at.start..]).collect();
    assert!(
        starts[0].starts_with("steps") && starts[1].starts_with("vars.list") && starts[2].starts_with("item")
    );
}

#[test]
fn bounds_are_reached_and_hold() {
    let long = format!("'{}'", "x".repeat(SOURCE_LEN_MAX));
    assert!(compile(&long).unwrap_err().message.contains("bytes"));
    for hostile in [
        "(".repeat(4_000),
        "[".repeat(4_000),
        "{".repeat(4_000),
        format!("{}1{}", "(".repeat(2_000), ")".repeat(2_000)),
        "!".repeat(4_000) + "a",
        "-".repeat(4_000) + "1",
        "a.".repeat(2_000) + "a",
        "a?b:".repeat(900) + "c",
        format!("a{}", "+a".repeat(2_000)),
        format!("a{}", "[0]".repeat(1_300)),
        format!("a{}", "&&a".repeat(1_300)),
        "f(".repeat(1_300),
        "a.map(x,".repeat(400),
        "'".to_owned() + &"\\".repeat(4_000),
        "\u{0}".to_owned(),
        "\u{1F600}".repeat(1_000),
        "999999999999999999999999999999".to_owned(),
        "1e999999".to_owned(),
    ] {
        // Whatever comes of it, it comes back.
        let _ = compile(&hostile);
        let _ = evaluate(&hostile);
    }
    assert!(compile(&format!("a{}", "+a".repeat(DEPTH_MAX))).unwrap_err().message.contains("levels deep"));
    assert!(compile(&format!("a{}", "+a".repeat(DEPTH_MAX / 2))).is_ok());
    assert!(compile(&("a?b:".repeat(100) + "c")).unwrap_err().message.contains("nested too deep"));
    assert!(compile("a.map(x, b.map(y, c.filter(z, z)))").unwrap_err().message.contains("nested 2 deep"));
    assert!(compile("a.map(x, b.map(y, x + y)).map(z, z)").is_ok());
}

#[test]
fn work_is_bounded() {
    let cel = Cel::new();
    let list = |n: usize| scope(json!({ "vars": { "l": vec![1; n] } }));
    assert!(cel.evaluate("vars.l.map(x, x)", &list(1_000)).is_ok());
    assert!(cel.evaluate("vars.l.map(x, vars.l.all(y, y == x))", &list(100)).is_ok());
    for source in ["vars.l.map(x, vars.l.map(y, y))", "vars.l.all(x, vars.l.all(y, y == 1))"] {
        assert!(cel.evaluate(source, &list(1_000)).unwrap_err().contains("too much work"), "{source}");
    }
    let large = scope(json!({ "vars": { "a": "x".repeat(VALUES_LEN_MAX), "b": 1 } }));
    assert!(cel.evaluate("vars.a", &large).unwrap_err().contains("too large"));
    assert_eq!(cel.evaluate("vars.b", &large), Ok(json!(1)), "what is not looked at costs nothing");
    let grown = scope(json!({ "vars": { "a": "x".repeat(VALUES_LEN_MAX / 2) } }));
    assert!(cel.evaluate("vars.a + vars.a", &grown).unwrap_err().contains("too much work"));
}

/// What the language itself walks through counts too, and so does what a scope is asked for.
#[test]
fn everything_that_an_expression_does_counts() {
    let cel = Cel::new();
    let big = Value::from("x".repeat(1 << 20));
    let list: Vec<usize> = (0..10_000).collect();
    let pattern = format!("({})", "a{20}".repeat(20));
    let names = scope(
        json!({ "vars": { "t": big, "l": list, "s": list[..1_000], "m": { "a": list }, "p": pattern } }),
    );
    let times = |part: &str, with: &str, n: usize| vec![part; n].join(with);
    for hostile in [
        times("vars.l == vars.l", " && ", 40),
        times("vars.m == vars.m", " && ", 40),
        times("vars.l != vars.l", " || ", 40),
        times("toJSON(vars.l) != ''", " && ", 60),
        times("hash(vars.l) != ''", " && ", 90),
        times("fromJSON(toJSON(vars.l)) == 1", " || ", 40),
        times("vars.t.contains('y')", " || ", 20),
        times("size(vars.t) < 1", " || ", 20),
        times("vars.t", " + ", 6),
        times("vars.t.matches('y')", " || ", 20),
        "vars.l.exists(x, string(x).matches(vars.p + string(x)))".to_owned(),
        format!("vars.l.exists(x, {})", times("x < 0", " || ", 40)),
        "[1, 2, 3, 4, 5, 6, 7, 8].exists(x, [vars.t, vars.t].all(y, y == 1) || [vars.t, vars.t].map(y, y) == [])"
            .to_owned(),
    ] {
        let began = std::time::Instant::now();
        let refused = cel.evaluate(&hostile, &names);
        assert!(refused.as_ref().is_err_and(|e| e.contains("too much work") || e.contains("too large")), "{hostile}: {refused:?}");
        // Nothing here is slow on a machine at rest: this is to notice what does not count at all.
        assert!(began.elapsed().as_secs() < 20, "{hostile} took {:?}", began.elapsed());
    }
    for kind in [
        "vars.s.map(x, string(x)).join()",
        "vars.s.map(x, string(x) + 'a').map(y, y + 'b').join()",
        "vars.s.filter(x, x > 5000 && x != 7000)",
        "toJSON(vars.l)",
    ] {
        assert!(cel.evaluate(kind, &names).is_ok(), "{kind}: {:?}", cel.evaluate(kind, &names));
    }
}

#[test]
fn the_expressions_of_one_decision_share_what_they_may_do() {
    let (cel, names) = (Cel::new(), scope(json!({ "vars": { "l": vec!["some text"; 10_000] } })));
    let metered = windlass_core::template::Metered::new(&cel);
    let results: Vec<_> = (0..20).map(|_| metered.evaluate("size(vars.l)", &names)).collect();
    assert_eq!(results[0], Ok(json!(10_000)));
    assert!(results[19].as_ref().is_err_and(|e| e.contains("too much work together")), "{:?}", results[19]);
    // Small ones are many.
    let metered = windlass_core::template::Metered::new(&cel);
    assert!((0..4_000).all(|_| metered.evaluate("1 + 1", &names).is_ok()));
}

#[test]
fn the_cache_is_bounded() {
    let cel = Cel::new();
    for n in 0..CACHE_MAX + 10 {
        assert_eq!(cel.evaluate(&n.to_string(), &Map::new()), Ok(json!(n)));
    }
    assert!(cel.compiled.lock().unwrap().len() <= CACHE_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn no_text_panics(source in "\\PC{0,40}|[a-c0-9.()\\[\\]{}?:+*!'\" ,=<>&|-]{0,60}") {
        let _ = evaluate(&source);
    }

    #[test]
    fn every_walk_through_a_map_has_the_order_of_its_keys(
        keys in proptest::collection::btree_set("\\PC{0,6}", 0..20)
    ) {
        let map: Map<String, Value> = keys.iter().rev().map(|key| (key.clone(), json!({ "x": key }))).collect();
        let names = scope(json!({ "vars": { "m": map } }));
        let cel = Cel::new();
        prop_assert_eq!(cel.evaluate("vars.m.map(k, k)", &names), Ok(json!(keys)));
        let sorted: Vec<String> =
            keys.iter().map(|key| format!("{}:{}", json!(key), json!({ "x": key }))).collect();
        let text = format!("{{{}}}", sorted.join(","));
        prop_assert_eq!(cel.evaluate("toJSON(vars.m)", &names), Ok(json!(text)));
        prop_assert_eq!(cel.evaluate("vars.m", &names).unwrap().to_string(), text);
    }

    #[test]
    fn whole_numbers_are_exact(n in any::<i64>(), m in any::<u64>()) {
        let names = scope(json!({ "vars": { "n": n, "m": m } }));
        prop_assert_eq!(Cel::new().evaluate("[vars.n, vars.m]", &names), Ok(json!([n, m])));
    }
}
