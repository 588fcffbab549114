//! An engine in this process, asked through its router; the command line reaches it over the socket of its data directory.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;
use windlass_core::id::Name;
use windlass_executor::home::Home;
use windlass_server::api::Caller;
use windlass_server::app::{App, Settings};
use windlass_server::server;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// It has this status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    /// It is a problem with this status and code.
    #[track_caller]
    pub(crate) fn refuses(self, status: u16, code: &str) -> String {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{}", self.body);
        self.body["detail"].as_str().unwrap_or_default().to_owned()
    }
}

/// A running engine.
pub(crate) struct Served {
    pub(crate) app: Arc<App>,
    runtime: Runtime,
    serving: JoinHandle<()>,
}

impl Served {
    /// Opens a data directory and serves it.
    pub(crate) fn open(data: &Path) -> Served {
        let runtime = Runtime::new().unwrap();
        let home = Home::make(data).unwrap();
        let settings = Settings { executes: true, ..Settings::default() };
        let exe = Path::new(env!("CARGO_BIN_EXE_windlass"));
        let app = App::start(home, exe, settings).unwrap();
        let (serve, _guard) = (app.clone(), runtime.enter());
        let listener = app.home.bind().unwrap();
        let serving = runtime.spawn(async move {
            let _ = server::serve_socket(serve, listener, "tester").await;
        });
        drop(_guard);
        Served { app, runtime, serving }
    }

    fn router(&self, tenant: Option<&str>) -> Router {
        let mut caller = Caller::owner("tester");
        if let Some(tenant) = tenant {
            caller.tenant = Name::clean(tenant);
        }
        server::for_caller(self.app.clone(), caller)
    }

    pub(crate) fn send(
        &self,
        tenant: Option<&str>,
        method: Method,
        path: &str,
        body: Vec<u8>,
        kind: &str,
    ) -> Answer {
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(Body::from(body)).unwrap();
        let router = self.router(tenant);
        self.runtime.block_on(async move {
            let response = router.oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            Answer { status: parts.status.as_u16(), headers: parts.headers, body }
        })
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(None, Method::GET, path, Vec::new(), "application/json")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_as(None, path, body)
    }

    pub(crate) fn post_as(&self, tenant: Option<&str>, path: &str, body: &Value) -> Answer {
        self.send(tenant, Method::POST, path, body.to_string().into_bytes(), "application/json")
    }

    /// Deploys a runbook, to be run in a directory.
    pub(crate) fn deploy(&self, book: &str, root: &Path) -> Answer {
        self.deploy_as(None, book, root)
    }

    pub(crate) fn deploy_as(&self, tenant: Option<&str>, book: &str, root: &Path) -> Answer {
        let path = format!("/v1/runbooks?project_root={}", root.display());
        self.send(tenant, Method::POST, &path, book.as_bytes().to_vec(), "application/yaml")
    }

    /// All runs, newest first.
    pub(crate) fn runs(&self) -> Vec<Value> {
        self.get("/v1/runs?limit=500").is(200)["items"].as_array().unwrap().clone()
    }

    /// Ends the engine: everything is durable.
    pub(crate) fn close(self) {
        self.serving.abort();
        self.app.stop();
        let _ = std::fs::remove_file(self.app.home.socket());
    }
}
