//! What every answer is, whatever happened: one of ours.

use super::routes::{Routes, Scope, doc};
use super::*;
use axum::body::Body;

async fn ask(api: &Api, request: Request<Body>) -> (u16, Value) {
    let response = api.answer(None, request).await;
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
    let home = crate::home::Home::make(&dir.join("data")).unwrap();
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
            assert_eq!(shape::holder(&known, &holder), name, "it is shown as it was given");
            assert!(seen.insert(holder.to_string()), "{holder} is somebody else already");
        }
        for name in ["pipeline:run_1", "worker:w", ""] {
            assert!(outsider(&caller, name).is_err(), "{name}");
        }
    }
}
