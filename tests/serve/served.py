"""A running `duckpond serve` for a test, and what the tests measure it by. Standard library only."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

PROGRAMS = os.environ["SERVE_PROGRAMS"]
# More than a thousand tokens of Duckling: long enough to look at it from outside.
LONG = "9973是质数吗"
SUM, SUM_ANSWER = "What is 1234 + 567?", "1234 + 567 = 1801"

# A part that runs out of time is told so by TERM; what it started must still end.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, holds, patience=30):
    """Waits until `holds()` is true and gives back what it returned."""
    end = time.monotonic() + patience
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"after {patience} s still not: {what}")
        time.sleep(0.02)


class Server(contextlib.AbstractContextManager):
    """A server on a free port, ready when it is made."""

    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [f"{PROGRAMS}/duckpond", "serve", "--port", "0", *flags], stderr=subprocess.PIPE, text=True
        )
        try:
            first = self.process.stderr.readline()
            assert first.startswith("listening on "), first
            self.url = first.split()[-1]
            self.port = int(self.url.rsplit(":", 1)[1])
            second = self.process.stderr.readline()
            assert second.startswith("ready: "), second
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        # Its log must not fill the pipe.
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def request(self, method, path, body=None, timeout=60):
        """Status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, series):
        """The value of a series, written with its labels; 0 if it is not there."""
        _, page = self.request("GET", "/metrics")
        values = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return next((float(value) for name, value in values if name == series), 0.0)

    def rss(self):
        """Resident memory in bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))
