//! The handle: how everybody else talks to the loop.

use crate::hold::{HoldAnswer, Leaving};
use crate::port::Fault;
use crate::release::Leave;
use crate::remote::{Client, Watch, Wish};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use windlass_core::code::Code;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{Holder, Scoped};
use windlass_core::policy::Verdict;
use windlass_core::run::Actor;
use windlass_core::turn::command::{Command, Refusal, Reply};
use windlass_core::worker;

/// How many commands may wait for their turn before further ones are refused.
pub const INBOX_MAX: usize = 100_000;

/// What a caller hears.
pub type Answer = Box<dyn FnOnce(Result<Reply, Refusal>) + Send>;
/// What a caller hears who asked for several things: one answer for each, in their order.
pub type Answers = Box<dyn FnOnce(Vec<Result<Reply, Refusal>>) + Send>;
/// Looks at the store and says what to do once everything it saw is durable.
pub type Look<S> = Box<dyn FnOnce(&mut S) -> Box<dyn FnOnce(Result<(), &Fault>) + Send> + Send>;

/// Something for the loop.
pub enum Message<S> {
    /// A command.
    Ask { by: Actor, command: Command, answer: Answer },
    /// What has happened outside. It is not refused for want of room but kept until there is some, and nobody waits for
    /// an answer.
    Report { by: Actor, command: Command },
    /// Several commands, each decided for itself. What a client elsewhere tells of attempts counts for its own only.
    Many { by: Actor, client: Option<Client>, commands: Vec<Command>, answer: Answers },
    /// A look at committed state.
    Read(Look<S>),
    /// An executor elsewhere wants work.
    Wish(Wish),
    /// An executor elsewhere lives and works on these.
    Extend(Watch),
    /// A command about a lock or a semaphore, answered with the grant. One that stands in line is answered when it is
    /// granted or has left. A newer one of the same holder takes the place of an older.
    Hold { by: Actor, command: Command, id: u64, answer: HoldAnswer },
    /// Whoever stood in line is gone.
    Leave(Leaving),
    /// A holder lives.
    Beat(Holder),
    /// How many attempts may run here at once.
    Slots(usize),
    /// Nothing; the loop looks around.
    Nudge,
    /// The loop ends once everything is durable.
    Stop,
}

/// A way to the loop, for any thread.
pub struct Handle<S> {
    inbox: Sender<Message<S>>,
    waiting: Arc<AtomicUsize>,
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Handle { inbox: self.inbox.clone(), waiting: self.waiting.clone() }
    }
}

/// The loop's end of the inbox.
pub struct Inbox<S> {
    pub(crate) receiver: Receiver<Message<S>>,
    waiting: Arc<AtomicUsize>,
}

impl<S> Inbox<S> {
    /// The next message, if one waits.
    pub fn next(&self) -> Option<Message<S>> {
        let message = self.receiver.try_recv().ok()?;
        self.took(&message);
        Some(message)
    }

    /// Notes that a message was taken.
    pub(crate) fn took(&self, message: &Message<S>) {
        let counted = matches!(
            message,
            Message::Ask { .. }
                | Message::Report { .. }
                | Message::Many { .. }
                | Message::Read(_)
                | Message::Hold { .. }
        );
        if counted {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// An inbox and the first handle to it.
#[must_use]
pub fn inbox<S>() -> (Handle<S>, Inbox<S>) {
    let (sender, receiver) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Handle { inbox: sender, waiting: waiting.clone() }, Inbox { receiver, waiting })
}

fn gone() -> Refusal {
    Refusal::new(Code::Unavailable, "the engine is shutting down: try again when it runs")
}

impl<S> Handle<S> {
    /// Sends something that is not counted.
    pub fn tell(&self, message: Message<S>) {
        // A loop that has ended hears nothing, and nobody waits for an answer.
        let _ = self.inbox.send(message);
    }

    /// Asks for something; the answer comes when it is durable.
    pub fn ask(
        &self,
        by: Actor,
        command: Command,
        answer: impl FnOnce(Result<Reply, Refusal>) + Send + 'static,
    ) {
        match self.enter() {
            Ok(()) => self.send(Message::Ask { by, command, answer: Box::new(answer) }),
            Err(refusal) => answer(Err(refusal)),
        }
    }

    /// Asks for several things at once; each is decided for itself, as many in one turn as there is time for. What a client tells of
    /// attempts of others is refused.
    pub fn ask_many(
        &self,
        by: Actor,
        client: Option<Client>,
        commands: Vec<Command>,
        answer: impl FnOnce(Vec<Result<Reply, Refusal>>) + Send + 'static,
    ) {
        match self.enter() {
            Ok(()) => self.send(Message::Many { by, client, commands, answer: Box::new(answer) }),
            Err(refusal) => answer(commands.iter().map(|_| Err(refusal.clone())).collect()),
        }
    }

    /// Asks something of a lock or a semaphore. `id` tells this asker from an older one of the same holder.
    pub fn hold(
        &self,
        by: Actor,
        command: Command,
        id: u64,
        answer: impl FnOnce(Result<crate::hold::Held, Refusal>) + Send + 'static,
    ) {
        match self.enter() {
            Ok(()) => self.send(Message::Hold { by, command, id, answer: Box::new(answer) }),
            Err(refusal) => answer(Err(refusal)),
        }
    }

    /// Takes one of the places of those who wait for their turn.
    fn enter(&self) -> Result<(), Refusal> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < INBOX_MAX {
            return Ok(());
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Err(Refusal::new(Code::Unavailable, "too many commands wait for their turn: try again in a second"))
    }

    /// Reports what has happened: it is not refused because the inbox or the disk is full.
    pub fn report(&self, by: Actor, command: Command) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.send(Message::Report { by, command });
    }

    fn send(&self, message: Message<S>) {
        let Err(returned) = self.inbox.send(message) else { return };
        match returned.0 {
            Message::Ask { answer, .. } => answer(Err(gone())),
            Message::Many { commands, answer, .. } => answer(commands.iter().map(|_| Err(gone())).collect()),
            Message::Hold { answer, .. } => answer(Err(gone())),
            // Whoever waits for one of these hears that nobody will answer when the answer is dropped.
            Message::Report { .. }
            | Message::Read(_)
            | Message::Wish(_)
            | Message::Extend(_)
            | Message::Leave(_)
            | Message::Beat(_)
            | Message::Slots(_)
            | Message::Nudge
            | Message::Stop => {}
        }
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// The refusal, or that the engine has ended.
    pub fn call(&self, by: Actor, command: Command) -> Result<Reply, Refusal> {
        waited(|then| self.ask(by, command, then)).unwrap_or_else(|| Err(gone()))
    }

    /// Puts on record what policy said of a command or a read beside the steps, and waits until that is durable. A yes is
    /// the permission to act once. `worker` is whose it is, where it is an external queue's.
    ///
    /// # Errors
    /// Policy said something else, or what the command was for has ended.
    pub fn permit(&self, decided: PolicyDecided, worker: Option<Scoped>) -> Result<Leave, Refusal> {
        let (verdict, reasons) = (decided.verdict, decided.reasons.join("; "));
        let decided = Box::new(decided);
        self.call(
            Actor::SYSTEM,
            match worker {
                Some(worker) => Command::Worker { worker, input: worker::Input::Decided(decided) },
                None => Command::PolicyDecided(decided),
            },
        )?;
        match verdict {
            Verdict::Allow => Ok(Leave::recorded()),
            Verdict::Deny => Err(Refusal::new(Code::PolicyDenied, reasons)),
            // Nobody is asked beside a step, so there is nobody who could agree.
            Verdict::NeedsApproval => {
                let why = format!("it needs an approval, which only a step can get: {reasons}");
                Err(Refusal::new(Code::PolicyDenied, why))
            }
        }
    }

    /// Looks at the store between two turns; `then` gets what was seen once all of it is durable.
    pub fn read_then<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut S) -> T + Send + 'static,
        then: impl FnOnce(Result<T, Refusal>) + Send + 'static,
    ) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let look: Look<S> = Box::new(move |store| {
            let seen = look(store);
            Box::new(move |durable| {
                then(durable.map(|()| seen).map_err(|fault| Refusal::new(fault.code(), fault.to_string())));
            })
        });
        self.tell(Message::Read(look));
    }

    /// Looks at the store and waits for what was seen.
    ///
    /// # Errors
    /// The engine has ended, or what was seen did not last.
    pub fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        waited(|then| self.read_then(look, then)).unwrap_or_else(|| Err(gone()))
    }
}

/// Asks for something and waits for it. None comes where whoever was asked is gone.
fn waited<T: Send + 'static>(ask: impl FnOnce(Box<dyn FnOnce(T) + Send>)) -> Option<T> {
    // The channel only says that it is over, so there is one kind of it and not one for everything that can be asked.
    let (told, over) = channel::<()>();
    let place = Arc::new(Mutex::new(None));
    let put = place.clone();
    ask(Box::new(move |value| {
        *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        drop(told);
    }));
    let _ = over.recv();
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}
