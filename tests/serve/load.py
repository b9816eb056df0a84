"""Load and ill will: many clients at once, readers that read nothing, connections that say half, thousands of wrong requests.

load.py SECONDS
"""

import asyncio
import json
import random
import resource
import sys
import time

from served import SUM, SUM_ANSWER, Server, chat, until

CONNECTIONS = 64
MALFORMED = 10_000
MIB = 1 << 20
# A server's memory may grow so much under load: buffers of 64 connections and threads, nothing that goes on growing.
GROWTH = 48 * MIB


def http(method, path, body=b"", headers=""):
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def request(**more):
    return http("POST", "/v1/chat/completions", json.dumps(chat(**more)).encode())


async def stream_once(reader, writer, body):
    """Sends a streaming request and reads its chunked answer. Gives back the text and the times of the events."""
    writer.write(body)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head + await reader.read(2000)
    text, times = "", []
    while size := int(await reader.readline(), 16):
        data = await reader.readexactly(size)
        await reader.readexactly(2)
        for event in data.decode().split("\n\n"):
            if event.startswith("data: {"):
                event = json.loads(event[6:])
                assert "error" not in event, event
                delta = event["choices"][0]["delta"].get("content")
                if delta:
                    text += delta
                    times.append(time.monotonic())
            elif event.startswith("data: "):
                assert event == "data: [DONE]", event
    await reader.readexactly(2)
    return text, times


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def client(server, until_then, seed, gaps, firsts):
    """One connection, one request after another, of all the kinds that have different ways through the server."""
    pick = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answers = 0
    while time.monotonic() < until_then:
        exact = pick.random() < 0.7
        more = {} if exact else {"max_tokens": pick.randint(1, 24), "temperature": 1, "seed": pick.randint(0, 99)}
        begun = time.monotonic()
        text, times = await stream_once(reader, writer, request(text=SUM, stream=True, **more))
        assert not exact or text == SUM_ANSWER, text
        if times:
            firsts.append(times[0] - begun)
        gaps += [b - a for a, b in zip(times, times[1:])]
        answers += 1
    writer.close()
    return answers


async def many_clients(server, seconds):
    gaps, firsts = [], []
    rss = []

    async def watch():
        while True:
            rss.append(server.rss())
            await asyncio.sleep(1)

    watcher = asyncio.create_task(watch())
    end = time.monotonic() + seconds
    answers = await asyncio.gather(*(client(server, end, seed, gaps, firsts) for seed in range(CONNECTIONS)))
    watcher.cancel()
    assert min(answers) > 0, f"somebody was never answered: {answers}"
    assert max(answers) < 4 * (sum(answers) / CONNECTIONS) + 4, f"not everybody had a turn: {answers}"
    # After a third of the time every buffer there is has been used.
    settled = rss[len(rss) // 3]
    assert max(rss) - rss[0] < GROWTH, f"memory grew from {rss[0] / MIB:.0f} to {max(rss) / MIB:.0f} MiB"
    assert rss[-1] - settled < GROWTH / 4, f"memory goes on growing: {[round(r / MIB) for r in rss]}"
    return (
        f"{sum(answers)} answers in {seconds} s over {CONNECTIONS} connections; between tokens p50 {1e3 * percentile(gaps, 0.5):.1f} ms, "
        f"p99 {1e3 * percentile(gaps, 0.99):.1f} ms, most {1e3 * max(gaps):.0f} ms; first token p99 {percentile(firsts, 0.99):.2f} s; "
        f"memory {rss[0] / MIB:.0f} to {max(rss) / MIB:.0f} MiB"
    )


async def slow_readers(server, _):
    """They ask for long answers and read nothing, or a byte now and then; others are answered meanwhile."""
    connections = []
    for i in range(32):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(request(text=SUM, stream=True, n=4))
        connections.append((reader, writer, i))

    async def dribble(reader):
        for _ in range(20):
            await reader.read(1)
            await asyncio.sleep(0.1)

    slow = [asyncio.create_task(dribble(reader)) for reader, _, i in connections if i % 2]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    begun = time.monotonic()
    text, _ = await asyncio.wait_for(stream_once(reader, writer, request(text=SUM, stream=True)), 60)
    took = time.monotonic() - begun
    assert text == SUM_ANSWER
    await asyncio.gather(*slow)
    for _, writer, _ in connections:
        writer.transport.abort()
    writer.close()
    return f"another client had its answer after {took:.2f} s behind 128 answers that nobody reads"


async def half_open(server, _):
    """Connections that send part of a request, or a body that never comes, and connections shut for writing."""
    connections = []
    whole = request(text=SUM)
    for i in range(200):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write([b"", b"POST /v1/ch", whole[:-5], b"GET / HTTP/1.1\r\nhost: loc"][i % 4])
        if i % 3 == 0:
            writer.write_eof()
        connections.append(writer)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    begun = time.monotonic()
    text, _ = await stream_once(reader, writer, request(text=SUM, stream=True))
    took = time.monotonic() - begun
    assert text == SUM_ANSWER and took < 5, (text, took)
    writer.close()
    # A reset, as from a machine that has been switched off and on.
    for other in connections:
        other.transport.abort()
    return f"200 of them, and an answer after {took:.2f} s"


def malformed(pick):
    """A request with something wrong in it; none may be answered with 200 or 5xx."""
    good = json.dumps(chat(SUM)).encode()
    kind = pick.randrange(8)
    if kind == 0:
        return bytes(pick.randrange(256) for _ in range(pick.randrange(1, 200))).replace(b"\n", b"") + b"\r\n\r\n"
    if kind == 1:
        return http("POST", "/v1/chat/completions", good[: pick.randrange(len(good))])
    if kind == 2:
        body = bytearray(b'{"messages": [{"role": "user", "content": "')
        body += bytes(pick.randrange(128, 256) for _ in range(20)) + b'"}]}'
        return http("POST", "/v1/chat/completions", bytes(body))
    if kind == 3:
        value = pick.choice([{}, [], -1, "x", 1e300, True, [[]]])
        field = pick.choice(["messages", "tools", "logit_bias", "response_format", "stop", "stream_options"])
        return http("POST", "/v1/chat/completions", json.dumps({**chat(SUM), field: value, "n": -1}).encode())
    if kind == 4:
        depth = pick.randrange(200, 5000)
        return http("POST", "/v1/chat/completions", b'{"messages": ' + b"[" * depth + b"]" * depth + b"}")
    if kind == 5:
        return http("POST", "/v1/completions", json.dumps({"prompt": [pick.randrange(1 << 32, 1 << 60)]}).encode())
    if kind == 6:
        return http("GET", "/" + "".join(chr(pick.randrange(97, 123)) for _ in range(pick.randrange(1, 3000))))
    return http(pick.choice(["BREW", "PUT", "DELETE", "PATCH"]), "/v1/chat/completions", good)


async def malformed_requests(server, _):
    statuses = {}

    async def worker(seed):
        pick = random.Random(seed)
        for _ in range(MALFORMED // 50):
            data = malformed(pick)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                writer.write(data)
                line = await asyncio.wait_for(reader.readline(), 30)
                # Nonsense may end a connection without a word.
                status = int(line.split()[1]) if line else 0
            except ConnectionError:
                status = 0
            finally:
                writer.transport.abort()
            assert status == 0 or 400 <= status < 500, f"seed {seed}: {status} for {data[:300]!r}"
            statuses[status] = statuses.get(status, 0) + 1

    await asyncio.gather(*(worker(seed) for seed in range(50)))
    assert sum(statuses.values()) == MALFORMED and len(statuses) >= 3, statuses
    return ", ".join(f"{count} times {status or 'closed'}" for status, count in sorted(statuses.items()))


def main():
    seconds = int(sys.argv[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with Server("--max-queue", "512") as server:
        for _ in range(3):
            server.request("POST", "/v1/chat/completions", chat(SUM))
        descriptors = server.descriptors()
        for check in [many_clients, slow_readers, half_open, malformed_requests]:
            begun = time.monotonic()
            before = server.rss()
            found = asyncio.run(check(server, seconds))
            assert server.process.poll() is None, "the server has ended"
            until("nothing runs or waits", lambda: idle(server))
            # Everything of it is given back but a little that the allocator keeps.
            until("all connections are closed", lambda: server.descriptors() <= descriptors + 2)
            until("memory comes back", lambda: server.rss() < before + GROWTH)
            status, text = server.request("POST", "/v1/chat/completions", chat(SUM))
            assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == SUM_ANSWER, text
            name = check.__name__.replace("_", " ")
            print(f"ok: {name} ({time.monotonic() - begun:.0f} s): {found}; {server.rss() / MIB:.0f} MiB, {server.threads()} threads", flush=True)
        panics = [line for line in server.log if "panic" in line]
        assert not panics, panics


def idle(server):
    return server.metric("duckpond_requests_running") + server.metric("duckpond_requests_waiting") == 0


sys.exit(main())
