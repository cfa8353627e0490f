"""The endpoint on the real stack: asked by OpenAI's own client, by hand, by a fuzzer, and while the policy is
trained."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.load import ROOT, load
from hora_rl.deploy.machine.ports import free_port
from hora_rl.deploy.monitor.web import STREAMS
from tests.support.ports import until
from tests.system.conftest import LiveRun
from tests.system.test_endpoint_handlers import NAMES, RAW, VALUES

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
FUZZED = int(os.environ.get("HORA_TEST_FUZZED", "300"))
CHAT = {"messages": [{"role": "user", "content": "37+58=?"}], "max_tokens": 40}
TEXT = "37+58=?\n"
# Serves a model at the run's endpoint without training it, until interrupted.
ALONE = """
import signal, sys
from pathlib import Path
from rich.console import Console
from hora_rl.common.load import load
from hora_rl.deploy.launch.stack import stack
from hora_rl.deploy.machine.signals import stopped_by_signals

with stopped_by_signals():
    try:
        config = load("tiny", ["serve.endpoint=true", *sys.argv[2:]])
        with stack(config, Path(sys.argv[1]), Console(), train=False):
            signal.pause()
    except (KeyboardInterrupt, SystemExit):
        print("stopped")
"""


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    key_file: Path

    @property
    def key(self) -> str:
        return self.key_file.read_text().strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tmp_path_factory.mktemp("served"), free_port("127.0.0.1")
    settings = ["serve.requests_per_minute=60000", "serve.max_sequences=64"]
    log = (folder / "serve.log").open("w+")
    command = [sys.executable, "-c", ALONE, str(folder), f"telemetry.http_port={port}", *settings]
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=ROOT)
    found = Served(f"http://127.0.0.1:{port}", folder / "token")
    try:
        until(lambda: _answers(found), (folder / "serve.log").read_text, 400, 0.2, process)
        yield found
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        process.wait(60)
        _, left = psutil.wait_procs(family, timeout=60)
        for p in left:
            p.kill()
        assert not left, left


def _answers(served: Served) -> bool:
    try:
        return served.key_file.exists() and get(served, "/models").status_code == 200
    except httpx.HTTPError:
        return False


def get(served: Served, path: str) -> httpx.Response:
    return httpx.get(f"{served.url}/v1{path}", headers=_key(served), timeout=60)


def post(served: Served, path: str, body: Any, **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    how = {"headers": {**_key(served), "content-type": "application/json"}, "timeout": 120, **options}
    return httpx.post(f"{served.url}/v1{path}", content=content, **how)


def _key(served: Served) -> dict[str, str]:
    return {"Authorization": f"Bearer {served.key}"}


def test_openais_client_talks_to_the_policy(served: Served) -> None:
    import openai  # a second, which no other test needs

    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0)
    assert [m.id for m in client.models.list()] == ["tiny"]
    answer = client.chat.completions.create(model="tiny", seed=1, logprobs=True, **CHAT)
    said = answer.choices[0].message.content
    assert "<answer>" in said
    events = client.chat.completions.create(model="tiny", seed=1, stream=True, **CHAT)
    pieces = [c.delta.content or "" for event in events for c in event.choices]
    assert len(pieces) > 1
    assert "".join(pieces) == said, "one seed, one answer"
    cut = client.chat.completions.create(model="tiny", seed=1, stop=["<answer>"], **CHAT).choices[0]
    assert (cut.message.content, cut.finish_reason) == (said.partition("<answer>")[0], "stop")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_tokens_log_probs_and_versions_come_with_an_answer(served: Served) -> None:
    tokenizer = load_tokenizer(load("tiny").model.path)
    prompt = tokenizer.encode(TEXT)
    body = {"prompt": prompt, "max_tokens": 40, "seed": 3, "return_token_ids": True, "logprobs": 0, "n": 2}
    found = post(served, "/completions", body).json()
    for choice, spans in zip(found["choices"], found["weight_versions"], strict=True):
        assert choice["prompt_token_ids"] == prompt
        assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
        assert all(lp <= 0.0 for lp in choice["logprobs"]["token_logprobs"])
        assert (spans[0]["version"], spans[-1]["end"]) == (0, len(choice["token_ids"]))
        assert choice["token_ids"][-1] == tokenizer.eos_token_id, "ended by the run's stop token"
    chat = post(served, "/chat/completions", {**CHAT, "return_token_ids": True}).json()
    assert chat["prompt_token_ids"] == prompt, "the run's own template"


def test_what_is_refused_is_refused_by_its_status(served: Served) -> None:
    no_key = post(served, "/chat/completions", CHAT, headers={})
    large = post(served, "/chat/completions", b"x" * (1 << 20 | 1))
    ours = post(served, "/chat/completions", {**CHAT, "priority": -(2**40)})
    long = post(served, "/completions", {"prompt": [5] * 5000})
    with ThreadPoolExecutor(2) as both:  # each waits a while for the version
        bodies = ({"prompt": TEXT, "min_weight_version": 7, "stream": stream} for stream in (False, True))
        newer, streamed_newer = both.map(lambda body: post(served, "/completions", body), bodies)
    unknown = post(served, "/completions", {"prompt": [100_000]})
    found = (no_key, large, ours, long, newer, streamed_newer, unknown)
    assert [r.status_code for r in found] == [401, 413, 400, 400, 503, 503, 400]
    for response in found:
        message = response.json()["error"]["message"]
        assert message
        assert "Traceback" not in message
    assert "priority" in ours.json()["error"]["message"]


def test_requests_beyond_the_places_wait_and_those_beyond_the_line_are_429(served: Served) -> None:
    async def many(n: int) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=n)
        async with httpx.AsyncClient(timeout=120, headers=_key(served), limits=limits) as client:
            body = {"prompt": TEXT, "max_tokens": 100, "n": 4}  # 16 of them have places
            asks = [client.post(f"{served.url}/v1/completions", json=body) for _ in range(n)]
            return await asyncio.gather(*asks)

    assert {r.status_code for r in asyncio.run(many(24))} == {200}
    found = asyncio.run(many(200))
    assert {r.status_code for r in found} == {200, 429}
    assert {r.headers.get("retry-after") for r in found} == {None, "30"}


def test_odd_requests_never_end_a_replica(served: Served) -> None:
    rng = random.Random(1)
    statuses: dict[int, int] = {}
    for i in range(FUZZED):
        kinds = {"/chat/completions": CHAT, "/completions": {"prompt": TEXT, "max_tokens": 9}}
        kind, base = rng.choice(list(kinds.items()))
        body: Any = {**base, **{name: rng.choice(VALUES) for name in rng.sample(NAMES, rng.randrange(1, 4))}}
        if i % 10 == 0:
            body = rng.choice([*RAW, rng.randbytes(50)])
        answer = post(served, kind, body)
        status = answer.status_code
        statuses[status] = statuses.get(status, 0) + 1
        if status == 500:
            print("500:", kind, body, answer.text[:300], flush=True)
    print("statuses of", FUZZED, "odd requests:", statuses)
    assert 500 not in statuses, statuses
    assert statuses.get(200, 0) > 10
    assert post(served, "/chat/completions", CHAT).status_code == 200


def test_a_client_that_leaves_gives_its_place_back(served: Served) -> None:
    body = {**CHAT, "stream": True, "n": 8}
    for _ in range(12):  # of 64 places
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, headers=_key(served)) as r:
            assert r.status_code == 200
            next(r.iter_lines())
    until(lambda: post(served, "/completions", {"prompt": TEXT, "n": 8}).status_code == 200)


@pytest.mark.slow
def test_the_policy_answers_while_it_is_trained(live_run: Callable[..., LiveRun]) -> None:
    port = free_port("127.0.0.1")
    run = live_run(6, **{"serve.endpoint": "true", "telemetry.http_port": port})
    run.until(1)
    served, seen = Served(f"http://127.0.0.1:{port}", run.run / "token"), set()
    never = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(STREAMS + 50)]
    for client in never:  # and never reads
        client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert httpx.get(f"{served.url}/status", timeout=30).status_code == 200
    while run.trained() < 5:
        answer = post(served, "/chat/completions", {**CHAT, "model": "live"})
        if answer.status_code == 200:
            seen |= {span["version"] for span in answer.json()["weight_versions"][0]}
        time.sleep(0.3)
    for client in never:
        client.close()
    run.finish()
    run.assert_exact()
    assert len(seen) > 1, "answers came from the weights as they were trained"
