//! What holds a shard's tasks back: topics that are paused, and the end of the service.

use std::sync::Arc;

use crate::clock::Now;
use crate::ids::TaskId;
use crate::shard::core::{Armed, Effect, ShardCore};
use crate::shard::place::alarms_of;
use crate::task::event::Event;
use crate::task::model::State;
use crate::task::topic::{Thaw, TopicBook};

impl ShardCore {
    /// Takes the topics as they are now. What a held topic had armed is handed back; what a topic that goes on
    /// had held back comes due.
    pub fn set_book(&mut self, book: Arc<TopicBook>, now: Now) {
        if book.edition() < self.book.edition() {
            return;
        }
        let before = std::mem::replace(&mut self.book, book);
        let armed: Vec<Armed> = self
            .armed_wall
            .iter()
            .chain(&self.armed_steady)
            .copied()
            .collect();
        for armed in armed {
            let topic = self
                .table
                .awake(armed.task)
                .map(|entry| entry.task.topic.clone());
            if topic.is_some_and(|topic| self.book.get(&topic).is_held()) {
                self.hand_back(armed.task, "topic", now);
            }
        }
        let mut released = Vec::new();
        let mut ready = Vec::new();
        let mut overtime = Vec::new();
        for line in self.table.topics_mut() {
            if !self.book.get(&line.name).is_held() {
                if before.get(&line.name).is_held() {
                    line.released = Some(now.steady);
                }
                overtime.append(&mut line.overtime);
                released.extend(std::mem::take(&mut line.held).into_iter().map(|(_, id)| id));
                ready.push(Effect::Ready(line.name.clone(), line.ready.len()));
            }
        }
        for id in released {
            self.back_to_wheel(id);
        }
        for id in overtime {
            let Some(entry) = self.table.read(id) else {
                continue;
            };
            // One that has ended meanwhile has its alarm, or needs none yet.
            if !entry.task.state.is_ended() {
                for alarm in alarms_of(&entry.task, entry.place).into_iter().flatten() {
                    self.wheels.set(alarm);
                }
                self.table.set_alarmed(id, true);
            }
        }
        self.effects.extend(
            ready
                .into_iter()
                .filter(|effect| !matches!(effect, Effect::Ready(_, 0))),
        );
    }

    /// Moves a waiting task by the time its topic was frozen, once per thaw.
    pub fn thaw(&mut self, id: TaskId, thaw: Thaw, now: Now) {
        let ended = self.table.row(id).is_none_or(|row| row.state.is_ended());
        if !ended {
            let event = Event::Thawed {
                thaw: thaw.number,
                held: thaw.held,
            };
            let _ = self.change(id, event, "topic", now);
        }
    }

    pub(super) fn hand_back(&mut self, id: TaskId, by: &str, now: Now) {
        self.armed_wall.retain(|armed| armed.task != id);
        self.armed_steady.retain(|armed| armed.task != id);
        let was_started = self
            .table
            .row(id)
            .is_some_and(|row| row.state == State::Running);
        let _ = self.change(id, Event::HandedBack { was_started }, by, now);
    }

    /// Begins the shutdown: nothing starts any more, and what has not started is handed back. Answers how many
    /// attempts still run.
    pub fn drain(&mut self, now: Now) -> usize {
        self.draining = true;
        for armed in self
            .armed_wall
            .iter()
            .chain(&self.armed_steady)
            .copied()
            .collect::<Vec<_>>()
        {
            self.hand_back(armed.task, "shutdown", now);
        }
        self.slots.taken().count()
    }

    /// Ends the shutdown: what still runs is cut off and handed back.
    pub fn give_up_running(&mut self, now: Now) {
        for id in self.slots.taken().collect::<Vec<_>>() {
            self.hand_back(id, "shutdown", now);
        }
    }

    /// Attempts that executors of ours run.
    pub fn in_flight(&self) -> usize {
        self.slots.taken().count()
    }
}
