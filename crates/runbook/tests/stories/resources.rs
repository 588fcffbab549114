//! What can be done with what runs share: locks, semaphores, queues, workers, schedules.

use crate::acts::Play;
use crate::script::{Words, value};
use crate::stage::{name, person, scoped};
use windlass_core::id::{Holder, ItemId, RunId};
use windlass_core::run::{Actor, Initiator};
use windlass_core::turn::command::{Command, Pushed};
use windlass_core::{item, lock, queue, schedule, semaphore, worker};

impl Play {
    /// Locks and semaphores from outside.
    pub fn coordinate(&mut self, verb: &str, words: &mut Words) {
        let subject = words.next();
        let (kind, subject) = subject.split_once('/').expect("lock/NAME or semaphore/NAME");
        let who = words.option("by").unwrap_or_else(|| "ci".to_owned());
        let (by, holder) = (Actor::new(Initiator::Service, &who), Holder::Outside(name(&who)));
        let epoch = words.option("epoch").map(|epoch| value(&epoch).as_u64().expect("an epoch"));
        let of = words.option("of").map(|step| {
            let (run, step) = self.place(&step);
            Holder::Step(run, step)
        });
        let wait = words.takes("wait");
        let weight = words.option("weight").map_or(1, |weight| weight.parse().expect("a number"));
        let (scoped, give_up_at) = (scoped(subject), None);
        let command = if kind == "lock" {
            let input = match verb {
                "acquire" => lock::Input::Acquire(lock::Ask {
                    holder: holder.clone(),
                    metadata: None,
                    wait,
                    give_up_at,
                }),
                "release" => lock::Input::Release { holder: holder.clone(), epoch },
                "hold" => lock::Input::Heartbeat { holder: holder.clone(), epoch: epoch.expect("epoch=N") },
                _ => lock::Input::Break { epoch },
            };
            Command::Lock { lock: scoped, input }
        } else {
            let input = match verb {
                "acquire" => semaphore::Input::Acquire(semaphore::Ask {
                    holder: holder.clone(),
                    weight,
                    wait,
                    give_up_at,
                }),
                "release" => semaphore::Input::Release { holder: holder.clone(), epoch },
                "hold" => {
                    semaphore::Input::Heartbeat { holder: holder.clone(), epoch: epoch.expect("epoch=N") }
                }
                _ => semaphore::Input::Break { holder: of.unwrap_or(holder.clone()), epoch },
            };
            Command::Semaphore { semaphore: scoped, input }
        };
        let lives = self.stage.ask(&by, &command);
        if lives && matches!(verb, "hold" | "acquire") {
            let at = self.stage.at;
            self.stage.state.beat(holder, at);
        }
    }

    /// Queues, workers and schedules.
    pub fn queues(&mut self, verb: &str, words: &mut Words) {
        let by = person(words.option("by").as_deref());
        let subject = words.next();
        let command = match verb {
            "push" => {
                let item = Pushed {
                    id: ItemId(self.stage.id()),
                    data: value(&words.next()),
                    priority: words
                        .option("priority")
                        .map_or(0, |priority| priority.parse().expect("a number")),
                    not_before: None,
                    dedupe: words.option("key").map(|key| name(&key)),
                    from: None,
                };
                Command::Push { queue: scoped(&subject), item: Box::new(item) }
            }
            "take" => {
                let holder = Holder::Outside(by.id.clone().unwrap_or_else(|| name("ci")));
                Command::Take { queue: scoped(&subject), holder }
            }
            "queue" => {
                let input = match words.next().as_str() {
                    "pause" => queue::Input::Pause,
                    "resume" => queue::Input::Resume,
                    other => panic!("a queue does not {other}"),
                };
                Command::Queue { queue: scoped(&subject), input }
            }
            "item" => {
                let item = ItemId::parse(&self.full(&subject)).expect("an item");
                Command::Item { item, input: item_input(words) }
            }
            "worker" => {
                let input = match words.next().as_str() {
                    "stop" => worker::Input::Stop { reason: words.option("reason") },
                    "resize" => {
                        worker::Input::Resize { concurrency: words.next().parse().expect("a number") }
                    }
                    "wake" => worker::Input::Wake { cause: None },
                    other => panic!("a worker does not {other}"),
                };
                Command::Worker { worker: scoped(&subject), input }
            }
            "listed" => {
                let listed = value(&words.next());
                let mut pushed = Vec::new();
                for item in listed.as_array().expect("a list of items") {
                    let dedupe = item["id"].as_str().map(name);
                    let id = ItemId(self.stage.id());
                    let (data, priority) = (item.clone(), 0);
                    pushed.push(Pushed { id, data, priority, not_before: None, dedupe, from: None });
                }
                let listed = words.option("error").map_or(Ok(pushed), Err);
                Command::Polled { worker: scoped(&subject), listed }
            }
            "took" => {
                let item = ItemId::parse(&self.full(&words.next())).expect("an item");
                let run = self.run(&words.next());
                Command::TookOutside { worker: scoped(&subject), item, run, error: words.option("error") }
            }
            _ => {
                let input = match words.next().as_str() {
                    "run-now" => {
                        schedule::Input::RunNow { run: RunId(self.stage.id()), asked_by: Vec::new() }
                    }
                    "pause" => schedule::Input::Pause,
                    other => panic!("a schedule does not {other}"),
                };
                Command::Schedule { schedule: scoped(&subject), input }
            }
        };
        self.stage.ask(&by, &command);
    }
}

fn item_input(words: &mut Words) -> item::Input {
    let word = words.next();
    let mut epoch = || value(&words.option("epoch").expect("epoch=N")).as_u64().expect("an epoch");
    match word.as_str() {
        "complete" => item::Input::Complete { epoch: epoch() },
        "return" => item::Input::Return { epoch: epoch() },
        "fail" => {
            let (epoch, error) = (epoch(), words.option("error").unwrap_or_else(|| "no".to_owned()));
            item::Input::Fail { epoch, error, retryable: !words.takes("final") }
        }
        "retry" => item::Input::Retry { data: None },
        "drop" => item::Input::Drop { reason: words.option("reason") },
        other => panic!("an item does not {other}"),
    }
}
