//! The report as a page: everything an auditor asks for, and nothing that a browser would run.

use crate::outside::{Answer, Request, Server};
use crate::support::{Process, Project, status_of, text, until};
use crate::verify;

const POLICY: &str = "// <img src=x onerror=alert(1)>
@id(\"all\")
permit (principal, action, resource);
@id(\"ask\") @reason(\"<i>writes</i> are asked for\") @approval(\"tier: high, approvers: tester\")
forbid (principal, action == Windlass::Action::\"http\", resource)
unless { context.approvals >= 1 };
";

fn serve(project: &Project) -> Process {
    let mut server = project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    server
}

/// A run with an approved write that was never answered, and that a human settled.
fn story() -> (Project, String) {
    let outside = Server::start(|_: &Request| Answer::Reset);
    let book = format!(
        "# </pre><script>alert('runbook')</script>\nname: hostile\npipelines:\n  p:\n    steps:\n      - {{ id: w, http: {{ url: '{}/x', method: POST, bearer: '${{{{ secrets.TOKEN }}}}', json: {{ a: '<svg onload=alert(2)>' }} }} }}\n",
        outside.url()
    );
    let project = Project::with(&book)
        .env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1")
        .env("WINDLASS_SECRET_TOKEN", "a-token-of-many-letters");
    project.write("policy/all.cedar", POLICY);
    let server = serve(&project);
    project.windlass(&["deploy", "book.yaml"]).code(0);
    let run = project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0).json();
    let run = text(&run, "id").to_owned();
    let approvals = || project.windlass(&["approvals", "--json"]).code(0).json()["items"][0].clone();
    let approval = until("the approval", || Some(approvals()).filter(|asked| asked.is_object()));
    let id = text(&approval, "id");
    project.windlass(&["approve", id, "--hash", &"0".repeat(64)]);
    project.windlass(&["approve", id, "--hash", text(&approval, "action_hash")]).code(0);
    until("an unknown outcome", || {
        Some(project.show(&run)).filter(|run| status_of(run, "w") == "outcome_unknown")
    });
    project.windlass(&["resolve", &run, "w", "done", "--reason", "<b>looked</b>"]).code(0);
    until("the end", || Some(project.show(&run)).filter(|run| run["status"] == "completed"));
    project.windlass(&["evidence", "export", &run, "-o", "bundle.tar"]).code(0);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    drop(server);
    (project, run)
}

#[test]
fn the_page_has_everything_and_runs_nothing() {
    let (project, run) = story();
    let done = verify(&project, &["bundle.tar", "--pubkey", "keys.txt", "--html", "page.html"]).code(0);
    let page = project.read("page.html");
    // Nothing of what was written by others is markup.
    for markup in ["<script", "<img", "<svg", "<i>", "<b>", "</pre><s", "javascript:", "http-equiv=\"refresh"]
    {
        assert!(!page.contains(markup), "{markup} in {page}");
    }
    let csp = "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';";
    assert!(page.contains(csp), "{page}");
    assert!(page.contains("@media print"));
    let wanted = [
        run.as_str(),
        // Origin, runbook and policy in full, with who brought them.
        "Triggered by",
        "# &lt;/pre&gt;&lt;script&gt;alert(&#39;runbook&#39;)&lt;/script&gt;",
        "tester: ",
        "// &lt;img src=x onerror=alert(1)&gt;",
        // The approval as it was shown.
        "&lt;svg onload=alert(2)&gt;",
        "because: &lt;i&gt;writes&lt;/i&gt; are asked for",
        "tier high",
        "approved by tester",
        // The effect, from the decision on.
        "decided: needs_approval",
        "approved: apr_",
        "intended: ",
        "settled without a receipt: ",
        // Exceptions, also where there are none.
        "<td>Overrides</td><td><pre>none</pre>",
        "<td>Effects without an allow</td><td><pre>none</pre>",
        "<td>Refused decisions</td>",
        "because &lt;b&gt;looked&lt;/b&gt;",
        "<td>TOKEN</td><td><pre>from the environment, step w (epoch 1)",
        "What is not proved",
    ];
    for part in wanted {
        assert!(page.contains(part), "`{part}` is not in {page}");
    }
    assert!(!page.contains("a-token-of-many-letters") && !done.out.contains("a-token-of-many-letters"));
}
