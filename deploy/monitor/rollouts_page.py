"""The page "Rollouts": the rollouts of a run, read from the learner's folder.

`/rollouts` is the page, `/rollouts/rows` its data. JSON contains the texts as sampled; the page inserts them
as text and escapes characters that would move or hide other text.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis
from hora_rl.common.live.state import read_config, read_state
from hora_rl.common.rollout_files import ARRAYS, REWARD
from hora_rl.deploy.monitor.feed import Feed
from hora_rl.evaluation.rollout_table import Order, columns_of, read_rollouts, steps_of
from hora_rl.evaluation.run_folders import RunFolderError

PAGE = Path(__file__).with_name("rollouts.html")
READERS = 2
"""Concurrent queries, so that many clients cannot take all processors from a run."""
TEXT_BYTES = 8 * 2**20
"""Most characters of text in one response."""
LONG = ("prompt_text", "completion")


class Choice(BaseModel):
    """Selection of rows, as in `hora rollouts`. Texts longer than `chars` lose their middle."""

    step: int | None = Field(None, ge=0)
    prompt: int | None = Field(None, ge=0)
    success: bool | None = None
    phase: Literal["A", "B"] | None = None
    source: str | None = Field(None, max_length=200)
    order: Order = "newest"
    limit: int = Field(40, ge=1, le=400)
    offset: int = Field(0, ge=0, le=10_000_000)
    chars: int = Field(4000, ge=200, le=1_000_000)


def add_rollouts(app: FastAPI, feed: Feed, known: Path | None, headers: dict[str, str]) -> None:
    """Add the page (with `headers`) and its rows to `app`. They are in the `known` run folder, else in the
    learner's, else in that of the configuration."""
    page, readers = PAGE.read_bytes(), asyncio.Semaphore(READERS)

    def folder(client: Redis) -> Path:
        config = read_config(client.get(Keys(feed.run).config), feed.run)
        reported = read_state(client, feed.run).folder
        return Path(reported) if reported else config.run.path.absolute()

    @app.get("/rollouts", include_in_schema=False)
    async def index() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    @app.get("/rollouts/rows")
    async def rows(choice: Annotated[Choice, Query()]) -> Response:
        """Rollouts of the run. 404 if there are none on this machine."""
        run_folder = await feed.call(folder) if known is None else known
        try:
            async with readers:
                return JSONResponse(await asyncio.to_thread(read, run_folder, choice))
        except RunFolderError as error:
            raise HTTPException(404, str(error)) from None


def read(run: Path, choice: Choice) -> dict[str, object]:
    """The rows of `choice`, with the number of `steps` on disk, the `first` and the `last` one, the names of
    rewards, and whether `more` rows follow. Raises RunFolderError if files cannot be read."""
    steps, columns = steps_of(run), [name for name in columns_of(run) if name not in ARRAYS]
    # One more row shows whether further rows follow.
    query = choice.model_dump(exclude={"chars"}) | {"limit": choice.limit + 1}
    table = read_rollouts(run, **query, columns=columns)
    chars = min(choice.chars, TEXT_BYTES // (len(LONG) * choice.limit))
    rows = [_short(row, chars) for row in table.slice(0, choice.limit).to_pylist()]
    rewards = [name.removeprefix(REWARD) for name in columns if name.startswith(REWARD)]
    return {
        "folder": str(run),
        "steps": len(steps),
        "first": steps[0],
        "last": steps[-1],
        "rewards": rewards,
        "rows": rows,
        "more": table.num_rows > choice.limit,
    }


def _short(row: dict[str, Any], chars: int) -> dict[str, Any]:
    """Cut the middle of long texts in `row`. `left_out` counts the cut characters by column."""
    left_out = {}
    for name in LONG:
        text = row[name]
        if len(text) > chars:
            head, tail = chars * 2 // 3, chars // 3
            left_out[name] = {"at": head, "characters": len(text) - head - tail}
            row[name] = text[:head] + text[-tail:]
    return row | {"left_out": left_out}
