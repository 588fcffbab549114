//! A server on loopback in this process, and a client of it.

use axum::http::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::time::Span;
use windlass_executor::home::Home;
use windlass_server::api::Caller;
use windlass_server::app::{App, Settings};
use windlass_server::client::{Client, Failure};
use windlass_server::server::for_caller;

/// The program itself, for keepers.
pub(crate) fn exe() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_windlass"))
}

/// How a server is to be.
#[derive(Clone)]
pub(crate) struct How {
    pub(crate) slots: usize,
    pub(crate) ttl_ms: u64,
    pub(crate) tenant: &'static str,
}

impl Default for How {
    fn default() -> Self {
        // Long enough that nothing runs out by accident; tests that want it to say so.
        How { slots: 4, ttl_ms: 600_000, tenant: "default" }
    }
}

/// A server that runs until it is stopped.
pub(crate) struct Server {
    pub(crate) app: Arc<App>,
    pub(crate) address: SocketAddr,
    how: How,
    root: PathBuf,
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) fn start(root: &Path, how: How) -> Server {
        Server::start_at(root, how, "127.0.0.1:0".parse().unwrap())
    }

    fn start_at(root: &Path, how: How, address: SocketAddr) -> Server {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut settings = Settings { executes: true, ..Settings::default() };
        settings.engine.slots = how.slots;
        settings.engine.lease_ttl = Span(how.ttl_ms);
        let app = App::start(Home::make(root).unwrap(), &exe(), settings).unwrap();
        let tenant = Name::clean(how.tenant);
        let caller = Caller { tenant, ..Caller::owner("tester") };
        let router = for_caller(app.clone(), caller);
        let listener = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            // A restart takes the same address, and connections of the one before may linger there.
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            socket.listen(128).unwrap()
        });
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Server { app, address, how, root: root.to_owned(), runtime: Some(runtime) }
    }

    /// Another server on the same data, for somebody else.
    pub(crate) fn also_for(&self, tenant: &str) -> SocketAddr {
        self.also(Caller { tenant: Name::clean(tenant), ..Caller::owner("other") })
    }

    /// Another one, for the bearer of a token of the default tenant.
    pub(crate) fn also_for_token(&self, token: &str, namespace: &str) -> SocketAddr {
        let (client, namespace) = (Name::clean(token), Name::clean(namespace));
        self.also(Caller { client, namespace, owns: false, ..Caller::owner("bearer") })
    }

    fn also(&self, caller: Caller) -> SocketAddr {
        let router = for_caller(self.app.clone(), caller);
        let runtime = self.runtime.as_ref().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, router).await });
        address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> Asker {
        Asker::new(self.address)
    }

    /// Stops it; connections that are open break off.
    pub(crate) fn stop(mut self) -> (PathBuf, How, SocketAddr) {
        let runtime = self.runtime.take().unwrap();
        runtime.shutdown_timeout(Duration::from_millis(100));
        self.app.stop();
        (self.root.clone(), self.how.clone(), self.address)
    }

    /// Stops it and starts it again at the same address.
    pub(crate) fn restart(self) -> Server {
        let (root, how, address) = self.stop();
        Server::start_at(&root, how, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
            self.app.stop();
        }
    }
}

/// Asks a server, one request after the other.
pub(crate) struct Asker {
    client: Client,
    runtime: Runtime,
}

impl Asker {
    pub(crate) fn new(address: SocketAddr) -> Asker {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Asker { client: Client::to_server(&format!("http://{address}"), None).unwrap(), runtime }
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        self.runtime.block_on(self.client.get(path)).unwrap()
    }

    pub(crate) fn try_post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.runtime.block_on(self.client.post(path, body))
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.try_post(path, body).unwrap_or_else(|failure| panic!("{path} {body}: {failure}"))
    }

    /// The refusal of a request that must be refused.
    #[track_caller]
    pub(crate) fn refused(&self, path: &str, body: &Value, code: Code) -> Value {
        match self.try_post(path, body) {
            Ok(answer) => panic!("{path} {body}: {answer}"),
            Err(failure) => {
                assert_eq!(failure.code, code, "{path} {body}: {failure}");
                failure.problem.unwrap_or_default()
            }
        }
    }

    /// Loads and deploys a runbook, and makes a run of its only pipeline.
    pub(crate) fn run(&self, yaml: &str) -> String {
        let body = ("application/yaml", yaml.as_bytes().to_vec());
        let loaded = self.runtime.block_on(async {
            self.client.send(Method::POST, "/v1/runbooks", Some(body), &[]).await?.json().await
        });
        let hash = loaded.unwrap()["hash"].as_str().unwrap().to_owned();
        let run = self.post("/v1/runs", &json!({ "runbook": hash }));
        run["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn show(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}"))
    }

    /// Waits until a run has this status, and returns it.
    pub(crate) fn until(&self, run: &str, status: &str) -> Value {
        crate::support::until(&format!("{run} to be {status}"), || {
            Some(self.show(run)).filter(|shown| shown["status"] == status)
        })
    }

    /// What the steps of a run wrote, as one text.
    pub(crate) fn logs(&self, run: &str) -> String {
        self.runtime.block_on(async {
            let path = format!("/v1/runs/{run}/logs");
            let answer = self.client.send(Method::GET, &path, None, &[]).await.unwrap();
            let mut lines = answer.lines().await.unwrap();
            let mut all = String::new();
            while let Some(line) = lines.next().await {
                let line: Value = serde_json::from_str(&line).unwrap();
                all.push_str(line["text"].as_str().unwrap());
                all.push('\n');
            }
            all
        })
    }

    /// The types of a run's records, in their order.
    pub(crate) fn types(&self, run: &str) -> Vec<String> {
        self.records(run).iter().map(|record| record["type"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn records(&self, run: &str) -> Vec<Value> {
        self.runtime.block_on(async {
            let path = format!("/v1/runs/{run}/events?follow=false");
            let accept = [("accept", "application/x-ndjson".to_owned())];
            let answer = self.client.send(Method::GET, &path, None, &accept).await.unwrap();
            let mut lines = answer.lines().await.unwrap();
            let mut all = Vec::new();
            while let Some(line) = lines.next().await {
                all.push(serde_json::from_str(&line).unwrap());
            }
            all
        })
    }

    /// Leases without waiting.
    pub(crate) fn lease(&self, executor: &str, labels: &[&str], max: usize) -> Vec<Value> {
        let body = json!({ "executor": executor, "labels": labels, "max": max });
        self.post("/v1/leases", &body)["items"].as_array().unwrap().clone()
    }

    /// Sends one item of a report, and returns the answer to it.
    pub(crate) fn report(&self, verb: &str, lease: &Value, more: Value) -> Value {
        let mut item = json!({ "run": lease["run"], "step": lease["step"], "epoch": lease["epoch"] });
        if let (Value::Object(item), Value::Object(more)) = (&mut item, more) {
            item.extend(more);
        }
        self.post(&format!("/v1/leases/{verb}"), &json!({ "items": [item] }))["items"][0].clone()
    }
}
