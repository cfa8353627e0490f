"""What the endpoint lets through, without a server: fields, sizes, key and rate."""

import asyncio
import hashlib
import json
import time
from typing import Any

import httpx
import pytest

from hora_rl.actors.endpoint import guard
from hora_rl.actors.endpoint.guard import Guard, Rate
from hora_rl.actors.endpoint.line import Line
from hora_rl.actors.endpoint.requests import Refused, checked
from hora_rl.actors.generator.places import Admission
from hora_rl.common.config import Serve
from hora_rl.common.errors import NoRoom
from hora_rl.common.types import BELOW_TRAINING

LIMITS = Serve()
CHAT = {"messages": [{"role": "user", "content": "37+58=?"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
KEY = {"Authorization": "Bearer secret"}
NOT_SERVED = (
    *("priority", "request_id", "prompt_logprobs", "echo", "use_beam_search", "logit_bias", "cache_salt"),
    *("allowed_token_ids", "structured_outputs", "response_format", "chat_template"),
)


def asked(raw: Any, kind: Any = "chat") -> dict[str, Any]:
    return checked(raw, kind, LIMITS, (1, 7), "id").body


def test_what_a_request_may_not_choose_is_ours() -> None:
    body = asked({**CHAT, "temperature": 0.5, "stop_token_ids": [9], "tools": [{"type": "function"}]})
    assert body["priority"] == BELOW_TRAINING
    assert body["stop_token_ids"] == [1, 7, 9]
    assert (body["request_id"], body["tool_choice"], body["temperature"]) == ("id", "none", 0.5)
    found = checked({**CHAT, "min_weight_version": 4}, "chat", LIMITS, (), "id")
    assert found.version == 4
    assert "min_weight_version" not in found.body


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *(({name: 1}, f"field '{name}' is not served here") for name in NOT_SERVED),
        ({"n": 9}, "n must be a whole number from 1 to 8"),
        ({"n": True}, "n must be a whole number"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1"),
        ({"seed": 2**63}, "seed must be"),
        ({"logprobs": True, "top_logprobs": 6}, "top_logprobs must be a whole number from 0 to 5"),
        ({"stop": ["x"] * 17}, "stop must be at most 16 texts"),
        ({"stop": ["x" * 300]}, "a text of stop must have 1 to 256 characters"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids must be at most 16 token ids"),
        ({"stream": 1}, "stream must be true or false"),
        ({"tool_choice": "required"}, "tool_choice must be none or auto"),
        *(({"tools": json.loads("[" * n + "]" * n)}, "tools must be at most 64") for n in (17, 600)),
        ({"messages": []}, "messages must be 1 to 1024 messages"),
        ({"messages": ["hi"]}, "messages.0 must be an object with a role"),
        ({"min_weight_version": -1}, "min_weight_version must be"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content must be text"),
        *(
            ({"prompt": prompt}, "prompt must be a text")
            for prompt in (None, [], {}, 5, [1, "a"], [[]], [[1], "a"], [None], [True], [-1], [2**31])
        ),
        ({"prompt": ["a"] * 3, "n": 3}, "asks for more than 8 completions"),
        *(
            ({"prompt": "a", "stop": stop}, "stop holds a lone surrogate")
            for stop in ("\ud800", ["x", "\ud800"])
        ),
    ],
)
def test_what_is_not_served_is_refused_and_not_dropped(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        asked(change, "completion") if "prompt" in change else asked({**CHAT, **change})


def test_more_completions_than_a_replica_ever_has_places_are_refused_at_once() -> None:
    limits = Serve(max_sequences=4, max_samples=8)
    with pytest.raises(Refused, match="n must be a whole number from 1 to 4"):
        checked({**CHAT, "n": 5}, "chat", limits, (), "id")
    places = Admission("generator/a", 1, 1, limits.max_sequences)
    with pytest.raises(NoRoom), places.held_to_serve(5):
        pass
    checked({"prompt": ["a", "b"], "n": 4}, "completion", limits, (), "id")  # each prompt has places
    with places.held_to_serve(4):
        pass


@pytest.mark.parametrize("prompt", ["", "a", [1, 2], ["a", "b"], [[1], [2, 3]]])
def test_prompts_come_as_texts_and_as_tokens(prompt: Any) -> None:
    assert asked({"prompt": prompt}, "completion")["prompt"] == prompt


class Inner:
    """An application that remembers what reached it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def guarded(inner: Inner, token: str = "secret", per_minute: int = 600) -> httpx.AsyncClient:
    async def digest() -> str:
        return hashlib.sha256(token.encode()).hexdigest() if token else ""

    app = Guard(inner, digest, Rate(per_minute, lambda: 0.0), 1024)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://endpoint")


async def ask(client: httpx.AsyncClient, **options: Any) -> httpx.Response:
    return await client.post("/completions", **options)


WRONG = ["Bearer wrong", "secret", "Basic secret", "Bearer ", "Bearer s\xe9cret"]


@pytest.mark.parametrize(
    ("key", "token"), [(None, "secret"), *((k, "secret") for k in WRONG), ("Bearer ", "")]
)
async def test_without_the_key_of_a_run_nothing_is_read(
    key: str | None, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HORA_TOKEN", raising=False)
    inner = Inner()
    headers = {} if key is None else {"Authorization": key.encode("latin-1")}
    found = await ask(guarded(inner, token), headers=headers, content=b"x" * 5000)
    assert (found.status_code, inner.bodies) == (401, [])
    assert found.json()["error"]["code"] == 401


async def chunks(n: int) -> Any:
    for _ in range(n):
        yield b"x" * 256


async def test_a_request_that_is_too_large_is_cut_off_whatever_its_length_says() -> None:
    inner = Inner()
    client, no_number = guarded(inner), {**KEY, "content-length": "0x9"}
    for headers, large in ((KEY, b"x" * 1025), (KEY, chunks(5)), (no_number, b"")):
        assert (await ask(client, headers=headers, content=large)).status_code == 413
    assert inner.bodies == []
    for fits in (b"x" * 1024, chunks(4)):
        assert (await ask(client, headers=KEY, content=fits)).status_code == 200
    assert [len(body) for body in inner.bodies] == [1024, 1024]


async def test_too_many_requests_are_told_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HELD_S", 0.05)
    began = time.monotonic()
    client = guarded(Inner(), per_minute=60)
    found = [await client.post("/completions", headers=KEY, content=b"{}") for _ in range(9)]
    assert [r.status_code for r in found] == [200] * 6 + [429] * 3
    assert time.monotonic() - began > 3 * 0.05, "a client that comes again at once is held"
    assert found[-1].headers["retry-after"] == "2"
    assert json.loads(found[-1].text)["error"]["type"] == "rate_limit_error"


def test_the_rate_fills_again() -> None:
    now = [0.0]
    rate = Rate(60, lambda: now[0])
    assert sum(rate.wait_s() == 0.0 for _ in range(100)) == 6
    now[0] = 3.0
    assert sum(rate.wait_s() == 0.0 for _ in range(100)) == 3


class Replicas:
    """Replicas with `places` places; `asked` counts how often they were asked."""

    def __init__(self, places: int) -> None:
        self.places, self.asked = places, 0

    async def ask(self) -> int:
        self.asked += 1
        if not self.places:
            raise NoRoom("full")
        self.places -= 1
        return self.asked


async def test_requests_wait_in_line_and_are_served_in_order() -> None:
    line, replicas, served = Line(5.0, 8, again_s=0.01), Replicas(0), list[int]()

    async def client(number: int) -> None:
        await line.served(replicas.ask)
        served.append(number)

    clients = [asyncio.create_task(client(i)) for i in range(6)]
    await asyncio.sleep(0.1)
    assert replicas.asked < 15, "one asks for all"
    clients[0].cancel()
    replicas.places = 5
    await asyncio.gather(*clients, return_exceptions=True)
    assert served == [1, 2, 3, 4, 5]


async def test_a_line_is_bounded_in_length_and_in_time() -> None:
    line, replicas = Line(0.2, 2, again_s=0.01), Replicas(0)
    asks = [line.served(replicas.ask) for _ in range(3)]
    found = await asyncio.gather(*asks, return_exceptions=True)
    replicas.places = 1
    *refused, served = [*map(str, found), await line.served(replicas.ask)]
    assert refused == ["no generator had room for 0 s"] * 2 + ["2 requests wait for a generator"]
    assert served
