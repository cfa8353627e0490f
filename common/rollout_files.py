"""RUN/rollouts: trained rollouts, one Parquet file per optimizer step, one row per rollout. The rows of a
prompt are consecutive, Phase A first, in sampling order."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

FOLDER = "rollouts"
REWARD = "reward/"
"""Prefix of reward columns; the column `reward` is the weighted sum."""
ARRAYS = ("tokens", "logprobs")
_NAME = re.compile(r"step-(\d+)\.parquet")
_VERSION = pa.struct([("version", pa.int32()), ("start", pa.int32()), ("end", pa.int32())])


def schema(rewards: Sequence[str], *, logprobs: bool) -> pa.Schema:
    """Columns of a run with these rewards. Times are in seconds since the epoch. `logprob` is the mean over
    the completion's tokens; `logprobs` and `tokens` (L,) exist if the run keeps them."""
    label = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("step", pa.int32()),
            ("batch", pa.int32()),
            ("epoch", pa.int32()),
            ("prompt", pa.int32()),
            ("group", pa.string()),
            ("source", label),
            ("number", pa.int32()),
            ("phase", label),
            ("round", pa.int32()),
            ("success", pa.bool_()),
            ("reward", pa.float64()),
            *((REWARD + name, pa.float64()) for name in rewards),
            ("length", pa.int32()),
            ("finish", label),
            ("logprob", pa.float32()),
            ("version_min", pa.int32()),
            ("version_max", pa.int32()),
            ("versions", pa.list_(_VERSION)),
            ("replica", label),
            *((name, pa.float64()) for name in ("queued", "first_token", "done", "scored")),
            ("prompt_text", pa.string()),
            ("completion", pa.string()),
            *([("tokens", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float16()))] if logprobs else []),
        ]
    )


def path_of(run_dir: Path, step: int) -> Path:
    return run_dir / FOLDER / f"step-{step:08d}.parquet"


def files_of(run_dir: Path) -> dict[int, Path]:
    matches = ((_NAME.fullmatch(path.name), path) for path in (run_dir / FOLDER).glob("step-*.parquet"))
    return dict(sorted((int(name[1]), path) for name, path in matches if name))
