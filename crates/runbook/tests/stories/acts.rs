//! What can be done in a story: each verb as the command that a person, an executor or the outside would send.

use crate::names::span;
use crate::script::{Words, value};
use crate::stage::{LEASE_TTL, LOCAL, Stage, name, person, scoped};
use serde_json::{Value, json};
use windlass_core::attempt::Report;
use windlass_core::budget::{Amount, Cost, Total};
use windlass_core::caps::Caps;
use windlass_core::digest::Digest;
use windlass_core::event::{CheckpointSaved, Custom};
use windlass_core::guard::{CommandResult, FileInfo, GuardInputs};
use windlass_core::id::{AgentId, ApprovalId, Holder, NoticeId, ReceiptId, RunId, SessionId, StepId};
use windlass_core::policy::Verdict;
use windlass_core::receipt::{Outcome, Reversal};
use windlass_core::run::{Actor, Initiator, Source, Trigger};
use windlass_core::step::{Failure, Resolution, Step};
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Arrival, Claim, Command, Create, Deploy, Receipted, Signal, Undo};
use windlass_core::{approval, idempotency, schedule, small, task};

/// A story under way: the stage, and the runbook that it is about.
pub struct Play {
    pub stage: Stage,
    book: Digest,
}

impl Play {
    pub fn new() -> Play {
        Play { stage: Stage::new(), book: Digest([0; 32]) }
    }

    /// Does what a line says.
    pub fn act(&mut self, line: &str, block: &[String]) {
        let mut words = Words::new(line);
        let verb = words.next();
        match verb.as_str() {
            "runbook" => self.runbook(block),
            "deploy" => self.deploy(),
            "start" | "lease" | "done" | "fail" | "stopped" | "lost" | "returned" | "deferred"
            | "checkpoint" | "cost" | "beat" | "agent" => self.work(&verb, &mut words),
            "policy" | "approve" | "reject" | "void" | "guard" | "resolve" | "raise" | "caps" => {
                self.govern(&verb, &mut words);
            }
            "cancel" | "suspend" | "resume" | "retry" | "fork" | "undo" => self.steer(&verb, &mut words),
            "signal" | "deliver" | "refer" | "emit" => self.hear(&verb, &mut words),
            "acquire" | "release" | "hold" | "break" => self.coordinate(&verb, &mut words),
            "push" | "take" | "item" | "queue" | "worker" | "listed" | "took" | "schedule" => {
                self.queues(&verb, &mut words);
            }
            "wait" => self.stage.wait(span(&words.next())),
            "crash" => {
                let down = words.option("down").map_or(Span::ZERO, |down| span(&down));
                self.stage.crash(down);
            }
            "show" => {
                let run = self.run(&words.next());
                let told = self.stage.state.run(run).map(|run| self.stage.summary(run));
                self.stage.say(&told.unwrap_or_else(|| "there is no such run".to_owned()));
            }
            other => panic!("`{other}` is nothing that can be done"),
        }
        words.done();
        // The engine looks at what is due in every turn.
        self.stage.wait(Span::ZERO);
        self.stage.check();
    }

    fn runbook(&mut self, block: &[String]) {
        let text = block.join("\n") + "\n";
        let loaded = windlass_runbook::parse("story.yaml", &text, &(), &windlass_runbook::Described::NONE)
            .unwrap_or_else(|p| panic!("{p}"));
        self.book = loaded.hash;
        let (hash, tenant) = (loaded.hash, name("default"));
        let called = format!("book-{}", loaded.runbook.name);
        let other = self.stage.names.full(&called).is_some_and(|known| known != hash.to_string());
        self.stage.names.call(&hash.to_string(), &if other { format!("{called}-2") } else { called });
        let runbook = Box::new(loaded.runbook);
        let load = Command::Load { hash, tenant: tenant.clone(), runbook, source: None };
        let mark = self.stage.out.len();
        self.stage.ask(&Actor::SYSTEM, &load);
        self.stage.ask(&Actor::SYSTEM, &Command::Declare { tenant, namespace: name("default"), hash });
        assert!(
            !self.stage.out[mark..].iter().any(|line| line.starts_with("= refused")),
            "the runbook is refused"
        );
    }

    fn deploy(&mut self) {
        let hash = self.book;
        let runbook = self.runbook_of(hash);
        let mut next = small::Map::new();
        for (key, def) in &runbook.schedules {
            let settings = schedule::Settings {
                spec: def.spec.clone(),
                timezone: def.timezone.clone(),
                jitter: def.jitter,
                catch_up: def.catch_up,
                overlap: def.overlap,
                pipeline: def.pipeline.clone(),
                runbook_hash: hash,
                vars: Value::Null,
                project_root: String::new(),
            };
            let first = windlass_runbook::cron::first(&scoped(key.as_str()), &settings, self.stage.at);
            next.extend(first.expect("a checked schedule has slots").map(|at| (key.clone(), at)));
        }
        let deployment = scoped(runbook.name.as_str());
        let deploy = Deploy { deployment, hash, project_root: String::new(), next };
        self.stage.ask(&person(None), &Command::Deploy(Box::new(deploy)));
    }

    fn runbook_of(&self, hash: Digest) -> windlass_core::runbook::Runbook {
        match self.stage.state.stream(&StreamId::Runbook(hash)).map(|stream| &stream.body) {
            Some(windlass_core::turn::state::Body::Runbook(runbook)) => (**runbook).clone(),
            _ => panic!("the story has no runbook yet"),
        }
    }

    pub fn full(&self, told: &str) -> String {
        let full = self.stage.names.full(told);
        full.unwrap_or_else(|| panic!("the story has told of no `{told}`")).to_owned()
    }

    pub fn run(&self, told: &str) -> RunId {
        RunId::parse(&self.full(told)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A step, as `R1/build` names it.
    pub fn place(&self, told: &str) -> (RunId, StepId) {
        let (run, step) = told.split_once('/').unwrap_or_else(|| panic!("`{told}` is no step of a run"));
        (self.run(run), name(step))
    }

    /// A step that the run has reached.
    fn step(&self, run: RunId, step: &StepId) -> Option<&Step> {
        self.stage.state.run(run).and_then(|run| run.step(step))
    }

    fn create(&mut self, pipeline: &str, words: &mut Words) -> (Create, Actor) {
        let by = words.option("by");
        let vars = words.option("vars").map_or(json!({}), |vars| value(&vars));
        let policy = match words.option("policy").as_deref() {
            None | Some("allow") => vec![self.stage.shell(Verdict::Allow)],
            Some("deny") => vec![self.stage.shell(Verdict::Deny)],
            Some("ask") => vec![self.stage.shell(Verdict::NeedsApproval)],
            Some("silent") => Vec::new(),
            Some(other) => panic!("policy does not say {other}"),
        };
        let needs = words.option("needs").into_iter().map(|run| self.run(&run)).collect();
        let create = Create {
            id: RunId(self.stage.id()),
            tenant: name("default"),
            namespace: name("default"),
            runbook: self.book,
            pipeline: name(pipeline),
            name: name(pipeline),
            cwd: String::new(),
            vars,
            trigger: Trigger {
                source: Source::Cli,
                key: None,
                user: Some(name(by.as_deref().unwrap_or("ann"))),
                event_id: None,
                traceparent: None,
                of: None,
            },
            subject: None,
            correlation_id: None,
            priority: 0,
            needs,
            parent: None,
            depth: 0,
            deadline_at: None,
            workspace: None,
            policy,
            takes_back: None,
        };
        (create, person(by.as_deref()))
    }

    /// Runs, executors and their reports.
    fn work(&mut self, verb: &str, words: &mut Words) {
        if verb == "start" {
            let (create, by) = self.create(&words.next(), words);
            self.stage.ask(&by, &Command::Create(Box::new(create)));
            return;
        }
        let (run, step) = self.place(&words.next());
        let owner = words.option("by").unwrap_or_else(|| LOCAL.to_owned());
        let by = Actor::new(Initiator::Executor, &owner);
        let known = self.step(run, &step);
        let writes = known.is_some_and(Step::writes);
        let current = known.map_or(0, |step| step.epoch);
        let epoch = words.option("epoch").map_or(current, |epoch| epoch.parse().expect("an epoch"));
        match verb {
            "lease" => {
                let agent = words.option("agent").map(|_| AgentId(self.stage.id()));
                let usd_micros = words.option("usd").map_or(0, |usd| micros(&usd));
                let reserve = Amount { usd_micros, ..Amount::default() };
                let lease = Command::Lease { run, step: step.clone(), owner: name(&owner), agent, reserve };
                self.stage.ask(&by, &lease);
                let leased = self.step(run, &step).filter(|step| step.is_executing()).map(|step| step.epoch);
                if let Some(epoch) = leased.filter(|_| owner != LOCAL) {
                    let at = self.stage.at;
                    self.stage.elsewhere.insert((run, step, epoch), (at + LEASE_TTL, at));
                }
            }
            "beat" => {
                let at = self.stage.at;
                self.stage.state.beat(Holder::Step(run, step.clone()), at);
                self.stage.elsewhere.insert((run, step, epoch), (at + LEASE_TTL, at));
            }
            "checkpoint" => {
                let saved = CheckpointSaved {
                    pipeline_id: run,
                    step: Some(step),
                    epoch: Some(epoch),
                    resumable: words.takes("resumable"),
                    idempotent: words.takes("idempotent"),
                    tokens_input: None,
                    tokens_output: None,
                    message: None,
                    data: words.option("data").map(|data| value(&data).into()),
                };
                self.stage.ask(&by, &Command::Checkpoint(Box::new(saved)));
            }
            "cost" => {
                let usd_micros = words.option("usd").map_or(0, |usd| micros(&usd));
                let total = Total { usd_micros, ..Total::default() };
                let costs = vec![Cost { provider: name("anthropic"), model: name("opus"), total }];
                self.stage.ask(&by, &Command::Cost { run, step, epoch, costs });
            }
            "agent" => {
                let input = self.agent(words, epoch);
                self.stage.ask(&by, &Command::Task { run, step, input });
            }
            report => {
                let report = report_of(report, words);
                let receipt = self.receipt(words, writes, &report).map(Box::new);
                self.stage.ask(&by, &Command::Report { run, step, epoch, report, receipt });
            }
        }
    }

    fn agent(&mut self, words: &mut Words, epoch: u64) -> task::Input {
        let message = words.option("message");
        match words.next().as_str() {
            "starts" => task::Input::Start { session: SessionId(self.stage.id()), epoch },
            "works" => task::Input::Heartbeat { epoch, activity: task::Activity::Active },
            "idles" => {
                let activity = task::Activity::Idle(span(&words.option("for").expect("for=2m")));
                task::Input::Heartbeat { epoch, activity }
            }
            "dies" => task::Input::Heartbeat { epoch, activity: task::Activity::SessionDead },
            "restarts" => task::Input::Recover { epoch, action: task::Recovery::Restart },
            "completes" => {
                let notice = NoticeId(self.stage.id());
                task::Input::Signal { epoch, kind: task::SignalKind::Complete, message, notice }
            }
            "escalates" => {
                let notice = NoticeId(self.stage.id());
                task::Input::Signal { epoch, kind: task::SignalKind::Escalate, message, notice }
            }
            other => panic!("an agent does not {other}"),
        }
    }

    /// What an executor brings with its report of a write; `receipt=none` where it cannot say whether it happened.
    fn receipt(&mut self, words: &mut Words, writes: bool, report: &Report) -> Option<Receipted> {
        let succeeded = matches!(report, Report::Done { .. });
        let status = match words.option("receipt").as_deref() {
            Some("none") => return None,
            Some("succeeded") => Outcome::Succeeded,
            Some("failed") => Outcome::Failed,
            None if writes && succeeded => Outcome::Succeeded,
            None if writes && matches!(report, Report::Failed { .. } | Report::Deferred { .. }) => {
                Outcome::Failed
            }
            None => return None,
            Some(other) => panic!("a receipt does not say {other}"),
        };
        let response = match report {
            Report::Done { output, .. } => output.clone(),
            _ => None,
        };
        let reverse = Reversal {
            tool: name("servicenow.update"),
            operation: name("update"),
            target: name("incident/1"),
            fields: Value::Null,
        };
        let (id, reverse) = (ReceiptId(self.stage.id()), Some(reverse));
        Some(Receipted { id, status, reversible: true, reverse, request: None, response })
    }

    /// Policy, humans and guards.
    fn govern(&mut self, verb: &str, words: &mut Words) {
        let by = words.option("by");
        match verb {
            "policy" => return self.policy(words),
            "caps" => {
                let mut number =
                    |key: &str| words.option(key).map(|text| text.parse::<u32>().expect("a number"));
                let caps = Caps {
                    max_concurrency: number("concurrency"),
                    max_runs_per_min: number("runs_per_min"),
                    max_writes_per_run: number("writes"),
                    ..Caps::default()
                };
                let self_approval = words.option("self").map(|allowed| allowed == "allowed");
                let (tenant, notices) = (name("default"), Vec::new());
                let configure = Command::Tenant { tenant, caps, weight: 1, self_approval, notices };
                self.stage.ask(&Actor::SYSTEM, &configure);
                return;
            }
            "raise" => {
                let run = self.run(&words.next());
                let usd_micros = micros(&words.option("usd").expect("usd=…"));
                let to = Amount { usd_micros, ..Amount::default() };
                self.stage.ask(&person(by.as_deref()), &Command::Raise { run, to });
                return;
            }
            _ => {}
        }
        let (run, step) = self.place(&words.next());
        match verb {
            "guard" => {
                let inputs = Box::new(guard_inputs(words));
                self.stage.ask(&Actor::SYSTEM, &Command::Guarded { run, step, inputs });
            }
            "resolve" => {
                let word = words.next();
                let resolution =
                    Resolution::parse(&word).unwrap_or_else(|| panic!("no resolution is {word}"));
                let probed = words.takes("probed");
                let output = words.option("output").map(|output| value(&output));
                let reason = words.option("reason");
                let resolve = Command::Resolve { run, step, resolution, probed, reason, output };
                let by = if probed { Actor::SYSTEM } else { person(by.as_deref()) };
                self.stage.ask(&by, &resolve);
            }
            _ => self.decide(verb, (run, step), by.as_deref(), words),
        }
    }

    fn policy(&mut self, words: &mut Words) {
        if let Some(version) = words.option("version") {
            self.stage.policy = Digest::of(&[version.as_bytes()]);
            let hash = self.stage.policy.to_string();
            return self.stage.names.call(&hash, &version);
        }
        if words.takes("silent") {
            self.stage.allows = false;
            return;
        }
        let (run, step) = self.place(&words.next());
        let word = words.next();
        let verdict = match word.as_str() {
            "allows" => Verdict::Allow,
            "denies" => Verdict::Deny,
            "asks" => Verdict::NeedsApproval,
            other => panic!("policy does not {other}"),
        };
        let mut decided = self.stage.decided(run, &step, verdict);
        decided.two_person = words.takes("two_person").then_some(true);
        decided.count = words.option("count").map(|count| count.parse().expect("a number"));
        decided.expires_ms = words.option("expires").map(|expires| span(&expires).0);
        decided.approvers = words.option("approvers").map(|group| vec![name(&group)]);
        decided.reasons.extend(words.option("reason"));
        self.stage.ask(&Actor::SYSTEM, &Command::PolicyDecided(Box::new(decided)));
    }

    fn decide(&mut self, verb: &str, (run, step): (RunId, StepId), by: Option<&str>, words: &mut Words) {
        let which = words.option("approval").map(|told| self.full(&told));
        let known = self.stage.state.run(run).expect("a run").rare();
        let of = |open: &&approval::Approval| match &which {
            Some(id) => open.id.to_string() == *id,
            None => open.step == step,
        };
        // The newest one of the step: an older one was settled or is void.
        let open =
            known.approvals.values().rfind(of).unwrap_or_else(|| panic!("nobody asks about {step}")).clone();
        let input = if verb == "void" {
            approval::Input::Void { reason: words.option("reason").expect("reason=…") }
        } else {
            let decision =
                if verb == "approve" { approval::Verdict::Approved } else { approval::Verdict::Rejected };
            let seen = words.option("seen").map(|hash| Digest::parse(&self.full(&hash)).expect("a hash"));
            approval::Input::Decide(approval::Attempt {
                decision,
                by: name(by.unwrap_or("bob")),
                human: !words.takes("program"),
                groups: words.option("groups").map(|group| name(&group)).into_iter().collect(),
                action_hash: seen.unwrap_or(open.action_hash),
                channel: approval::Channel::Cli,
                reason: words.option("reason"),
                card: None,
            })
        };
        let by = person(Some(by.unwrap_or("bob")));
        self.stage.ask(&by, &Command::Decide { run, approval: ApprovalId(open.id.0), input });
    }

    /// What people do with runs.
    fn steer(&mut self, verb: &str, words: &mut Words) {
        let run = self.run(&words.next());
        if verb == "undo" {
            let pipeline = words.option("with").expect("with=PIPELINE");
            let (create, by) = self.create(&pipeline, words);
            let seen = words.option("seen").map(|run| self.run(&run));
            let undo = Undo { create, runs: vec![Claim { run, path: None, seen }] };
            self.stage.ask(&by, &Command::Undo(Box::new(undo)));
            return;
        }
        let by = person(words.option("by").as_deref());
        let reason = words.option("reason");
        let vars = words.option("vars").map(|vars| value(&vars));
        let user = by.id.clone();
        let command = match verb {
            "cancel" => Command::Cancel { run, initiator: Initiator::User, user, reason },
            "suspend" => Command::Suspend { run, reason },
            "resume" => Command::Resume { run, message: None, vars },
            "retry" => Command::Descend { run, new: RunId(self.stage.id()), from: None, runbook: None },
            _ => {
                let from = words.option("from").map(|step| name(&step));
                Command::Descend { run, new: RunId(self.stage.id()), from, runbook: Some(self.book) }
            }
        };
        self.stage.ask(&by, &command);
    }

    /// Deliveries, signals and events from outside.
    fn hear(&mut self, verb: &str, words: &mut Words) {
        let by = Actor::new(Initiator::Webhook, "hook");
        let data = words.option("data").map_or(Value::Null, |data| value(&data));
        let subject = words.next();
        match verb {
            "signal" => {
                let (key, event_id) =
                    (words.option("key").map(|key| name(&key)), words.option("id").map(|id| name(&id)));
                let command = match words.option("run") {
                    Some(run) => {
                        Command::Signal { run: self.run(&run), name: name(&subject), key, data, event_id }
                    }
                    None => Command::SignalKey(Box::new(Signal {
                        tenant: name("default"),
                        namespace: name("default"),
                        name: name(&subject),
                        key,
                        data,
                        event_id,
                        user: None,
                    })),
                };
                self.stage.ask(&by, &command);
            }
            "refer" => {
                let refer = Command::Key { key: scoped(&subject), input: idempotency::Input::Refer };
                self.stage.ask(&by, &refer);
            }
            "emit" => {
                let (category, action) = subject.split_once(':').expect("category:action");
                let event = Custom {
                    category: name(category),
                    action: name(action),
                    pipeline_id: None,
                    data: data.into(),
                };
                let key = words.option("key").unwrap_or_else(|| format!("event-{}", self.stage.at));
                let arrival = arrival(&key, &subject, Vec::new(), Some(event));
                self.stage.ask(&by, &Command::Arrive(Box::new(arrival)));
            }
            _ => {
                let body = words.option("body").unwrap_or_default();
                let pipeline = words.next();
                let (mut create, _) = self.create(&pipeline, words);
                (create.trigger.source, create.trigger.user) = (Source::Webhook, None);
                self.stage.ask(&by, &Command::Arrive(Box::new(arrival(&subject, &body, vec![create], None))));
            }
        }
    }
}

fn micros(usd: &str) -> u64 {
    // Stories have whole dollars.
    usd.parse::<u64>().expect("dollars") * 1_000_000
}

fn report_of(verb: &str, words: &mut Words) -> Report {
    let mut failure = || {
        let code = words.option("code").unwrap_or_else(|| "STEP_FAILED".to_owned());
        let message = words.option("message").unwrap_or_else(|| "exit status 1".to_owned());
        Failure { code: name(&code), message }
    };
    match verb {
        "done" => {
            let output = words.option("output").map(|output| value(&output));
            Report::Done { output, exit_code: None }
        }
        "fail" => {
            let failure = failure();
            Report::Failed { failure, retryable: words.takes("retryable"), exit_code: None, signal: None }
        }
        "deferred" => {
            Report::Deferred { failure: failure(), after: span(&words.option("after").expect("after=1m")) }
        }
        "stopped" => Report::Stopped,
        "returned" => Report::Returned { reason: words.option("reason") },
        _ => Report::Lost { last_seen: None },
    }
}

/// What the outside gathered: `lock/NAME=free`, `lock/NAME=held`, `command/CMD=ok`, `file/PATH=there`; what is not said is
/// unknown.
fn guard_inputs(words: &mut Words) -> GuardInputs {
    let mut inputs = GuardInputs::default();
    while words.has_more() {
        let word = words.next();
        if word == "unknown" {
            continue;
        }
        let (what, says) = word.split_once('=').expect("KIND/NAME=ANSWER");
        match what.split_once('/').expect("KIND/NAME") {
            ("lock", lock) => {
                let holder = (says == "held").then(|| Holder::Outside(name("ci")));
                inputs.locks.insert(name(lock), holder);
            }
            ("file", path) => {
                let info = FileInfo { exists: says == "there", ..FileInfo::default() };
                inputs.files.insert(path.to_owned(), info);
            }
            ("command", cmd) => {
                inputs.commands.insert(cmd.to_owned(), CommandResult { success: says == "ok" });
            }
            (other, _) => panic!("no guard of this file asks about a {other}"),
        }
    }
    inputs
}

fn arrival(key: &str, body: &str, creates: Vec<Create>, event: Option<Custom>) -> Arrival {
    Arrival {
        key: scoped(key),
        source: idempotency::Source::Hook,
        request_hash: Digest::of(&[body.as_bytes()]),
        creates,
        signals: Vec::new(),
        to: None,
        response: None,
        failure: None,
        event,
        also: Vec::new(),
    }
}
