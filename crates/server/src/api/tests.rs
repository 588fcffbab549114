//! What every answer is, whatever happened: one of ours.

use super::routes::{Routes, Scope, doc};
use super::*;
use axum::body::Body;
use serde_json::json as object;
use windlass_core::id::RunId;

async fn ask(api: &Api, request: Request<Body>) -> (u16, Value) {
    ask_as(None, api, request).await
}

async fn ask_as(caller: Option<Caller>, api: &Api, request: Request<Body>) -> (u16, Value) {
    let response = api.answer(caller, request).await;
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn request(path: &str) -> Request<Body> {
    Request::builder().uri(path).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_panic_is_a_problem_that_tells_nothing_of_the_inside() {
    async fn panics() -> Response {
        panic!("the secret of the inside")
    }
    let dir = tempfile::tempdir().unwrap();
    let app = app(dir.path());
    let api = Api::of(Routes::new().get("/", Scope::Open, doc("Panic"), panics), app.clone());
    let (status, problem) = ask(&api, request("/")).await;
    app.stop();
    assert_eq!((status, problem["code"].as_str()), (500, Some("INTERNAL")));
    assert!(!problem.to_string().contains("secret"), "{problem}");
}

#[tokio::test]
async fn what_a_library_refuses_is_a_problem_too() {
    async fn number(axum::extract::Path(number): axum::extract::Path<u8>) -> String {
        number.to_string()
    }
    async fn broken() -> Response {
        (StatusCode::BAD_GATEWAY, "the secret of the inside").into_response()
    }
    let dir = tempfile::tempdir().unwrap();
    let app = app(dir.path());
    let routes = Routes::new().get("/{number}", Scope::Open, doc("Say a number"), number);
    let api = Api::of(routes.get("/a/b", Scope::Open, doc("Break"), broken), app.clone());
    let (status, problem) = ask(&api, request("/x")).await;
    assert_eq!((status, problem["code"].as_str()), (400, Some("INVALID_INPUT")));
    let (status, problem) = ask(&api, request("/%ff")).await;
    assert_eq!((status, problem["code"].as_str()), (400, Some("INVALID_INPUT")));
    let (status, problem) = ask(&api, request("/a/b")).await;
    assert_eq!((status, problem["code"].as_str()), (500, Some("INTERNAL")));
    assert!(!problem.to_string().contains("secret"), "{problem}");
    assert_eq!(ask(&api, request("/7")).await, (200, Value::from(7)));
    app.stop();
}

/// An application on a directory of its own, that carries out nothing.
fn app(dir: &std::path::Path) -> Arc<App> {
    let home = windlass_executor::home::Home::make(&dir.join("data")).unwrap();
    App::start(home, &std::env::current_exe().unwrap(), crate::app::Settings::default()).unwrap()
}

#[tokio::test]
async fn a_route_has_its_own_bound_and_its_own_patience() {
    async fn takes(Raw(body): Raw) -> String {
        body.len().to_string()
    }
    async fn never() -> String {
        std::future::pending().await
    }
    let dir = tempfile::tempdir().unwrap();
    let routes = Routes::new()
        .post("/large", Scope::Open, doc("Take much").takes_bytes(2 << 20), takes)
        .post("/small", Scope::Open, doc("Take little").takes_bytes(10), takes)
        .get("/never", Scope::Open, doc("Never answer"), never);
    let app = app(dir.path());
    let api = Api::of(routes, app.clone());
    let send = |path: &str, len: usize| {
        let body = Body::from_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; len])]));
        Request::builder().method(Method::POST).uri(path).body(body).unwrap()
    };
    assert_eq!(ask(&api, send("/large", 2 << 20)).await.0, 200);
    assert_eq!(ask(&api, send("/large", (2 << 20) + 1)).await.1["code"], "PAYLOAD_TOO_LARGE");
    assert_eq!(ask(&api, send("/small", 10)).await.0, 200);
    assert_eq!(ask(&api, send("/small", 11)).await.0, 413);
    tokio::time::pause();
    assert_eq!(ask(&api, request("/never")).await.1["code"], "UNAVAILABLE");
    app.stop();
}

#[tokio::test]
async fn large_bodies_are_handled_on_other_threads_and_small_ones_are_not_moved() {
    async fn place(Raw(body): Raw) -> String {
        let aside = std::thread::current().name() == Some("aside");
        serde_json::json!([aside, body.len()]).to_string()
    }
    let dir = tempfile::tempdir().unwrap();
    let app = app(dir.path());
    let routes = Routes::new().post("/", Scope::Read, doc("Say where").body::<String>(), place);
    let api = Api::of(
        routes.post("/much", Scope::Read, doc("Say where").body::<String>().aside(), place),
        app.clone(),
    );
    let ask = async |path: &str, len: usize, head: (&str, &str)| {
        let request = Request::builder().method(Method::POST).uri(path).header(head.0, head.1);
        let request = request.body(Body::from(vec![b'x'; len])).unwrap();
        let response = api.answer(Some(Caller::local()), request).await;
        assert_eq!(response.status(), StatusCode::OK);
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()
    };
    let large = crate::aside::LARGE;
    let length = large.to_string();
    let answers = [
        ask("/", 10, ("content-length", "10")).await,
        ask("/", large, ("content-length", &length)).await,
        ask("/", 10, ("transfer-encoding", "chunked")).await,
        ask("/much", 10, ("content-length", "10")).await,
    ];
    app.stop();
    let expected = [(false, 10), (true, large), (true, 10), (true, 10)];
    assert_eq!(answers, expected.map(|answer| serde_json::json!(answer)));
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for_for_ever() {
    async fn takes(Raw(body): Raw) -> String {
        body.len().to_string()
    }
    let dir = tempfile::tempdir().unwrap();
    let app = app(dir.path());
    let routes = Routes::new().post("/", Scope::Open, doc("Take"), takes);
    let api = Api::of(routes, app.clone());
    let body = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    tokio::time::pause();
    let (status, problem) =
        ask(&api, Request::builder().method(Method::POST).uri("/").body(body).unwrap()).await;
    assert_eq!((status, problem["code"].as_str()), (408, Some("REQUEST_TIMEOUT")));
    app.stop();
}

#[tokio::test]
async fn a_process_on_its_way_out_takes_no_more_work() {
    let dir = tempfile::tempdir().unwrap();
    let app = app(dir.path());
    let api = Api::new(app.clone());
    let ready = || ask(&api, request("/readyz"));
    assert_eq!(ready().await.0, 200);
    app.drain();
    assert_eq!(ready().await.1["code"], "UNAVAILABLE");
    assert_eq!(ask(&api, request("/healthz")).await.0, 200);
    app.stop();
    // A loop that has ended does not turn.
    assert_eq!(ask(&api, request("/healthz")).await.1["code"], "UNAVAILABLE");
}

#[tokio::test]
async fn a_list_of_runs_is_the_same_before_and_after_they_left_memory() {
    let dir = tempfile::tempdir().unwrap();
    let app = app(dir.path());
    let api = Api::new(app.clone());
    let send = |method: &str, path: &str, body: String| {
        Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(Body::from(body))
            .unwrap()
    };
    let book = "name: b\npipelines: { p: { vars: { who: {} }, steps: [ { id: w, wait: 1h } ] } }\n";
    let files = object!({ "files": [{ "name": "b.yaml", "text": book }] });
    assert_eq!(
        ask_as(Some(Caller::owner("ann")), &api, send("POST", "/v1/runbooks", files.to_string())).await.0,
        201
    );
    for who in ["ann", "bob", "cy"] {
        let wish = object!({ "pipeline": "p", "vars": { "who": who } });
        let (status, run) =
            ask_as(Some(Caller::owner("ann")), &api, send("POST", "/v1/runs", wish.to_string())).await;
        assert_eq!(status, 201, "{run}");
        let path = format!("/v1/runs/{}/cancel", run["id"].as_str().unwrap());
        let (status, answer) =
            ask_as(Some(Caller::owner("ann")), &api, send("POST", &path, "{}".into())).await;
        assert_eq!(status, 200, "{answer}");
    }
    let list = || async {
        ask_as(Some(Caller::owner("ann")), &api, send("GET", "/v1/runs?limit=2", String::new())).await.1
    };
    let before = list().await;
    let vars = |page: &Value, n: usize| page["items"][n]["vars"]["who"].clone();
    assert_eq!((vars(&before, 0), vars(&before, 1)), (Value::from("cy"), Value::from("bob")));
    while app.look(|store| store.let_all_leave()).await.unwrap() {
        tokio::task::yield_now().await;
    }
    let held =
        app.look(|store| store.state().runs_between(RunId(0), RunId(u128::MAX)).count()).await.unwrap();
    assert_eq!(held, 0, "they are out of memory");
    assert_eq!(list().await, before);
    app.stop();
}

#[test]
fn a_holder_of_one_namespace_is_nobody_of_another() {
    let places = [("default", "default"), ("default", "other"), ("acme", "default"), ("acme", "other")];
    let names =
        ["h", "acme/h", "acme/default/h", "default/h", "default/default/h", "other/h", "default/other/h"];
    let mut seen = std::collections::BTreeSet::new();
    for (tenant, namespace) in places {
        let (tenant, namespace) = (Name::clean(tenant), Name::clean(namespace));
        let caller = Caller { tenant, namespace, ..Caller::local() };
        for name in names {
            let holder = outsider(&caller, name).unwrap();
            let known = Scoped::new(&caller.tenant, &caller.namespace, &Name::clean("lock"));
            assert_eq!(windlass_api::hold::holder(&known, &holder), name, "it is shown as it was given");
            assert!(seen.insert(holder.to_string()), "{holder} is somebody else already");
        }
        for name in ["pipeline:run_1", "worker:w", ""] {
            assert!(outsider(&caller, name).is_err(), "{name}");
        }
    }
}

#[tokio::test]
async fn two_applications_in_a_process_do_not_share_tools() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("tools");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("page.yaml"), "name: pager.page\ncommand: ./page\n").unwrap();
    let home = windlass_executor::home::Home::make(&dir.path().join("with")).unwrap();
    let tools = windlass_executor::tools::settings::Settings { folder: Some(folder), ..Default::default() };
    let settings = crate::app::Settings { tools: Some(Arc::new(tools)), ..Default::default() };
    let with = App::start(home, &std::env::current_exe().unwrap(), settings).unwrap();
    let without = app(dir.path());
    let book = "name: t\npipelines:\n  p:\n    steps:\n      - pager.page: {}\n";
    let knows = |app: &App| windlass_runbook::parse("t", book, &(), app.tools.registry.signatures()).is_ok();
    assert!(knows(&with) && !knows(&without));
    with.stop();
    without.stop();
}
