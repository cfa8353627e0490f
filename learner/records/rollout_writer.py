"""Writes RUN/rollouts: the rollouts of each step, by rank 0, while the next step trains.

    train step ─► write(step, groups) ─► thread: text, table, Parquet ─► replaces step-N.parquet
    checkpoint ─► flush(): every file is on the disk before the groups are dropped

A restarted learner repeats the steps that its checkpoint lacks, on the same groups, and replaces their files.
So no rollout of a trained group is missing or duplicated after any crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from hora_rl.common.config import Config
from hora_rl.common.data.rewards import total
from hora_rl.common.data.special_tokens import completed, silent_tokens, spoken, stop_texts
from hora_rl.common.files import replacing, sync
from hora_rl.common.rollout_files import ARRAYS, FOLDER, REWARD, files_of, path_of, schema
from hora_rl.common.types import Group, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROW_GROUP = 128
"""Rows compressed together: few, so one prompt can be read without the rest of a step."""
UNIQUE = ("completion", "versions", "logprob", *ARRAYS)
"""Columns without dictionary encoding, because their values hardly repeat."""
GIB = 2**30


class RolloutFiles:
    """Rank 0's files in `run_dir`. Those of steps from `start` on, left by a crash, are removed first."""

    def __init__(
        self, config: Config, tokenizer: PreTrainedTokenizerBase, run_dir: Path, start: int = 0
    ) -> None:
        self._config, self._run_dir = config, run_dir
        self._tokenizer, self._silent = tokenizer, silent_tokens(tokenizer)
        self._stop = stop_texts(config.rollout.stop, tokenizer)
        self._thread = ThreadPoolExecutor(1, "rollouts")
        self._writing: Future[None] | None = None
        self._unsynced: list[Path] = []
        if config.telemetry.rollouts != "none":
            (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
        files = files_of(run_dir)
        for step in [s for s in files if s >= start]:
            files.pop(step).unlink()
        self._sizes = {step: path.stat().st_size for step, path in files.items()}

    def write(self, step: int, groups: Sequence[Group]) -> None:
        """Write step `step` in the background, after the previous file, whose OSError is raised."""
        self._wait()
        if self._config.telemetry.rollouts != "none":
            self._writing = self._thread.submit(self._write, step, list(groups))

    def flush(self) -> None:
        self._wait()
        if self._unsynced:
            sync(*(path for path in self._unsynced if path.exists()), self._run_dir / FOLDER)
        self._unsynced = []

    def close(self) -> None:
        self.flush()
        self._thread.shutdown()

    def _wait(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _write(self, step: int, groups: Sequence[Group]) -> None:
        path = path_of(self._run_dir, step)
        table = self._table(step, groups)
        repeated = [name for name in table.column_names if name not in UNIQUE]
        with replacing(path) as new:
            pq.write_table(table, new, compression="zstd", row_group_size=ROW_GROUP, use_dictionary=repeated)
        self._sizes[step] = path.stat().st_size
        self._unsynced.append(path)
        self._forget()

    def _table(self, step: int, groups: Sequence[Group]) -> pa.Table:
        config, logprobs = self._config, self._config.telemetry.rollouts == "logprobs"
        earned = (name for g in groups for r in g.rollouts for name in r.rewards)
        form = schema(list(dict.fromkeys([*config.reward_names, *earned])), logprobs=logprobs)
        weights = {source: config.of(source).reward.weights for source in config.source_names}
        ordered = sorted(groups, key=lambda g: g.prompt_index)
        of_groups = (self._rows(step, g, weights[g.source], logprobs=logprobs) for g in ordered)
        return pa.Table.from_pylist([row for rows in of_groups for row in rows], schema=form)

    def _rows(
        self, step: int, group: Group, weights: Mapping[str, float], *, logprobs: bool
    ) -> Iterator[dict[str, object]]:
        of_group = {
            "step": step,
            "batch": group.batch,
            "epoch": group.epoch,
            "prompt": group.prompt_index,
            "group": group.id,
            "source": group.source or None,
            "prompt_text": spoken(self._tokenizer, frozenset(), group.prompt_tokens.tolist()),
        }
        for number, rollout in enumerate(group.rollouts):
            row = of_group | {"number": number, "completion": self._text(rollout)} | _row(rollout, weights)
            if logprobs:
                row |= {"tokens": rollout.tokens, "logprobs": rollout.logprobs.astype("float16")}
            yield row

    def _text(self, rollout: Rollout) -> str:
        """The completion without its final token and without special tokens. Several turns are joined, with
        the text given between them as sent to the model."""
        ids, at, text = rollout.tokens.tolist(), 0, ""
        if not rollout.turns:
            return completed(self._tokenizer, self._silent, ids, rollout.finish_reason, self._stop)
        for turn in rollout.turns:
            text += spoken(self._tokenizer, frozenset(), turn.context.tolist())
            text += spoken(self._tokenizer, self._silent, ids[at : at + turn.sampled])
            at += turn.sampled
        return text

    def _forget(self) -> None:
        """Remove the oldest files while the total exceeds the limit; the newest stays."""
        limit, total_size = self._config.telemetry.rollouts_gib * GIB, sum(self._sizes.values())
        for step in sorted(self._sizes)[:-1]:
            if total_size <= limit:
                return
            total_size -= self._sizes.pop(step)
            path_of(self._run_dir, step).unlink(missing_ok=True)


def _row(rollout: Rollout, weights: Mapping[str, float]) -> dict[str, object]:
    spans, origin = rollout.spans, rollout.origin
    row: dict[str, object] = {
        "phase": rollout.phase,
        "round": rollout.round,
        "success": rollout.success,
        "reward": total(rollout.rewards, weights),
        **{REWARD + name: value for name, value in rollout.rewards.items()},
        "length": len(rollout.tokens),
        "finish": rollout.finish_reason,
        "logprob": float(rollout.logprobs.mean()),
        "version_min": min(s.version for s in spans),
        "version_max": max(s.version for s in spans),
        "versions": [asdict(span) for span in spans],
    }
    if origin is not None:
        times = {name: getattr(origin, name) for name in ("queued", "first_token", "done", "scored")}
        row |= {"replica": origin.replica, **times}
    return row
