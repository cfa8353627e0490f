"""Audit of RUN/rollouts: every rollout of every trained group is there, once."""

from collections import Counter, defaultdict
from pathlib import Path

from hora_rl.common.rollout_files import files_of
from hora_rl.evaluation.audit import RunRecords
from hora_rl.evaluation.rollout_table import read_rollouts


def rollout_rows(facts: RunRecords, run: Path) -> list[str]:
    """Missing, doubled and foreign rollouts, as sentences.

    A step after the newest checkpoint may have no file: it is repeated. telemetry.rollouts_gib may remove the
    oldest files. Raises RunFolderError for a damaged file.
    """
    files = files_of(run)
    trained: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for record in facts.records:
        trained[record["step"]][record["group_id"]] = record["size"]
    expected = range(min(files), min(facts.durable, max(files) + 1)) if files else ()
    wrong = [
        f"step {step} is in a checkpoint and has no rollouts in {run}"
        for step in expected
        if step in trained and step not in files
    ]
    for step in sorted(set(files) & set(trained)):
        wrong += _of_step(run, step, trained[step])
    return wrong


def _of_step(run: Path, step: int, sizes: dict[str, int]) -> list[str]:
    table = read_rollouts(run, step=step, columns=("group", "number"))
    rows = Counter(zip(table["group"].to_pylist(), table["number"].to_pylist(), strict=True))
    twice = [(group, number) for (group, number), n in rows.items() if n > 1]
    doubled = [f"rollout {i} of group {g} of step {step} is written more than once" for g, i in twice]
    counts = Counter(group for group, _ in rows)
    return doubled + [
        f"group {group} of step {step} has {counts[group]} rollouts in {run}, and was trained with "
        f"{sizes.get(group, 0)}"
        for group in sorted({*counts, *sizes})
        if counts[group] != sizes.get(group, 0)
    ]
