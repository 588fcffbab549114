"""A steady load on a real process, and what its memory and its disk do meanwhile."""

import hashlib
import hmac
import http.client
import json
import os
import socket
import statistics
import sys
import threading
import time

SAMPLE_S = 10
UNITS = {"s": 1, "m": 60, "h": 3600}


class Local(http.client.HTTPConnection):
    """HTTP over the socket of the data directory."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(os.environ["SOCKET"])


def span(text):
    return int(text[:-1]) * UNITS[text[-1]]


class Client:
    """One connection, with what was asked and what was refused."""

    def __init__(self, counts):
        self.counts = counts
        self.connection = Local("localhost")

    def ask(self, kind, method, path, body=None, headers=None, good=(200, 201)):
        text = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
        try:
            self.connection.request(method, path, body=text, headers={"Content-Type": "application/json", **(headers or {})})
            answer = self.connection.getresponse()
            got = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            self.connection = Local("localhost")
            self.counts[f"{kind}: {error!r}"] = self.counts.get(f"{kind}: {error!r}", 0) + 1
            return None
        name = kind if answer.status in good else f"{kind}: {answer.status} {got[:120]!r}"
        self.counts[name] = self.counts.get(name, 0) + 1
        return json.loads(got) if answer.status in good and got else None


def runs(client, n):
    client.ask("run", "POST", "/v1/runs", {"pipeline": "api", "vars": {"n": str(n)}}, {"Idempotency-Key": f"steady-{n}"})


def items(client, n):
    client.ask("item", "POST", "/v1/queues/work/items", {"data": {"n": n}})
    client.ask("push", "POST", "/v1/queues/out/items", {"data": {"n": n}})
    taken = client.ask("take", "POST", "/v1/queues/out/take", {"max": 10, "holder": "steady"}) or {}
    for item in taken.get("items", []):
        report = {"items": [{"item": item["id"], "epoch": item["epoch"]}]}
        client.ask("complete", "POST", "/v1/queues/out/complete", report)


def locks(client, n):
    # A name of its own each time, and one that comes again and again.
    for name in (f"own-{n}", f"again-{n % 7}"):
        holder = f"steady-{n}"
        grant = client.ask("lock", "POST", f"/v1/locks/{name}/acquire", {"holder": holder, "wait_ms": 1000})
        if grant and "epoch" in grant:
            client.ask("release", "POST", f"/v1/locks/{name}/release", {"holder": holder, "epoch": grant["epoch"]})


def hooks(client, n):
    body = json.dumps({"n": n}).encode()
    secret = os.environ["WINDLASS_SECRET_STEADY"].encode()
    signature = hmac.new(secret, body, hashlib.sha256).hexdigest()
    headers = {"X-Signature": signature, "X-Delivery": f"delivery-{n}"}
    client.ask("hook", "POST", "/hooks/in/steady", body, headers, good=(200, 201, 202))


def keep(work, every_s, over, counts):
    """Does something at a steady pace."""
    client, n, due = Client(counts), 0, time.monotonic()
    while not over.is_set():
        work(client, n)
        n += 1
        due += every_s
        over.wait(max(0, due - time.monotonic()))


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def disk_kib(folder):
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_blocks // 2
            except FileNotFoundError:
                pass
    return total


def main():
    pid, data = int(sys.argv[1]), sys.argv[2]
    duration_s, warm_s, bound = span(sys.argv[3]), span(sys.argv[4]), float(sys.argv[5])
    warm_s = min(warm_s, duration_s // 2)
    over, counts = threading.Event(), [{} for _ in range(4)]
    paces = [(runs, 0.5), (items, 0.5), (locks, 0.25), (hooks, 0.5)]
    threads = [threading.Thread(target=keep, args=(work, pace, over, mine)) for (work, pace), mine in zip(paces, counts)]
    for thread in threads:
        thread.start()
    began, samples = time.monotonic(), []
    try:
        while time.monotonic() - began < duration_s:
            time.sleep(SAMPLE_S)
            at = time.monotonic() - began
            samples.append((at, rss_kib(pid), disk_kib(data)))
            if len(samples) % 6 == 0:
                print(f"{at / 60:5.1f} min  rss {samples[-1][1] / 1024:7.1f} MiB  disk {samples[-1][2] / 1024:7.1f} MiB", flush=True)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    after = [sample for sample in samples if sample[0] >= warm_s]
    # Compaction comes in steps, so windows are compared and not moments. Files that are made ahead come and go, 32 MiB at a
    # time, so of the disk the largest of each half is compared.
    failed = False
    for place, what, parts, of in ((1, "rss", 5, statistics.mean), (2, "disk", 2, max)):
        window = max(1, len(after) // parts)
        first = of([sample[place] for sample in after[:window]])
        last = of([sample[place] for sample in after[-window:]])
        growth = (last - first) * 100 / first
        failed |= growth > bound
        print(f"{what}: {first / 1024:.1f} MiB after warm-up, {last / 1024:.1f} MiB at the end: {growth:+.2f} % (bound {bound} %)")
    for mine in counts:
        print(", ".join(f"{count} × {kind}" for kind, count in sorted(mine.items())))
    refused = [kind for mine in counts for kind in mine if ":" in kind]
    sys.exit(1 if failed or refused else 0)


if __name__ == "__main__":
    main()
