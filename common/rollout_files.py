"""RUN/rollouts: the rollouts that were trained on, one Parquet file per optimizer step, one row per rollout.

The learner writes a file when its step is trained (`learner/rollout_writer.py`);
`evaluation/rollout_table.py` reads them. The rows of a
prompt follow each other, Phase A first, in the order in which they were drawn.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from hora_rl.common.config import Telemetry

FOLDER = "rollouts"
REWARD = "reward/"
"""What precedes a reward's name in the name of its column; `reward` alone is the weighted sum."""
ARRAYS = ("tokens", "logprobs")
KEPT = "hora.rollouts"
"""Metadata of a file: telemetry.rollouts when it was written. Two starts of a run may differ in it."""
_NAME = re.compile(r"step-(\d+)\.parquet")
_VERSION = pa.struct([("version", pa.int32()), ("start", pa.int32()), ("end", pa.int32())])


def schema(rewards: Sequence[str], *, logprobs: bool) -> pa.Schema:
    """Columns of a run with these rewards. Times are seconds since the epoch; `logprob` is the mean over the
    completion's tokens, and `logprobs` and `tokens` (L,) are there when the run keeps them."""
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
    """The files of a run by their step, in rising order; empty where there are none."""
    found = ((_NAME.fullmatch(path.name), path) for path in (run_dir / FOLDER).glob("step-*.parquet"))
    return dict(sorted((int(name[1]), path) for name, path in found if name))


def keeps(telemetry: Telemetry, seed: int, prompt: int) -> bool:
    """Whether the rollouts of this prompt are written. A sample is one of prompts, by the run's `seed` the
    same in every epoch, so that a prompt can be followed over training."""
    kept = telemetry.rollouts
    if kept != "sample":
        return kept == "all"
    digest = hashlib.blake2b(f"{seed}:{prompt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < telemetry.rollouts_share * 2**64
