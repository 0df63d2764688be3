//! The shop, which is told when an order is to be closed, and the teller, through whom the user hears of it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::dev::ServerHandle;
use actix_web::web::{Data, Json, post};
use actix_web::{App, HttpResponse, HttpServer};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;

use super::{Fate, ORDERS, name};
use crate::cli::Failure;
use crate::clock::{Clock, SteadyMs};

/// Tells the story line by line. A line that can't be written is remembered and ends the story.
pub(super) struct Teller {
    since: Instant,
    sink: Mutex<(Box<dyn Write + Send>, Option<io::Error>)>,
}

impl Teller {
    /// A teller whose clock starts now.
    pub(super) fn new(sink: Box<dyn Write + Send>) -> Self {
        Self {
            since: Instant::now(),
            sink: Mutex::new((sink, None)),
        }
    }

    /// Tells one line, with the time since the start.
    pub(super) fn line(&self, text: &str) {
        let at = self.since.elapsed().as_secs_f64();
        let mut sink = self.sink.lock();
        let (to, failed) = &mut *sink;
        if failed.is_none() {
            *failed = writeln!(to, "{at:6.2} s  {text}")
                .and_then(|()| to.flush())
                .err();
        }
    }

    /// Whether all lines so far could be written.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.sink
            .lock()
            .1
            .take()
            .map_or(Ok(()), |error| Err(Failure::of_output(error)))
    }
}

/// The shop's side: what it was told, and when, by the clock that due times follow.
pub(super) struct Shop {
    pub(super) clock: Clock,
    pub(super) teller: Arc<Teller>,
    pub(super) retry_in: Duration,
    pub(super) calls: Mutex<Vec<(String, SteadyMs)>>,
}

/// What the shop reads of a push.
#[derive(Deserialize)]
struct Push {
    key: String,
    attempt: u32,
}

async fn close(shop: Data<Shop>, push: Json<Push>) -> HttpResponse {
    shop.calls
        .lock()
        .push((push.key.clone(), shop.clock.now().steady));
    let order = &push.key;
    let fails = (0..)
        .zip(ORDERS)
        .any(|(n, fate)| fate == Fate::ShopFails && name(n) == *order);
    if fails && push.attempt == 1 {
        let wait = shop.retry_in.as_secs_f64();
        shop.teller.line(&format!(
            "{order} is not paid, and the shop answers 500: again in {wait:.1} s"
        ));
        return HttpResponse::InternalServerError()
            .json(json!({"error": "no connection to the stock"}));
    }
    shop.teller.line(&match push.attempt {
        1 => format!("{order} is not paid: closed"),
        nth => format!("{order} is closed, at attempt {nth}"),
    });
    HttpResponse::Ok().json(json!({"closed": order}))
}

pub(super) fn open(shop: Arc<Shop>) -> io::Result<(SocketAddr, ServerHandle)> {
    let shop = Data::from(shop);
    let server = HttpServer::new(move || {
        App::new()
            .app_data(shop.clone())
            .route("/close", post().to(close))
    })
    .workers(1)
    .disable_signals()
    .bind("127.0.0.1:0")?;
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    Ok((address, handle))
}
