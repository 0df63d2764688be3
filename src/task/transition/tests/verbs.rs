//! Every event in every state: the table of the API, and that of what happens inside.

use super::*;

/// One row per event, one column per state. `leased` is `running` as a worker's, `running` as an executor's.
///
/// ```text
///  409     refused in this state          word    changed, and now in that state
///  stale   refused: not the token         word!   the same, and the attempt is to be stopped
///  =       taken, nothing to change       ~word   changed in memory only
///  gone    the record is to go                   again  refused: worked out for what it is not any more
/// ```
const TABLE: &str = "
                 | pending    retrying   dispatched  running     leased      paused     succeeded  dead       cancelled
 cancel          | cancelled  cancelled  cancelled!  cancelled!  cancelled!  cancelled  =          409        =
 pause           | paused     paused     409         409         409         =          409        409        409
 resume          | =          =          409         409         409         pending    409        409        409
 reschedule      | pending    pending    409         409         409         paused     409        409        409
 extend          | pending    pending    409         409         409         paused     409        409        409
 run-now         | pending    pending    409         409         409         409        409        409        409
 complete        | succeeded  succeeded  succeeded!  succeeded!  succeeded!  succeeded  409        409        409
 complete token  | stale      stale      succeeded!  succeeded!  succeeded!  stale      409        409        409
 complete other  | stale      stale      stale       stale       stale       stale      409        409        409
 fail            | dead       dead       dead!       dead!       dead!       dead       409        409        409
 replay          | 409        409        409         409         409         409        409        pending    409
 resolve done    | 409        409        409         409         409         409        409        succeeded  409
 resolve failed  | 409        409        409         409         409         409        409        dead       409
 discard         | 409        409        409         409         409         409        409        gone       409
 replace         | pending    pending    409         409         409         pending    409        409        409
 amend           | pending    retrying   409         409         409         paused     409        409        409
 amend late      | again      again      409         409         409         again      409        409        409

 due             | dispatched dispatched 409         409         409         409        409        409        409
 come due        | ~pending   ~retrying  409         409         409         409        409        409        409
 start           | 409        409        ~running    409         409         409        409        409        409
 lease           | running    running    409         409         409         409        409        409        409
 heartbeat       | stale      stale      ~dispatched ~running    ~running    stale      stale      stale      stale
 heartbeat other | stale      stale      stale       stale       stale       stale      stale      stale      stale
 snooze          | stale      stale      retrying    retrying    retrying    stale      stale      stale      stale
 snooze other    | stale      stale      stale       stale       stale       stale      stale      stale      stale
 succeed         | stale      stale      succeeded   succeeded   succeeded   stale      stale      stale      stale
 succeed other   | stale      stale      stale       stale       stale       stale      stale      stale      stale
 break           | stale      stale      retrying    retrying    retrying    stale      stale      stale      stale
 refuse          | stale      stale      dead        dead        dead        stale      stale      stale      stale
 give back       | stale      stale      retrying    retrying    retrying    stale      stale      stale      stale
 overdue         | stale      stale      retrying!   retrying!   retrying    stale      stale      stale      stale
 overdue other   | stale      stale      stale       stale       stale       stale      stale      stale      stale
 total time      | dead       dead       dead!       dead!       dead!       =          =          =          =
 recover         | =          =          retrying    retrying    ~running    =          =          =          =
 hand back       | 409        409        retrying!   retrying!   retrying!   409        409        409        409
 hand back new   | 409        409        pending!    pending!    pending!   409        409        409        409
 thaw            | pending    retrying   dispatched  running     running     paused     succeeded  dead       cancelled
 thaw again      | =          =          =           =           =           =          =          =          =
";

/// A task that came into its state by what really leads there. Its total time is over, though nobody has said so
/// to it yet, whenever `late`.
fn life_in(column: &str, late: bool) -> Life {
    let task = if late {
        task().total(DurationMs(0))
    } else {
        task()
    };
    let push = Life::of(task.clone().push());
    let pull = Life::of(task);
    let life = match column {
        "pending" => push,
        "dispatched" => push.then(due()),
        "running" => push.then(due()).then(Event::Started),
        "leased" => pull.then(leased()),
        "retrying" if late => push
            .then(due())
            .then(Event::HandedBack { was_started: true }),
        "retrying" => push
            .then(due())
            .then(finished(AttemptToken(1), failed("http_503"))),
        "paused" => push.then(pause(PauseClock::Keep)),
        "succeeded" => push
            .then(due())
            .then(finished(AttemptToken(1), succeeded())),
        "dead" => push.then(due()).then(fail()),
        "cancelled" => push.then(due()).then(cancel()),
        other => panic!("no such column: {other}"),
    };
    let expected = if column == "leased" {
        "running"
    } else {
        column
    };
    assert_eq!(life.task.state.name(), expected);
    life
}

fn event_of(row: &str, life: &mut Life) -> Event {
    let now = life.now();
    let token = life.task.token;
    let other = AttemptToken(token.0 + 1);
    let refused = Outcome::Failed(Failure {
        retryable: false,
        ..failure("http_422")
    });
    let thawed = Event::Thawed {
        thaw: 3,
        held: minutes(10),
    };
    match row {
        "cancel" => cancel(),
        "pause" => pause(PauseClock::Freeze),
        "resume" => Event::Resume,
        "reschedule" => reschedule(Due::after(minutes(5), now)),
        "extend" => extend(minutes(5)),
        "run-now" => Event::RunNow,
        "complete" => complete(None),
        "complete token" => complete(Some(token)),
        "complete other" => complete(Some(other)),
        "fail" => fail(),
        "replay" => Event::Replay,
        "resolve done" => resolve(true),
        "resolve failed" => resolve(false),
        "discard" => Event::Discard,
        "replace" => Event::Replace {
            spec: task().spec(),
            due: Due::after(minutes(5), now),
        },
        "amend" => Event::Amend {
            spec: task().spec(),
            due: Some(Due::after(minutes(5), now)),
            at_stage: life.task.at_stage,
            changes_seen: life.task.changes.total,
        },
        "amend late" => Event::Amend {
            spec: task().spec(),
            due: None,
            at_stage: life.task.at_stage,
            changes_seen: life.task.changes.total + 1,
        },
        "due" => due(),
        "come due" => Event::CameDue,
        "start" => Event::Started,
        "lease" => leased(),
        "heartbeat" => heartbeat(token),
        "heartbeat other" => heartbeat(other),
        "snooze" => Event::Snoozed {
            token,
            delay: minutes(5),
        },
        "snooze other" => Event::Snoozed {
            token: other,
            delay: minutes(5),
        },
        "succeed" => finished(token, succeeded()),
        "succeed other" => finished(other, succeeded()),
        "break" => finished(token, failed("http_503")),
        "refuse" => finished(token, refused),
        "give back" => finished(token, Outcome::GivenBack),
        "overdue" => Event::Overdue { token },
        "overdue other" => Event::Overdue { token: other },
        "total time" => Event::TotalTimeOver,
        "recover" => Event::Recovered,
        "hand back" => Event::HandedBack { was_started: true },
        "hand back new" => Event::HandedBack { was_started: false },
        "thaw" => thawed,
        "thaw again" => {
            life.must(thawed.clone());
            thawed
        }
        other => panic!("no such row: {other}"),
    }
}

fn cell(life: &mut Life, event: Event) -> String {
    let (before, verb) = (life.task.clone(), event.verb());
    let done = life.apply(event);
    let state = life.task.state.name();
    let written = life.task.changes.total - before.changes.total;
    match done {
        Err(Refusal::IllegalState { state, verb: named }) => {
            assert_eq!((state, named), (before.state, verb));
            "409".to_owned()
        }
        Err(Refusal::StaleToken { .. }) => "stale".to_owned(),
        Err(Refusal::ChangedMeanwhile) => "again".to_owned(),
        Ok(Applied::Unchanged) => "=".to_owned(),
        Ok(Applied::InMemory) => {
            assert_eq!(written, 0, "what is not written is not logged");
            assert_eq!(life.task.updated_at, before.updated_at);
            format!("~{state}")
        }
        Ok(Applied::Changed) => state.to_owned(),
        Ok(Applied::ChangedAndStop(token)) => {
            assert_eq!(
                token, before.token,
                "the attempt to stop is the one that was out"
            );
            format!("{state}!")
        }
        Ok(Applied::Gone) => "gone".to_owned(),
    }
}

#[test]
fn every_event_does_in_every_state_what_the_table_says() {
    let mut rows = TABLE.lines().filter_map(|line| line.split_once('|'));
    let columns: Vec<&str> = rows.next().unwrap().1.split_whitespace().collect();
    let states: Vec<&str> = columns
        .iter()
        .copied()
        .filter(|column| *column != "leased")
        .collect();
    assert!(
        State::ALL
            .iter()
            .all(|state| states.contains(&state.name()))
    );

    let mut wrong = Vec::new();
    for (row, cells) in rows {
        let row = row.trim();
        let cells: Vec<&str> = cells.split_whitespace().collect();
        assert_eq!(cells.len(), columns.len(), "{row}");
        for (column, expected) in columns.iter().zip(cells) {
            let mut life = life_in(column, row == "total time");
            let event = event_of(row, &mut life);
            let found = cell(&mut life, event);
            if found != expected {
                wrong.push(format!(
                    "{row} of a {column} task: {found} instead of {expected}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_due_task_without_an_action_ends_as_succeeded_in_one_step() {
    let mut life = Life::of(task().action(Action::None).due_in_minutes(1));
    life.wait(minutes(1));
    life.wait(DurationMs(7));
    assert_eq!(life.must(due()), Applied::Changed);
    assert_eq!(life.task.state, State::Succeeded);
    assert_eq!((life.task.attempts, life.task.token), (0, AttemptToken(0)));
    assert_eq!(life.task.lateness_ms, Some(7));
}

#[test]
fn a_task_remembers_how_it_was_created() {
    let life = Life::of(task().topic("orders").key("order-42").due_in_minutes(30));
    assert_eq!(life.task.state, State::Pending);
    assert_eq!(life.task.topic.as_str(), "orders");
    assert_eq!(life.task.key.as_ref().unwrap().as_str(), "order-42");
    assert_eq!(life.task.generation, 1);
    assert_eq!(life.task.due.at, START.after(minutes(30)));
    assert_eq!(life.task.next, life.task.due);
    let first = &life.task.changes.kept[0];
    assert_eq!(
        (first.from, first.to, first.at),
        (None, State::Pending, START)
    );
}

#[test]
fn only_the_token_of_the_cancelled_attempt_learns_of_the_cancel() {
    let mut life = Life::of(task()).then(leased()).then(cancel());
    let given = life.task.token;
    for (given, cancelled) in [(given, true), (AttemptToken(given.0 + 1), false)] {
        let refusal = life.apply(heartbeat(given));
        assert_eq!(refusal, Err(Refusal::StaleToken { given, cancelled }));
    }
}

#[test]
fn records_of_ended_tasks_are_kept_as_long_as_their_state_says() {
    let days = |count: u64| DurationMs::secs(count * 24 * 3600);
    for (column, kept) in [("succeeded", 7), ("cancelled", 7), ("dead", 30)] {
        let life = life_in(column, false);
        assert_eq!(life.task.ended_at, Some(START));
        assert_eq!(
            life.task.expires,
            Some(SteadyMs(START.0).after(days(kept))),
            "{column}"
        );
    }
}
