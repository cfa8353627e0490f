"""Runs episodes of an environment of the library `verifiers`, in the Python that has the library.

    python worker.py '{"model": "run", "taskset": "my-rooms", "env": null, "config": {}}'

Imports nothing else of this project. Messages are lines of JSON. On standard input:

    {"id": 7, "task": 3}                                              begin an episode of task 3
    {"id": 7, "said": "...", "tokens": 5, "finish": "stop"}           the policy's turn
    {"id": 7, "over": true}                                           a limit: no further turn
    {"id": 7, "cancel": true}

On standard output:

    {"ready": "0.4.0"} or {"failed": "..."}, first
    {"id": 7, "ask": [{"role": "user", "content": "..."}]}            the conversation so far
    {"id": 7, "rewards": {"solved": 1.0}} or {"id": 7, "fault": "raises ..."}

This process serves the policy as an OpenAI-compatible server on loopback, protected by a key. So the
library's client, interception, limits and rubrics are used unchanged. Tokens stay with the parent process.
"""

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

import verifiers
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.configs.agent import agent_config_fields

KEY = "HORA_POLICY_API_KEY"  # the library hides variables of such names from programs that it starts
SESSION = "X-Session-ID"
HARNESS = "chat-harness"
LONGEST_LINE = 1 << 24
Line = dict[str, Any]
"""A JSON object, one a line."""


class Misfit(Exception):
    """The episode is not supported. The text begins with a verb."""


@dataclass
class Running:
    """One episode: the trace of the policy's agent, and the open turn."""

    task: asyncio.Task[None] | None = None
    trace: vf.Trace | None = None
    turn: asyncio.Future[Line] | None = None
    misfit: str | None = None
    traces: list[vf.Trace] = field(default_factory=list)


class Worker:
    """`request` is the parsed command-line argument. Messages are written to `out`."""

    def __init__(self, request: Line, out: TextIO) -> None:
        self._request, self._out = request, out
        self._running: dict[int, Running] = {}
        self._of_trace: dict[str, int] = {}
        self._env = vf.load_environment(configured(request))
        self._source: Iterator[Any] = iter(self._env.taskset)
        self._tasks: list[Any] = []
        os.environ[KEY] = secrets.token_hex(16)

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Run until standard input ends."""
        app = web.Application(client_max_size=LONGEST_LINE)
        app.router.add_post("/v1/chat/completions", self._completion)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var=KEY)
        context = vf.ModelContext(model=self._request["model"], client=client)
        async with self._env.serving():
            self._say({"ready": verifiers.__version__})
            while line := await lines.readline():
                self._hear(json.loads(line), context)

    def _hear(self, line: Line, context: vf.ModelContext) -> None:
        number = line["id"]
        if "task" in line:
            begun = self._running[number] = Running()
            begun.task = asyncio.ensure_future(self._episode(number, line["task"], context, begun))
            begun.task.add_done_callback(partial(self._report, number))
        elif (running := self._running.get(number)) is None:
            return
        elif line.get("cancel"):
            assert running.task is not None
            running.task.cancel()
        elif running.turn is not None and not running.turn.done():
            running.turn.set_result(line)

    async def _episode(self, number: int, task: int, context: vf.ModelContext, running: Running) -> None:
        def minted(trace: vf.Trace) -> None:
            self._of_trace[trace.id] = number
            running.traces.append(trace)

        try:
            made = await self._env.run_episode(self._task(task), context, on_trace=minted)
            self._say({"id": number, **_ended(made, running)})
        finally:
            for trace in running.traces:
                self._of_trace.pop(trace.id, None)
            self._running.pop(number, None)

    def _report(self, number: int, episode: asyncio.Task[None]) -> None:
        """Report the error of an episode: environments may raise anything."""
        error = None if episode.cancelled() else episode.exception()
        if error is not None:
            text = str(error) if isinstance(error, Misfit) else f"raises {type(error).__name__}: {error}"
            self._say({"id": number, "fault": text[:500]})

    def _task(self, number: int) -> Any:
        while len(self._tasks) <= number:
            try:
                self._tasks.append(next(self._source))
            except StopIteration:
                raise Misfit(f"has no task {number}: it has {len(self._tasks)}") from None
        return self._tasks[number]

    async def _completion(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {os.environ[KEY]}":
            return _refused("not for you", 401)
        number = self._of_trace.get(request.headers.get(SESSION, ""))
        if number is None:
            return _refused("no such episode")
        running = self._running[number]
        trace = next(t for t in running.traces if t.id == request.headers[SESSION])
        try:
            messages = plain(await request.json())
            running.trace = running.trace or trace
            if running.trace is not trace:
                raise Misfit("lets several agents ask the policy: give each but one a `client` of its own")
            if running.turn is not None:
                raise Misfit("asks for two turns at a time")
        except Misfit as misfit:
            running.misfit = str(misfit)
            return _refused(str(misfit))
        running.turn = asyncio.get_running_loop().create_future()
        self._say({"id": number, "ask": messages})
        try:
            answer = await running.turn
        finally:
            running.turn = None
        if answer.get("over"):
            trace.stop("hora_limit")
            return _refused("a limit of `environment` is reached")
        return web.json_response(_chat(answer, self._request["model"]))

    def _say(self, line: Line) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def configured(request: Line) -> vf.EnvConfig:
    """The user's configuration, with the policy as each agent that has no `client`. Raises Misfit."""
    raw = {**request["config"], "taskset": {**request["config"].get("taskset", {}), "id": request["taskset"]}}
    if request["env"]:
        raw["id"] = request["env"]
    config = vf.resolve_env_config(raw)
    seats = agent_config_fields(config)
    policies = [name for name, seat in seats.items() if seat.client is None]
    if not policies:
        raise Misfit(f"leaves no agent to the policy: each of {', '.join(seats)} has a `client` of its own")
    for name in policies:
        settings = raw.get(name, {})
        raw[name] = {**settings, "harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}, "retries": {}}
    return vf.resolve_env_config(raw)


def plain(body: Line) -> list[dict[str, str]]:
    """The messages of a request as role and text. Raises Misfit for any other content."""
    if body.get("tools"):
        raise Misfit("offers tools, but only text is supported here")
    messages = []
    for message in body.get("messages", []):
        content = message.get("content") or ""
        if isinstance(content, list):
            if any(part.get("type") != "text" for part in content):
                raise Misfit("sends content other than text")
            content = "".join(part["text"] for part in content)
        if message.get("tool_calls"):
            raise Misfit("calls tools, but only text is supported here")
        messages.append({"role": message["role"], "content": content})
    return messages


def _ended(made: vf.Episode, running: Running) -> Line:
    """The result of an episode. Only `ok` shows a failure: failed episodes also have rewards of 0."""
    if running.misfit is not None:
        return {"fault": running.misfit}
    if not made.ok:
        errors = [*made.errors, *(e for t in made.traces for e in t.errors)]
        why = f"{errors[-1].type}: {errors[-1].message}" if errors else "no reason given"
        return {"fault": f"raises {' '.join(why.split())}"[:500]}
    if running.trace is None:
        return {"fault": "ends before the policy had a turn: there is nothing to learn from"}
    rewards = {name: r.score for name, r in running.trace.rewards.items() if r is not None}
    return {"rewards": {"reward": running.trace.reward, **rewards}}


def _chat(answer: Line, model: str) -> Line:
    message = {"role": "assistant", "content": answer["said"]}
    return {
        "id": secrets.token_hex(8),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": answer["finish"]}],
        "usage": {
            "prompt_tokens": 0,  # unknown here
            "completion_tokens": answer["tokens"],
            "total_tokens": answer["tokens"],
        },
    }


def _refused(reason: str, status: int = 400) -> web.Response:
    error = {"message": reason, "type": "invalid_request_error", "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


async def main() -> None:
    # Keep output of the environment out of the message stream.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        worker = Worker(json.loads(sys.argv[1]), out)
    except Exception as error:  # noqa: BLE001  an environment may raise anything at its load
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(json.dumps({"failed": text[:1000]}), file=out, flush=True)
        return
    lines = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await worker.serve(lines)


if __name__ == "__main__":
    asyncio.run(main())
