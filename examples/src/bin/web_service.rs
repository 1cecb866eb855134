//! A web service that takes a lock for each order: two requests about one order never run at the
//! same time, on one server or on twenty; requests about different orders do not wait for each
//! other.
//!
//! `cargo run -p holdline-examples --bin web_service`, then
//! `curl -X POST http://127.0.0.1:8080/orders/17/pay`. Ctrl-C ends it.
//!
//! Environment: `HOLDLINE_STORE` (a URL; default: the file store), `LISTEN`, `PAYMENT_MS` and
//! `GRACE_MS`.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use holdline::{Client, Error, ErrorKind, Mutex, open};
use std::env;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long a request waits for another one about the same order before it is refused for now.
const WAIT: Duration = Duration::from_secs(2);
/// How long the process waits, at its very end, for a store that does not answer.
const SETTLE: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct App {
    client: Client,
    payment: Duration,
    /// Turns true when pending requests must end.
    give_up: watch::Receiver<bool>,
}

type Refusal = (StatusCode, &'static str);

async fn pay(State(app): State<App>, Path(order): Path<String>) -> Result<String, Refusal> {
    // Creating a lock costs nothing; create one for each request.
    let lock = Mutex::new(&app.client, format!("orders/{order}")).label("pay");
    let Some(guard) = lock.lock_within(WAIT).await.map_err(|error| refusal(&error))? else {
        return Err((StatusCode::CONFLICT, "this order is being paid; ask again later\n"));
    };
    let mut give_up = app.give_up.clone();
    let receipt = tokio::select! {
        // If the lock is lost, the work is dropped before another request can be admitted.
        paid = guard.protect(charge(&order, guard.token(), app.payment)) => {
            paid.map_err(|error| refusal(&error))?
        }
        _ = give_up.wait_for(|now| *now) => {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "this server is stopping\n"));
        }
    };
    // On every way out of here the guard is dropped, which releases the lock in the background: the
    // response need not wait for that. `guard.unlock().await` would wait, and report the result.
    Ok(receipt)
}

/// Stands for the call to a bank. It can be dropped in the middle, when the lock is lost or the
/// client hangs up; so a real one sends the order's number as its idempotency key.
async fn charge(order: &str, token: u64, time: Duration) -> String {
    sleep(time).await;
    format!("order {order} is paid, under token {token}\n")
}

/// The response to the client, which says less than the log does.
fn refusal(error: &Error) -> Refusal {
    eprintln!("{error:#}");
    match error.kind() {
        ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "no order has such a number\n"),
        // The bank may or may not have been asked: the client must check before it pays again.
        ErrorKind::Lost => (StatusCode::INTERNAL_SERVER_ERROR, "the lock was lost meanwhile\n"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "locks are not to be had at the moment\n"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = match env::var("HOLDLINE_STORE") {
        Err(env::VarError::NotPresent) => holdline::open_default()?,
        url => open(&url?).await?,
    };
    let (tell, give_up) = watch::channel(false);
    let app = App { client: client.clone(), payment: millis("PAYMENT_MS", 200)?, give_up };
    let router = Router::new().route("/orders/{order}/pay", post(pay)).with_state(app);
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let grace = millis("GRACE_MS", 5000)?;
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        println!("stopping");
        // No new requests from here on. Pending ones may finish; then they are told to give up.
        tokio::spawn(async move {
            sleep(grace).await;
            tell.send(true)
        });
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;

    // Every guard is dropped by now. After this, the background releases are complete, so that no
    // client waits for the leases of a server that is gone.
    match timeout(SETTLE, client.settle()).await {
        Ok(()) => println!("all locks are released"),
        Err(_) => eprintln!("the store does not answer; what is held ends with its lease"),
    }
    Ok(())
}

fn millis(variable: &str, default: u64) -> Result<Duration, std::num::ParseIntError> {
    Ok(Duration::from_millis(env::var(variable).map_or(Ok(default), |text| text.parse())?))
}
