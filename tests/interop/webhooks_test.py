"""Deliveries and inbound webhooks beside the published library for Python. `webhooks.test.mjs` does the same with that for Node."""

import base64
import json
import os
import threading
import unittest
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

URL = os.environ["FOREBAY_URL"]
TOKEN = os.environ["FOREBAY_TOKEN"]

# How long a delivery may take.
PATIENCE_SECONDS = 20

# Every text is followed by these: what a library or a server might write differently than it was read.
ODD = ' \u2028 \u00fc \U0001f980 \\ " < 1.0'

OTHER_SECRET = "whsec_" + base64.b64encode(bytes([7] * 32)).decode()


class Receiver(ThreadingHTTPServer):
    """Keeps what it receives, and answers as it is told, else 200."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Hook)
        self.received, self.answers, self.came = [], [], threading.Condition()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def deliveries(self, text, count=1):
        """The requests whose body has this text, when there are so many of them."""
        found = lambda: [one for one in self.received if text in one[1]]
        with self.came:
            came = self.came.wait_for(lambda: len(found()) >= count, PATIENCE_SECONDS)
            assert came, f"{len(found())} deliveries of {text}, {count} awaited"
            return found()


class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        with self.server.came:
            self.server.received.append((dict(self.headers), body))
            status = self.server.answers.pop(0) if self.server.answers else 200
            self.server.came.notify_all()
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def call(path, body, headers=None):
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = headers or {"authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(URL + path, data, {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


def opened():
    return call("/v1/conversations", {})[1]["id"]


class Webhooks(unittest.TestCase):
    def setUp(self):
        self.receiver = Receiver()
        self.addCleanup(self.receiver.server_close)
        self.addCleanup(self.receiver.shutdown)
        url = f"http://127.0.0.1:{self.receiver.server_port}/python"
        retry = {"baseSeconds": 1, "capSeconds": 1}
        status, channel = call("/v1/channels", {"name": "python", "url": url, "retry": retry})
        self.assertEqual(status, 201, channel)
        self.channel, self.secret = channel["id"], channel["secret"]

    def send(self, conversation, text):
        status, answer = call(f"/v1/conversations/{conversation}/messages", {"text": text + ODD})
        self.assertEqual(status, 201, answer)

    def rotate(self):
        status, channel = call(f"/v1/channels/{self.channel}/rotate-secret", {})
        self.assertEqual(status, 200, channel)
        self.assertNotEqual(channel["secret"], self.secret)
        return channel["secret"]

    def refused(self, secret, body, headers):
        with self.assertRaises(WebhookVerificationError):
            Webhook(secret).verify(body, headers)

    def verify(self, delivery, secret):
        """The library takes a delivery, and nothing that differs from it."""
        headers, body = delivery
        read = Webhook(secret).verify(body, headers)
        self.assertEqual(read["type"], "message")
        self.assertTrue(read["data"]["text"].endswith(ODD), body)
        self.refused(secret, body.replace("message", "massage"), headers)
        self.refused(secret, body + " ", headers)
        self.refused(secret, body, {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)})
        self.refused(secret, body, {**headers, "webhook-id": headers["webhook-id"] + "0"})
        self.refused(OTHER_SECRET, body, headers)

    def test_the_library_verifies_deliveries_repeats_of_them_and_both_signatures_of_a_rotation(self):
        conversation = opened()
        self.send(conversation, "python one")
        (first,) = self.receiver.deliveries("python one")
        self.assertEqual(len(first[0]["webhook-signature"].split(" ")), 1)
        self.verify(first, self.secret)

        self.receiver.answers = [500]
        self.send(conversation, "python two")
        failed, again = self.receiver.deliveries("python two", 2)
        self.assertEqual((again[0]["webhook-id"], again[1]), (failed[0]["webhook-id"], failed[1]))
        for one in (failed, again):
            self.verify(one, self.secret)

        fresh = self.rotate()
        self.send(conversation, "python three")
        (third,) = self.receiver.deliveries("python three")
        self.assertEqual(len(third[0]["webhook-signature"].split(" ")), 2)
        self.verify(third, fresh)
        self.verify(third, self.secret)
        self.refused(fresh, first[1], first[0])

    def test_what_the_library_signs_comes_in_and_nothing_that_differs_from_it(self):
        body = json.dumps({"conversationId": opened(), "text": "python in" + ODD}, ensure_ascii=False)

        def come(key, signer=self.secret, minutes=0, sent=body, before=""):
            at = datetime.now(timezone.utc) + timedelta(minutes=minutes)
            signature = before + Webhook(signer).sign(key, at, body)
            headers = {"webhook-id": key, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
            return call(f"/v1/channels/{self.channel}/inbound", sent, headers)[0]

        self.assertEqual(come("evt-1"), 202)
        self.assertEqual(come("evt-2", minutes=-4), 202)
        stranger = Webhook(OTHER_SECRET).sign("evt-3", datetime.now(timezone.utc), body)
        self.assertEqual(come("evt-3", before=f"v1a,AAAA {stranger} "), 202)
        self.assertEqual(come("evt-4", signer=OTHER_SECRET), 401)
        self.assertEqual(come("evt-4", sent=body + " "), 401)
        self.assertEqual(come("evt-4", minutes=-6), 401)
        self.assertEqual(come("evt-4", minutes=6), 401)

        fresh = self.rotate()
        self.assertEqual(come("evt-5", signer=fresh), 202)
        self.assertEqual(come("evt-6"), 202)
