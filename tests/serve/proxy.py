"""nginx in front of two servers: streams stay streams, and a server that stops takes no answer with it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time

from served import LONG, SUM, SUM_ANSWER, Server, chat, free_port, until

scratch = os.environ["SERVE_SCRATCH"]


class Proxy:
    def __init__(self, a, b):
        self.port = free_port()
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "nginx.conf.in")) as file:
            text = file.read()
        for name, value in [("SCRATCH", scratch), ("PORT_A", a), ("PORT_B", b), ("PORT", self.port)]:
            text = text.replace(f"@{name}@", str(value))
        path = f"{scratch}/nginx.conf"
        with open(path, "w") as file:
            # As root nginx would change to a user who cannot write to the scratch folder.
            file.write(("user root;\n" if os.getuid() == 0 else "") + text)
        subprocess.run(["nginx", "-t", "-q", "-c", path], check=True)
        self.process = subprocess.Popen(["nginx", "-c", path])
        until("nginx answers", self.answers)

    def answers(self):
        try:
            return self.request("GET", "/health")[0] == 200
        except ConnectionRefusedError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)

    def open(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json"})
        return connection, connection.getresponse()

    def request(self, method, path, body=None):
        connection, response = self.open(method, path, body)
        with connection:
            return response.status, response.read().decode()

    def stream(self, body):
        """Status, and each event with the time it came."""
        connection, response = self.open("POST", "/v1/chat/completions", {**body, "stream": True})
        with connection:
            lines = [(time.monotonic(), line.decode()) for line in response]
            return response.status, [(at, line[6:].strip()) for at, line in lines if line.startswith("data: ")]


# Connections close by `with`.
http.client.HTTPConnection.__enter__ = lambda self: self
http.client.HTTPConnection.__exit__ = lambda self, *_: self.close()


def streams_arrive_in_parts(proxy):
    begun = time.monotonic()
    status, events = proxy.stream(chat(LONG, max_tokens=400))
    assert status == 200 and events[-1][1] == "[DONE]" and len(events) > 100, (status, len(events))
    first, whole = events[0][0] - begun, events[-1][0] - begun
    gaps = sum(b[0] - a[0] > 1e-4 for a, b in zip(events, events[1:]))
    assert first < whole / 2 and gaps > 50, f"first event after {first:.2f} s of {whole:.2f} s, {gaps} gaps"
    return f"first event after {first:.2f} s, last after {whole:.2f} s"


def both_answer(proxy, a, b):
    before = [s.metric('duckpond_answers_total{reason="stop"}') for s in (a, b)]
    threads = [threading.Thread(target=lambda: proxy.stream(chat(SUM))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    after = [s.metric('duckpond_answers_total{reason="stop"}') for s in (a, b)]
    assert sum(after) - sum(before) == 8 and all(x > y for x, y in zip(after, before)), (before, after)
    return f"{after[0] - before[0]:.0f} and {after[1] - before[1]:.0f} of 8 answers"


def one_that_stops_is_drained(proxy, a, b):
    """A long answer runs on each; one server is told to stop: its answer is finished, new ones go to the other."""
    results = []
    body = chat(LONG, seed=1)
    threads = [threading.Thread(target=lambda: results.append(proxy.stream(body))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for server in (a, b):
        until("it has an answer", lambda: server.metric("duckpond_requests_running") == 1)
    a.process.send_signal(signal.SIGTERM)
    seen = until("/ready says that it stops", lambda: ready(a))
    assert seen[0] == 503 and seen[1]["status"] == "stopping", seen
    answers, asked, refused = [], 0, 0
    ask = lambda: answers.append(proxy.request("POST", "/v1/chat/completions", chat(SUM)))
    while a.process.poll() is None:
        # Each in a thread of its own: the other server is busy, and some must meet the one that stops. Not more than its queue holds.
        if asked < 30:
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
            asked += 1
        refused = max(refused, refusals(a))
        time.sleep(0.1)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a request did not end"
    assert len(results) == 2, f"{len(results)} of 2 long answers came"
    for status, events in results:
        failed = [e for _, e in events if "\"error\"" in e]
        assert not failed, failed
        assert status == 200 and events[-1][1] == "[DONE]", (status, events[-3:])
        ended = [c for _, e in events[:-1] for c in json.loads(e)["choices"] if c["finish_reason"]]
        assert [c["finish_reason"] for c in ended] == ["stop"], ended
    assert a.process.returncode == 0, a.process.returncode
    # Else it was not the proxy that found another server for them.
    assert refused > 0, f"none of {asked} requests met the server that stops"
    assert asked > 0 and len(answers) == asked, f"{len(answers)} of {asked} requests were answered"
    unanswered = not_answered(answers)
    assert not unanswered, unanswered
    for _ in range(10):
        assert proxy.request("POST", "/v1/chat/completions", chat(SUM))[0] == 200
    return f"its answer was whole; it refused {refused:.0f} of {asked} requests meanwhile, and all were answered"


def refusals(server):
    """How many chats a server refused that may be gone any moment; 0 once it is."""
    try:
        return server.metric('duckpond_http_requests_total{route="/v1/chat/completions",status="503"}')
    except (OSError, http.client.HTTPException):
        return 0


def not_answered(answers):
    """What was no answer."""
    return [(status, text) for status, text in answers if status != 200 or SUM_ANSWER not in text]


def ready(server):
    """What /ready says once it is no longer 200."""
    status, text = server.request("GET", "/ready")
    return status != 200 and (status, json.loads(text))


def main():
    with Server() as a, Server() as b, Proxy(a.port, b.port) as proxy:
        for check, arguments in [
            (streams_arrive_in_parts, [proxy]),
            (both_answer, [proxy, a, b]),
            (one_that_stops_is_drained, [proxy, a, b]),
        ]:
            print(f"ok: {check.__name__.replace('_', ' ')}: {check(*arguments)}", flush=True)


sys.exit(main())
