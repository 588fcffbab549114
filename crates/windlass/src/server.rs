//! Serves the API: at the socket in the data directory, which only its owner can open.

use crate::api::{Caller, router};
use crate::app::App;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use std::io;
use std::sync::Arc;
use tokio::net::UnixListener;

/// The router for a caller whom the transport vouches for.
pub fn for_caller(app: Arc<App>, caller: Caller) -> Router {
    router(app).layer(from_fn_with_state(caller, vouch))
}

async fn vouch(
    axum::extract::State(caller): axum::extract::State<Caller>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Serves the socket until the future is dropped.
///
/// # Errors
/// The socket cannot be served any longer.
pub async fn serve_socket(app: Arc<App>, listener: UnixListener, user: &str) -> io::Result<()> {
    axum::serve(listener, for_caller(app, Caller::owner(user))).await
}

/// The name of the user that this process runs as.
#[must_use]
pub fn user_name() -> String {
    let named =
        ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()))
}
