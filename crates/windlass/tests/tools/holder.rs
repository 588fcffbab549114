//! A holder of the data directory that allows every write.

use crate::support::{Process, Project, until};
use std::process::{Command, Stdio};
use std::sync::Arc;
use windlass::api::Caller;
use windlass::app::{App, Settings};
use windlass::home::Home;
use windlass::outside::Local;
use windlass::store::Embedded;
use windlass_core::command::Command as Asked;
use windlass_core::effect::Effect;
use windlass_core::event::PolicyDecided;
use windlass_core::policy::{BUILTIN, Risk, Scope, Verdict, scope};
use windlass_core::run::Actor;
use windlass_engine::port::{Fault, Outside};
use windlass_engine::{Handle, Released};

/// Names the data directory of a holder.
const HOLDER: &str = "WL_TEST_HOLDER";

/// Everything outside, but for policy: that says yes.
struct Permissive {
    local: Arc<Local>,
    engine: Handle<Embedded>,
}

impl Outside for Permissive {
    fn start(&self, released: Released) {
        let Released::Effect(Effect::EvaluatePolicy { run, step, tool, action, action_hash, approvals }) =
            released
        else {
            return self.local.start(released);
        };
        let decided = PolicyDecided {
            pipeline_id: run,
            step: (scope(tool.as_str()) == Scope::PerStep).then_some(step),
            tool,
            verdict: Verdict::Allow,
            policy_version: BUILTIN,
            action_hash,
            approvals,
            rules: vec!["test".to_owned()],
            reasons: Vec::new(),
            risk: action.map_or(Risk::Low, |action| action.risk),
            tier: None,
            count: None,
            two_person: None,
            approvers: None,
            expires_ms: None,
        };
        self.engine.report(Actor::SYSTEM, Asked::PolicyDecided(Box::new(decided)));
    }

    fn fatal(&self, fault: &Fault) {
        self.local.fatal(fault);
    }
}

/// The holder itself. As a test of its own it does nothing; started with a directory it serves until it is killed.
#[test]
fn serve() {
    let Some(root) = std::env::var_os(HOLDER) else { return };
    let home = Home::make(root.as_ref()).unwrap();
    let exe = env!("CARGO_BIN_EXE_windlass");
    let between = Box::new(|local, engine| Arc::new(Permissive { local, engine }) as Arc<dyn Outside>);
    let settings = Settings { executes: true, ..Settings::default() };
    let app = App::start_behind(home.clone(), exe.as_ref(), settings, between).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let listener = home.bind().unwrap();
        let router = windlass::server::for_caller(app, Caller::owner("tester"));
        axum::serve(listener, router).await.unwrap();
    });
}

/// Starts a holder of a project's data directory, and waits until it answers.
pub(crate) fn hold(project: &Project) -> Process {
    let mut command: Command = project.command(&[]);
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", "holder::serve", "--nocapture"]).current_dir(project.root()).env_clear();
    own.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    own.env(HOLDER, project.path("data")).env("WINDLASS_PROBE_WAIT", "200ms").stdin(Stdio::null());
    command = own;
    let process = Process::spawn(command, &["holder"]);
    let socket = project.path("data/windlass.sock");
    until("the holder's socket", || std::os::unix::net::UnixStream::connect(&socket).ok());
    process
}
