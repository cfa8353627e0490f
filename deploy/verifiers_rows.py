"""Write the data set of an environment of the library `verifiers`: one row per task.

python -m hora_rl.deploy.verifiers_rows CONFIG [-s KEY=VALUE] [--limit N]
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hora_rl.actors.environment.verifiers_bridge.process import TASK, VerifiersEnvironment
from hora_rl.common.config import DataConfig
from hora_rl.common.config.environment import VerifiersConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.cli import main
from hora_rl.deploy.result_commands import ConfigPath, Overrides

AT_A_TIME = 32


def write_rows(data: DataConfig, environment: VerifiersConfig | None, run: str, limit: int) -> int:
    """Write `data.path`: for up to `limit` tasks, the opening message of the environment and the task's
    number. Returns the number of rows. Raises ConfigError if the file exists, the environment cannot be
    loaded, or `data` cannot express its openings."""
    file = Path(data.path)
    if environment is None:
        raise ConfigError("environment.verifiers is not set, and rows are written for its tasks alone")
    if file.suffix != ".jsonl" or file.exists():
        raise ConfigError(f"data.path ({file}): name a new .jsonl file, which is to be written")
    if data.template != "{problem}":
        raise ConfigError(
            f"data.template ({data.template!r}) must be {{problem}}: the environment writes all"
        )
    openings = asyncio.run(_openings(VerifiersEnvironment(environment, run), limit))
    if not openings:
        raise ConfigError(f"environment.verifiers: {environment.taskset} has no tasks")
    rows = (
        {"problem": problem_of(opening, data.system, number), "answer": "", TASK: number}
        for number, opening in enumerate(openings)
    )
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return len(openings)


async def _openings(library: VerifiersEnvironment, limit: int) -> list[list[dict[str, str]]]:
    openings: list[list[dict[str, str]]] = []
    try:
        await library.start()
        while len(openings) < limit:
            numbers = range(len(openings), min(len(openings) + AT_A_TIME, limit))
            made = await asyncio.gather(*map(library.opening, numbers))
            openings += [opening for opening in made if opening is not None]
            if None in made:
                break
    finally:
        await library.close()
    return openings


def problem_of(opening: Sequence[dict[str, str]], system: str | None, task: int) -> str:
    """The user message of an opening. Raises ConfigError if the opening has other messages than `system` and
    one user message."""
    roles = [message["role"] for message in opening]
    if roles not in (["user"], ["system", "user"]):
        raise ConfigError(
            f"environment.verifiers: task {task} opens with {', '.join(roles)}, and a prompt is at most one "
            "system message and one user message"
        )
    theirs = opening[0]["content"] if len(opening) == 2 else None
    if theirs != system:
        raise ConfigError(
            f"environment.verifiers: task {task} opens with system message {theirs!r:.200}, and data.system "
            f"is {system!r:.200}: set data.system to that of the environment"
        )
    return opening[-1]["content"]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def rows(
    config: ConfigPath,
    set_: Overrides = None,
    limit: Annotated[int, typer.Option(min=1, help="Most tasks; a task set may be infinite.")] = 10_000,
) -> None:
    """Write data.path: one row per task of the environment's task set."""
    chosen = load(config, set_ or ())
    written = write_rows(chosen.data, chosen.environment.verifiers, chosen.run.name, limit)
    print(f"{chosen.data.path}: {written} rows")


if __name__ == "__main__":
    main(app)
