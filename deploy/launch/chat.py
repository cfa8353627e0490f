"""`hora chat`: talk to a run's policy in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
from rich.console import Console

from common.errors import RunError
from deploy.launch.serving import Served, config_of, serving

READ_S = 600.0


def chat_with_run(run: Path, step: int | None, url: str | None, temperature: float) -> None:
    """A conversation with the policy, line by line, until an empty one. With `url` the endpoint of a run that
    trains, else one that is started for it. It begins with the run's system message, as its prompts do."""
    console = Console()
    system = config_of(run).data.system
    if url is not None:
        served = Served(url.rstrip("/").removesuffix("/v1"), "", run / "token")
        _talk(served, system, temperature, console)
        return
    with serving(run, step, console) as served:
        _talk(served, system, temperature, console)


def _talk(served: Served, system: str | None, temperature: float, console: Console) -> None:
    messages = [{"role": "system", "content": system}] if system else []
    console.print("An empty line ends it.", style="dim")
    while line := _asked(console):
        messages.append({"role": "user", "content": line})
        said = ""
        for piece in streamed(served, messages, temperature):
            said += piece
            console.print(plain(piece), end="", markup=False, highlight=False, soft_wrap=True)
        console.print()
        messages.append({"role": "assistant", "content": said})


def _asked(console: Console) -> str:
    try:
        return console.input("[bold]you[/bold] ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


def streamed(served: Served, messages: list[dict[str, str]], temperature: float) -> Iterator[str]:
    """The policy's next turn, piece by piece. Raises RunError with the endpoint's own words."""
    body = {"messages": messages, "temperature": temperature, "stream": True}
    headers = {"Authorization": f"Bearer {served.key}"}
    try:
        with httpx.stream(
            "POST", f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=READ_S
        ) as response:
            if response.status_code != 200:
                response.read()
                raise RunError(f"{served.url}: {response.status_code}: {_reason(response.text)}")
            yield from _pieces(response.iter_lines())
    except httpx.HTTPError as error:
        raise RunError(f"{served.url}: {type(error).__name__}: {error}") from None


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        data = line.removeprefix("data: ")
        if not line.startswith("data: ") or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise RunError(_reason(data))
        for choice in event.get("choices", []):
            yield choice["delta"].get("content") or ""


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]


def plain(text: str) -> str:
    """Without what a terminal would obey: what a model says is data."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
