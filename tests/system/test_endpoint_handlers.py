"""Ten thousand odd requests through vLLM's own handlers: each is answered or refused, and none is a fault of
the server's. The replicas' answers are made up here; `test_endpoint.py` has the real ones."""

import asyncio
import collections
import gc
import json
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray.exceptions import RayActorError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput, WeightVersionSpan

from hora_rl.actors.endpoint.app import Handlers, create_app
from hora_rl.actors.endpoint.proxy import EngineProxy
from hora_rl.actors.endpoint.requests import FIELDS
from hora_rl.actors.generator.engine_args import engine_args
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.stop_tokens import stop_tokens
from hora_rl.common.load import load

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
COUNT = 10_000
SAID = [2, 3, 4, 30, 26, 5, 1]


class Stream:
    """What a handle's streaming call gives."""

    def __init__(self, tokens: list[int], params: Any) -> None:
        self._tokens, self._params = tokens, params
        self._outputs = self._said()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> RequestOutput | None:
        return await anext(self._outputs)

    async def _said(self) -> AsyncIterator[RequestOutput | None]:
        yield None  # a place
        spans = [WeightVersionSpan("3", 0, len(SAID))]
        likely = None if self._params.logprobs is None else [{t: Logprob(-0.1, 1, "x")} for t in SAID]
        outputs = [
            CompletionOutput(i, "95", SAID, 0.0, likely, finish_reason="stop", weight_versions=spans)
            for i in range(self._params.n)
        ]
        yield RequestOutput("r", None, self._tokens, None, outputs, finished=True)

    def cancel(self) -> None:
        """It has ended."""


class Silent(Stream):
    """A replica that has a place, and says nothing."""

    async def _said(self) -> AsyncIterator[RequestOutput | None]:
        yield None
        await asyncio.Event().wait()


class Dying(Stream):
    """A replica whose node is lost after its first tokens."""

    async def _said(self) -> AsyncIterator[RequestOutput | None]:
        async for output in super()._said():
            if output is not None:
                output.finished = False
            yield output
        raise RayActorError(error_msg="The actor died unexpectedly.\n\tip: 10.0.0.7\n\tpid: 4711")


class Replica:
    """A generator's handle. Logs what vLLM would have been asked, and of which prompt."""

    def __init__(self) -> None:
        self.stream: type[Stream] = Stream
        self.asked: list[Any] = []
        self.prompts: list[list[int]] = []
        self.versions: list[int] = []

    def options(self, **_: object) -> "Replica":
        return self

    def remote(self, tokens: list[int], params: Any, version: int) -> Stream:
        self.asked.append(params)
        self.prompts.append(tokens)
        self.versions.append(version)
        return self.stream(tokens, params)


@pytest.fixture(scope="module")
def served() -> tuple[Replica, EngineProxy, Any]:
    return serving(load("tiny"))


def serving(config: Config) -> tuple[Replica, EngineProxy, Any]:
    replica = Replica()
    proxy = EngineProxy(engine_args(config), replica)
    stops = stop_tokens(config, load_tokenizer(config.model.path))
    return (
        replica,
        proxy,
        create_app(Handlers(config.run.name, config.serve, proxy, stops, config.evaluated.data)),
    )


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**70), 0.5, -0.5, 1e308, "", "a", "tiny", "\ud800",
    "user", "x" * 5000, [], {}, [1], [-1], ["a"], [[5], [6]], [None], {"a": 1},
    {"type": "text", "text": "hi"},
    [{"role": "user", "content": "hi"}], [{"role": "user"}], [{"role": "tool", "content": "9"}],
    [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
    [{"type": "function", "function": {"name": "f", "parameters": {}}}], {"include_usage": True},
]  # fmt: skip
OURS = {"priority", "echo", "min_weight_version", "logit_bias"}
NAMES = sorted(FIELDS["chat"] | FIELDS["completion"] | OURS)
RAW = [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'"a"', b"null", b"NaN", b'{"n": Infinity}']
KINDS = {
    "/chat/completions": {"messages": [{"role": "user", "content": "37+58=?"}]},
    "/completions": {"prompt": "a"},
}


async def fuzz(app: Any) -> collections.Counter[int]:
    rng, found = random.Random(0), collections.Counter[int]()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        for i in range(COUNT):
            path = rng.choice(list(KINDS))
            odd = {name: rng.choice(VALUES) for name in rng.sample(NAMES, rng.choice([1, 1, 1, 2, 3]))}
            body = json.dumps({**KINDS[path], **odd}).encode() if i % 20 else rng.choice(RAW)
            response = await client.post(path, content=body)
            found[response.status_code] += 1
            assert response.status_code < 500, (path, body[:300], response.text[:300])
            if response.status_code >= 400:
                assert response.json()["error"]["message"], body
    return found


def test_ten_thousand_odd_requests_are_no_server_s_fault(served: tuple[Replica, EngineProxy, Any]) -> None:
    replica, proxy, app = served
    found = asyncio.run(fuzz(app))
    print(dict(found))
    assert found[200] > 500
    assert found[400] > 3_000
    assert not proxy.watched, "nothing is remembered of a request that has ended"
    assert all(1 in params.stop_token_ids for params in replica.asked)
    assert {params.n for params in replica.asked} <= set(range(1, 9))


def ask(app: Any, **more: Any) -> httpx.Response:
    """The response of /chat/completions."""

    async def inside() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.post("/chat/completions", json={**KINDS["/chat/completions"], **more})

    return asyncio.run(inside())


def test_nothing_is_truncated_unasked(served: tuple[Replica, EngineProxy, Any]) -> None:
    replica, _, app = served
    assert ask(app).json()["weight_versions"] == [[{"version": 3, "start": 0, "end": len(SAID)}]]
    params = replica.asked[-1]
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (1.0, 1.0, 0, 1.0)


def test_seed_stops_and_version_reach_the_engine(served: tuple[Replica, EngineProxy, Any]) -> None:
    replica, _, app = served
    assert ask(app, seed=7, stop=["</answer>", "!"], min_weight_version=3).status_code == 200
    params = replica.asked[-1]
    assert (params.seed, params.stop, replica.versions[-1]) == (7, ["</answer>", "!"], 3)


def test_a_stream_ends_with_the_versions_of_its_tokens(served: tuple[Replica, EngineProxy, Any]) -> None:
    _, proxy, app = served
    *events, versions, done = [line for line in ask(app, stream=True).text.split("\n\n") if line]
    assert done == "data: [DONE]"
    spans = json.loads(versions.removeprefix("data: "))["weight_versions"]
    assert spans == [[{"version": 3, "start": 0, "end": len(SAID)}]]
    choices = [c for e in events for c in json.loads(e.removeprefix("data: "))["choices"]]
    assert "95" in [c["delta"].get("content") for c in choices]
    assert not proxy.watched


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_remembered_of_a_client_that_went_away_before_the_first_token(
    served: tuple[Replica, EngineProxy, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, proxy, app = served
    monkeypatch.setattr(replica, "stream", Silent)

    async def leave() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            body = {**KINDS["/chat/completions"], "stream": stream}
            asked = asyncio.ensure_future(client.post("/chat/completions", json=body))
            while not proxy.watched:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            asked.cancel()
            await asyncio.wait({asked})
            del asked
            await asyncio.sleep(0)
            gc.collect()
            assert not proxy.watched

    asyncio.run(leave())


@pytest.mark.parametrize("stream", [True, False])
def test_a_replica_that_dies_is_one_line_without_its_address(
    served: tuple[Replica, EngineProxy, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, _, app = served
    monkeypatch.setattr(replica, "stream", Dying)
    said = ask(app, stream=stream).text
    assert "10.0.0.7" not in said
    assert ("has ended: send it again" if stream else "could not be served") in said


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SHOWS_TOOLS = """{% for tool in tools or [] %}tool {{ tool.function.name }}
{% endfor %}{% for message in messages %}{{ message.role }} {{ message.content }}
{% endfor %}"""


def test_the_run_s_chat_template_and_its_settings_are_the_default() -> None:
    own = "{% for m in messages %}{{ kind }}: {{ m.content }}{% endfor %}"
    config = load("tiny", [f"data.chat_template={own!r}", "data.chat_template_kwargs={kind: 1}"])
    replica, _, app = serving(config)
    assert ask(app, messages=KINDS["/chat/completions"]["messages"]).status_code == 200
    assert load_tokenizer(config.model.path).decode(replica.prompts[-1]) == "1: 37+58=?"


def test_tools_are_in_the_prompt_as_the_chat_template_has_them(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(load("tiny").model.path, model)
    (model / "chat_template.jinja").write_text(SHOWS_TOOLS)
    config = load("tiny", [f"model.path={model}"])
    replica, _, app = serving(config)
    tokenizer = load_tokenizer(str(model))
    turns = [{"role": "assistant", "content": "add 37 58"}, {"role": "tool", "content": "95"}]
    messages = [*KINDS["/chat/completions"]["messages"], *turns]
    found = ask(app, messages=messages, tools=TOOLS)
    assert found.status_code == 200, found.text
    message = found.json()["choices"][0]["message"]
    assert message["content"] == "95"
    assert not message.get("tool_calls"), "a call stays the text that it is"
    assert tokenizer.decode(replica.prompts[-1]) == ("tool add\nuser 37+58=?\nassistant add 37 58\ntool 95\n")
