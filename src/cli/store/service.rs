//! What is asked of a running service: its address and a token for it stand in the directory's lock.

use std::path::Path;
use std::thread;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::left_out::LeftOut;
use super::{Unit, bar, explained};
use crate::archive::Options;
use crate::archive::backup::Manifest;
use crate::cli::client::{Body, Client, Request, Server};
use crate::cli::{Failure, Out};
use crate::shard::snapshot::Fault;
use crate::store::data_dir::Holder;

/// How often a service is asked how far its backup is.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// The service that has the directory, and the token for it.
fn service_of<'a>(
    holder: &'a Holder,
    data: &Path,
    doing: &str,
) -> Result<(Client, &'a str), Failure> {
    let (Some(address), Some(token)) = (holder.address, &holder.token) else {
        let told = format!(
            "cannot {doing} {}: the process that has it ({holder}) does not say where it serves",
            data.display()
        );
        return Err(Failure::new(told).then("if it is only starting, try again in a moment"));
    };
    Ok((Client::new(&Server::at(address))?, token))
}

/// The lines of the service that has the directory; how many there were, and what is not among them.
pub(super) fn exported_by(
    holder: &Holder,
    data: &Path,
    options: &Options,
    out: &mut Out<'_>,
) -> Result<(u64, LeftOut), Failure> {
    let (client, token) = service_of(holder, data, "export")?;
    let path = vec!["store".to_owned(), "export".to_owned()];
    let skip = ("skip_damaged".to_owned(), options.skip_damaged.to_string());
    let request = Request::get("export the running service", path).query(vec![skip]);
    let bar = bar("exporting", Unit::Count);
    let mut tasks = 0;
    let streamed = client.stream(request.admin_token(token), &mut |piece| {
        tasks += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
        bar.set_position(tasks);
        out.sink.write_all(piece).map_err(Failure::of_output)
    });
    bar.finish_and_clear();
    let headers = streamed?;
    out.flush()?;
    let left_out = match options.skip_damaged {
        true => left_out_by(&client, token, &headers)?,
        false => LeftOut::default(),
    };
    Ok((tasks, left_out))
}

/// What an export of the service has left out.
fn left_out_by(client: &Client, token: &str, headers: &HeaderMap) -> Result<LeftOut, Failure> {
    let number = headers.get("duetime-export");
    let number = number
        .and_then(|number| number.to_str().ok())
        .unwrap_or_default();
    let path = ["store", "export", number].map(str::to_owned).to_vec();
    let request = Request::get("ask what the export has left out", path);
    let status = client.send(request.admin_token(token)).map_err(|failure| {
        failure.then("all lines were written; the service's log names what is not among them")
    })?;
    let places = status.value["places"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(LeftOut {
        count: status.value["left_out"].as_u64().unwrap_or_default(),
        places: places
            .map(|place| Fault {
                place: text(&place["place"]),
                why: text(&place["why"]),
            })
            .collect(),
    })
}

/// A backup that the service makes which has the directory.
pub(super) fn asked_of(holder: &Holder, data: &Path, target: &Path) -> Result<Manifest, Failure> {
    let (client, token) = service_of(holder, data, "back up")?;
    let what = "back up the running service";
    let path = || vec!["store".to_owned(), "backup".to_owned()];
    let body = Body::default().with("to", &Some(target));
    client.send(Request::post(what, path(), &body).admin_token(token))?;
    let bar = bar("backing up", Unit::Tasks);
    loop {
        thread::sleep(ASK_EVERY);
        let answer = client.send(Request::get(what, path()).admin_token(token))?;
        let status = &answer.value;
        bar.set_length(status["tasks_total"].as_u64().unwrap_or_default());
        bar.set_position(status["tasks"].as_u64().unwrap_or_default());
        match status["state"].as_str() {
            Some("running") => {}
            Some("done") => {
                bar.finish_and_clear();
                return Manifest::read(target).map_err(|error| explained("back up", data, error));
            }
            _ => {
                bar.finish_and_clear();
                let why = status["problem"].as_str().unwrap_or("it does not say why");
                let told = format!("the service could not make the backup: {why}");
                return Err(Failure::new(told).then("its log says more"));
            }
        }
    }
}
