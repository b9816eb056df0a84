"""A server goes on without its ducks: all of them die in the middle of an answer, and come back.

Real `duckd` processes over UDP on the loopback interface.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import socket

from served import LONG, PROGRAMS, SUM, SUM_ANSWER, Server, chat, until

COUNT = 3


def free_udp_ports(count):
    probes = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Pond:
    def __init__(self, folder):
        made = subprocess.run([f"{PROGRAMS}/duckpond", "key", "new", f"{folder}/pond.key"], check=True, capture_output=True)
        self.key = re.search(r"[0-9a-f]{64}", made.stdout.decode())[0]
        host, *self.ports = free_udp_ports(1 + COUNT)
        peers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        rows = "".join(f'\n[[ducks]]\nname = "duck-{i}"\nport = "loopback"\n' for i in range(COUNT))
        self.file = f"{folder}/pond.toml"
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(f'name = "mortal"\nkey = "pond.key"\n\n[[ports]]\nname = "loopback"\nlink = "udp:127.0.0.1:{host},{peers}"\n{rows}')
        self.ducks = []

    def start(self):
        self.ducks = [
            subprocess.Popen(
                [f"{PROGRAMS}/duckd", "--id", f"duck-{i}", "--link", f"udp:127.0.0.1:{port}", "--key", self.key, "--memory", "64MiB"],
                stderr=subprocess.DEVNULL,
            )
            for i, port in enumerate(self.ports)
        ]

    def kill(self):
        for duck in self.ducks:
            duck.kill()
        for duck in self.ducks:
            duck.wait()
        self.ducks = []


def states(server):
    _, text = server.request("GET", "/pond")
    return [duck["state"] for duck in json.loads(text)["pond"]["ducks"]]


def answers(server):
    status, text = server.request("POST", "/v1/chat/completions", chat(SUM))
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == SUM_ANSWER, text


def main():
    with tempfile.TemporaryDirectory(dir=os.environ["SERVE_SCRATCH"]) as folder:
        os.environ["DUCKPOND_RUNTIME_DIR"] = f"{folder}/runtime"
        pond = Pond(folder)
        pond.start()
        try:
            with Server("--pond", pond.file) as server:
                assert states(server) == ["ready"] * COUNT, states(server)
                _, expected = server.request("POST", "/v1/chat/completions", chat(LONG))
                found = []
                ask = lambda: found.append(server.request("POST", "/v1/chat/completions", chat(LONG, seed=1)))
                asking = threading.Thread(target=ask)
                before = server.metric("duckpond_output_tokens_total")
                asking.start()
                until("the answer has begun", lambda: server.metric("duckpond_output_tokens_total") > before + 20)
                pond.kill()
                until("nobody is there", lambda: "ready" not in states(server))
                asking.join(60)
                status, text = found[0]
                content = lambda text: json.loads(text)["choices"][0]["message"]["content"]
                assert status == 200 and content(text) == content(expected), text
                assert server.metric("duckpond_take_overs_total") > 0
                print(f"ok: all of {COUNT} ducks died in the middle of an answer, which is the same all the same", flush=True)
                status, text = server.request("GET", "/ready")
                assert status == 200 and json.loads(text)["status"] == "ready", text
                answers(server)
                assert server.metric('duckpond_port_up{port="loopback"}') == 0
                print("ok: the host goes on alone, and says so", flush=True)
                pond.start()
                until("all are back", lambda: states(server) == ["ready"] * COUNT)
                answers(server)
                assert server.process.poll() is None
                print("ok: they came back", flush=True)
            assert server.process.returncode == 0, server.process.returncode
            panics = [line for line in server.log if "panic" in line]
            assert not panics, panics
        finally:
            pond.kill()


sys.exit(main())
