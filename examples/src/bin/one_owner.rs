//! A web service without a distributed lock: each order belongs to one of the servers, which needs
//! only a local lock. A request that reaches another server is redirected. Servers may join, leave
//! and crash at any time.
//!
//! `LISTEN=127.0.0.1:8081 cargo run -p holdline-examples --bin one_owner`, and 8082, 8083 in other
//! terminals; then `curl -L --post307 -X POST http://127.0.0.1:8081/orders/17/pay`. Kill the server
//! that answers, and ask again.
//!
//! Environment: `HOLDLINE_STORE` (a URL; default: the file store), `LISTEN`, `PAYMENT_MS`.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use holdline::{Group, Member, Route, open};
use std::env;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

#[derive(Clone)]
struct App {
    /// Our membership; `None` while we join.
    member: watch::Receiver<Option<Arc<Member>>>,
    payment: Duration,
}

async fn pay(State(app): State<App>, Path(order): Path<String>, uri: Uri) -> Response {
    let Some(member) = app.member.borrow().clone() else {
        return refusal("this server has just joined; ask again");
    };
    // No request to the store: the members determine the owner of an order.
    match member.route(&order).await {
        // Ours, and no other task of this process has it. If another server takes the order over,
        // because it has joined or we are disconnected, the work is dropped before that one begins.
        Ok(Route::Mine(owned)) => {
            match owned.protect(charge(&order, member.address(), owned.token(), app.payment)).await
            {
                Ok(receipt) => receipt.into_response(),
                // The bank may or may not have been asked: the client must check before it pays
                // again.
                Err(lost) => refusal(&lost.to_string()),
            }
        }
        // Between servers, rather forward the request. The other one checks the owner again.
        Ok(Route::Other(address)) => {
            let mut headers = HeaderMap::new();
            // The path as it was requested: `order` is decoded.
            let Ok(there) = format!("http://{address}{}", uri.path()).parse() else {
                return StatusCode::BAD_REQUEST.into_response();
            };
            headers.insert(header::LOCATION, there);
            (StatusCode::TEMPORARY_REDIRECT, headers).into_response()
        }
        Err(error) => refusal(&error.to_string()),
    }
}

/// Stands for the call to a bank. The final write carries the token, the server's epoch: a database
/// that refuses lower ones (see `fenced_sql`) is safe even from a server that was stopped in the
/// middle of this and resumes when another one has the order.
async fn charge(order: &str, server: &str, token: u64, time: Duration) -> String {
    sleep(time).await;
    format!("order {order} is paid by {server} in epoch {token}\n")
}

fn refusal(why: &str) -> Response {
    eprintln!("{why}");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

/// Keeps joining: a server that was stopped for too long has lost its place.
async fn stay(group: Group, address: String, tell: watch::Sender<Option<Arc<Member>>>) {
    loop {
        match group.join(&address).await {
            Ok(member) => {
                println!("joined as {address}");
                let member = Arc::new(member);
                tell.send_replace(Some(Arc::clone(&member)));
                member.lost().await;
                tell.send_replace(None);
                println!("no member any more");
            }
            Err(error) => {
                eprintln!("{error:#}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = match env::var("HOLDLINE_STORE") {
        Err(env::VarError::NotPresent) => holdline::open_default()?,
        url => open(&url?).await?,
    };
    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?.to_string();
    println!("listening on {address}");
    // For this long, the orders of a crashed or new server have no owner.
    let seconds = Duration::from_secs(2);
    let group = Group::new(&client, "orders").lease(seconds).stale_after(seconds).label("example");
    let (tell, member) = watch::channel(None);
    let payment = env::var("PAYMENT_MS").map_or(Ok(100), |text| text.parse())?;
    let app = App { member, payment: Duration::from_millis(payment) };
    let router = Router::new().route("/orders/{order}/pay", post(pay)).with_state(app);

    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        println!("stopping");
    };
    // Pending requests may finish; then dropping the membership leaves the group.
    tokio::select! {
        served = axum::serve(listener, router).with_graceful_shutdown(stop) => served?,
        () = stay(group, address, tell) => {}
    }
    client.settle().await;
    println!("left the group");
    Ok(())
}
