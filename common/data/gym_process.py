"""The process in which `reasoning-gym` generates rows; run as a script by `common/data/gym.py`.

Some of its generators depend on set order, on Python's global random numbers, and on earlier rows. So the
hash seed is fixed, the global seed is set for each row, and rows are drawn in order. Reads `{"task",
"settings", "split", "wanted"}` as JSON from stdin. Pickles `{"rows", "questions"}`: the rows of the split
with different questions, and the number of questions of both; or `{"refused": reason}`."""

import difflib
import json
import os
import pickle
import random
import resource
import sys
from dataclasses import fields
from itertools import count
from types import ModuleType
from typing import Any

CHUNK = 500
"""Rows per data set of the library; the next one has another seed."""
APART = 1_000_003
"""Distance between user seeds. The library's row i of seed s equals row 0 of seed s + i."""
DRY = 500
"""A task is exhausted after this many draws without a new question."""
SECONDS = 120
"""Processor time limit."""
MEMORY = 4 << 30
DRAWING = (
    *("matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections"),
    *("mpl_toolkits", "mpl_toolkits.mplot3d"),
)
COMPOSITE = "composite"
"""A mixture of tasks; use `data.sources` instead."""


def library() -> Any:
    """The library's registry of tasks. Empty modules replace matplotlib, which takes half of the time
    unused."""
    for name in DRAWING:
        sys.modules.setdefault(name, Empty(name))
    import reasoning_gym.factory

    return reasoning_gym.factory


class Empty(ModuleType):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Refused(Exception):
    """The library refuses the task's settings, or makes no row."""


def main() -> None:
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # the library prints
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            answer = _answer(**json.load(sys.stdin))
        except Refused as refusal:
            answer = {"refused": str(refusal)}
        out.write(pickle.dumps(answer))


def _answer(task: str, settings: dict[str, Any], split: str, wanted: int) -> dict[str, Any]:
    from hora_rl.common.data.arithmetic import normalised, split_of_text
    from hora_rl.common.errors import any_error_as

    factory = library()
    if why := _unknown(factory, task, settings):
        raise Refused(why)
    first, since, failure = settings.pop("seed", 0) * APART, 0, ""
    seen, rows = set[str](), list[dict[str, Any]]()
    for number in count():
        index = number % CHUNK
        if not index:
            with any_error_as(lambda reason: Refused(f"it refuses these settings: {reason}")):
                drawn = factory.create_dataset(task, **settings, seed=first + number, size=CHUNK)
        random.seed(index)
        since += 1
        try:
            with any_error_as(Refused):  # generators raise any error
                entry = drawn[index]
        except Refused as error:
            failure = str(error)
        else:
            if entry["question"] not in seen:
                since = 0
                seen.add(entry["question"])
                if split_of_text(normalised(entry["question"])) == split:
                    rows.append(entry)
        if since == DRY and not seen:
            raise Refused(f"none of {DRY} rows could be made: {failure}")
        if len(rows) == wanted or since == DRY:
            break
    return {"rows": rows, "questions": len(seen)}


def _unknown(factory: Any, task: str, settings: dict[str, Any]) -> str:
    """Why the task or a setting does not exist; empty if all exist."""
    tasks = [name for name in factory.DATASETS if name != COMPOSITE]
    if task not in tasks:
        near = difflib.get_close_matches(task, tasks, n=3, cutoff=0.5)
        return "it has no such task" + (f"; did you mean {', '.join(near)}?" if near else "")
    known = [field.name for field in fields(factory.DATASETS[task][1]) if field.name != "size"]
    for key in settings:
        if key == "size":
            return "size is data.limit here"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            return f"this task has no setting {key!r}{meant}"
    seed = settings.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**31:
        return f"seed ({seed!r}) is a whole number from 0 to 2^31 - 1"
    return ""


if __name__ == "__main__":
    main()
