"""Slack requests signed by slack_sdk to a real process: good, repeated, stale and forged."""

import http.client
import json
import os
import socket
import time
from urllib.parse import urlencode

from slack_sdk.signature import SignatureVerifier

verifier = SignatureVerifier(os.environ["WINDLASS_SLACK_SIGNING_SECRET"])


class Local(http.client.HTTPConnection):
    """HTTP over the socket of the data directory."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(os.environ["SOCKET"])


def ask(method, path, headers=None, body=None):
    connection = Local("localhost")
    connection.request(method, path, body=body, headers=headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def signed(path, body, at=None, signature=None):
    at = str(at if at is not None else int(time.time()))
    signature = signature or verifier.generate_signature(timestamp=at, body=body)
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Slack-Request-Timestamp": at,
        "X-Slack-Signature": signature,
    }
    return ask("POST", path, headers, body)


def command(trigger, text, at=None, signature=None):
    body = urlencode(
        {
            "token": "legacy",
            "team_id": "T0001",
            "team_domain": "example",
            "channel_id": "C2147483705",
            "channel_name": "test",
            "user_id": "U2147483697",
            "user_name": "Steve",
            "command": "/deploy",
            "text": text,
            "response_url": "https://hooks.slack.test/commands/1234/5678",
            "trigger_id": trigger,
            "api_app_id": "A123456",
        }
    )
    return signed("/hooks/slack/commands", body, at, signature)


def click(approval, user, signature=None):
    """A click on the button of an approval's card, as Slack sends it."""
    value = f"{approval['id']}:{approval['action_hash']}"
    payload = {
        "type": "block_actions",
        "user": {"id": user, "username": "steve", "team_id": "T0001"},
        "api_app_id": "A123456",
        "token": "legacy",
        "container": {"type": "message", "message_ts": "1763245800.000100", "channel_id": "C2147483705"},
        "trigger_id": "13345224609.738474920.8088930838d88f008e0",
        "team": {"id": "T0001", "domain": "example"},
        "channel": {"id": "C2147483705", "name": "test"},
        "message": {"type": "message", "ts": "1763245800.000100", "text": "Approval needed"},
        "state": {"values": {}},
        "response_url": "https://hooks.slack.test/actions/1234/5678",
        "actions": [
            {
                "action_id": "windlass:approve",
                "block_id": "windlass:decide",
                "text": {"type": "plain_text", "text": "Approve"},
                "value": value,
                "type": "button",
                "action_ts": "1763245801.000000",
            }
        ],
    }
    return signed("/hooks/slack/actions", urlencode({"payload": json.dumps(payload)}), signature=signature)


def waiting():
    for _ in range(300):
        items = json.loads(ask("GET", "/v1/approvals?status=requested")[1])["items"]
        if items:
            return items[0]
        time.sleep(0.1)
    raise AssertionError("no approval was asked for")


def runs():
    return len(json.loads(ask("GET", "/v1/runs?pipeline=deploy")[1])["items"])


status, first = command("13345224609.738474920.8088930838d88f008e0", "1.2.3")
assert status == 200 and json.loads(first)["response_type"] == "ephemeral", first
assert json.loads(first)["text"].startswith("Started `deploy`: run_"), first
assert command("13345224609.738474920.8088930838d88f008e0", "1.2.3") == (200, first), "the first answer"
assert runs() == 1
status, text = command("2", "latest")
assert status == 200 and "must match" in json.loads(text)["text"], text
assert command("3", "1.2.3", at=int(time.time()) - 301)[0] == 401
assert command("3", "1.2.3", at=int(time.time()) + 302)[0] == 401
forged = SignatureVerifier("another").generate_signature(timestamp="1", body="")
assert command("3", "1.2.3", signature=forged)[0] == 401
assert command("3", "1.2.3", signature="v0=")[0] == 401
assert runs() == 1
json_body = {"Content-Type": "application/json"}
assert ask("POST", "/v1/runs", json_body, json.dumps({"pipeline": "ask"}))[0] == 201
approval = waiting()
assert click(approval, "U2147483697", signature=forged)[0] == 401
status, text = click(approval, "U0000000000")
assert status == 200 and "nobody here" in json.loads(text)["text"], text
status, text = click(approval, "U2147483697")
assert status == 200 and "approved" in json.loads(text)["text"], text
decided = json.loads(ask("GET", f"/v1/approvals/{approval['id']}")[1])
assert decided["decisions"][0]["by"] == "steve" and decided["decisions"][0]["channel"] == "slack", decided
print("Slack's signatures hold, and nothing else does")
