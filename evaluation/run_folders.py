"""Read a run folder into arrays: groups.jsonl, steps.jsonl, config.yaml and evaluation/*-step*.json."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from hora_rl.common.algorithms import LOSSES
from hora_rl.common.config import ObjectiveConfig
from hora_rl.common.config.allocation import needs_counts
from hora_rl.common.errors import HoraError
from hora_rl.common.files import check_regular
from hora_rl.common.load import apart_from_gone, differing
from hora_rl.evaluation.phase_b import counted
from hora_rl.evaluation.results import Result, read_result

GROUP_FIELDS = ("step", "batch", "trials", "successes", "extra", "size", "hits", "tokens")
Array = NDArray[np.float64]


class RunFolderError(HoraError, ValueError):
    """An unreadable run folder: names the file and the remedy."""


ADVANTAGES = {
    "grpo": "GRPO",
    "dr_grpo": "Dr.GRPO",
    "rloo": "RLOO",
    "max_rl": "MaxRL",
    "pass_at_k": "Pass@k training",
    "pkpo": "PKPO",
    "weighted_reinforce": "W-REINFORCE",
}
OF_ALLOCATION: dict[str, Any] = {
    "allocation.prior": "fixed",
    "rollout.pre_rollouts": 8,
    "allocation.rounds": 1,
    "allocation.stop": "none",
}
"""Keys that a method's name shows if they have other values than the paper's."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run. `groups` and `steps` are columns of equal length, in training order.

    `config`: plain values, {} if the folder has none. `results`: evaluations by ascending step. `weights`:
    fingerprint of the initial policy; `started`: first day. Both are empty if not recorded.
    """

    name: str
    config: dict[str, Any]
    groups: dict[str, Array]
    rules: NDArray[np.str_]
    steps: dict[str, Array]
    results: tuple[Result, ...]
    weights: str = ""
    started: str = ""

    def setting(self, path: str, default: Any = None) -> Any:
        """The value of a key such as `allocation.rule`."""
        value: Any = self.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value

    @property
    def model(self) -> str:
        """Path or hub name of the initial policy; `short_names` shortens it for tables."""
        return str(Path(str(self.setting("model.path", "model"))))

    @property
    def outside_warm_up(self) -> NDArray[np.bool_]:
        """Groups that count for Phase B statistics (`evaluation.phase_b`)."""
        return counted(self.rules)

    @property
    def method(self) -> str:
        """The paper's name of the method: GRPO, GRPO + HORA, RLOO…; the folder's name without a config."""
        if not self.config:
            return self.name
        estimator = str(self.setting("learner.objective.advantage", "grpo"))
        name = ADVANTAGES.get(estimator, estimator)
        rule = self.setting("allocation.rule", "hit_utility")
        if needs_counts(rule):
            name += " + " + {"hit_utility": "HORA", "hard_first": "hard-first"}.get(rule, rule)
        remarks = ", ".join(self._remarks(*(OF_ALLOCATION if needs_counts(rule) else ())))
        return f"{name} ({remarks})" if remarks else name

    def _remarks(self, *allocation: str) -> list[str]:
        """`key=value` of the keys of `allocation` and of the objective that are not the default; of an older
        run also of those that are gone and said something else than holds now."""
        kept, gone = apart_from_gone(self.config)
        objective = replace(self, config=kept).setting("learner.objective", {})
        with suppress(ValueError):  # an older run may have keys of which nothing is known
            objective = ObjectiveConfig.model_validate(objective).model_dump(mode="json")
        loss = objective.get("loss", "clip")
        usual = ObjectiveConfig.model_validate({"loss": loss} if loss in LOSSES else {}).model_dump()
        usual |= {"advantage": objective.get("advantage"), "loss": "clip"}
        chosen = {key: self.setting(key) for key in allocation}
        differ = differing([objective | chosen, usual | OF_ALLOCATION])
        named = {key: value for key, (value, _) in differ if value is not None}
        sections = ("learner.objective.", *(("allocation.",) if allocation else ()))
        named |= {key: value for key, (value, _) in gone.items() if key.startswith(sections)}
        unnamed = re.compile(r"^(allocation|rollout|learner\.objective)\.")
        return [f"{unnamed.sub('', key)}={value}" for key, value in named.items()]

    def latest(self) -> list[Result]:
        """The newest result per benchmark on trained weights."""
        return list({r.benchmark: r for r in self.results if r.step > 0 and not self._initial(r)}.values())

    def base(self) -> list[Result]:
        return [r for r in self.results if self._initial(r)]

    def unlabelled(self) -> list[Result]:
        """Results on other weights with unknown steps."""
        return [r for r in self.results if r.step == 0 and not self._initial(r)]

    def _initial(self, result: Result) -> bool:
        """Compare weights; or model names if weights are unknown, as the model may be an export; or the step
        without a configuration. False if newer versions were sampled."""
        if any(result.versions):
            return False
        if result.weights and self.weights:
            return result.weights == self.weights
        path = self.setting("model.path")
        return result.step == 0 if path is None else result.model == path


def load_run(folder: Path) -> Run:
    """Raises RunFolderError or ConfigError naming the unreadable file."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such run folder")
    groups, steps = records(folder / "groups.jsonl"), records(folder / "steps.jsonl")
    results = [read_result(path) for path in sorted((folder / "evaluation").glob("*-step*.json"))]
    if not groups and not steps and not results:
        raise RunFolderError(
            f"{folder}: holds neither groups.jsonl, steps.jsonl nor evaluation/*-step*.json; is it a run "
            "folder?"
        )
    record = _mapping(folder / "run.json", json.loads)
    return Run(
        name=folder.resolve().name,
        config=_mapping(folder / "config.yaml", yaml.safe_load),
        groups={name: _column(folder / "groups.jsonl", groups, name) for name in GROUP_FIELDS},
        rules=np.array([str(g.get("rule", "")) for g in groups]),
        steps=_metrics(steps),
        results=tuple(sorted(results, key=lambda r: r.step)),
        weights=str(record.get("weights", "")),
        started=time.strftime("%Y-%m-%d", time.localtime(record["started"])) if "started" in record else "",
    )


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each path's shortest unique ending: `model`, or `a/model` and `b/model`."""
    parts = {path: Path(path).parts for path in paths}
    return {
        path: next(
            str(Path(*ending[-n:]))
            for n in range(1, len(ending) + 1)
            if sum(other[-n:] == ending[-n:] for other in parts.values()) == 1
        )
        for path, ending in parts.items()
    }


def by_model(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by initial policy: equal weights under any path, or equal paths if weights are unknown."""
    known: dict[str, set[str]] = {}
    for run in runs:
        known.setdefault(run.model, set()).update({run.weights} - {""})
    groups: dict[str, list[Run]] = {}
    for run in runs:
        [only] = known[run.model] if len(known[run.model]) == 1 else [run.model]
        groups.setdefault(run.weights or only, []).append(run)
    paths = {key: group[0].model for key, group in groups.items()}
    short = short_names(dict.fromkeys(paths.values()))
    twice = {path for path in paths.values() if list(paths.values()).count(path) > 1}
    names = {key: short[path] + (f" ({key[:6]})" if path in twice else "") for key, path in paths.items()}
    return {names[key]: group for key, group in groups.items()}


def check_same_problems(results: Sequence[Result]) -> None:
    """Raise RunFolderError naming two results on different problems. Older results have no fingerprint of
    their problems and are compared by the problems' indices only."""
    first, known = results[0], next((r for r in results if r.problem_set), results[0])
    for r in results:
        if r.problems != first.problems or r.problem_set not in ("", known.problem_set):
            other = first if r.problems != first.problems else known
            raise RunFolderError(
                f"{r.title}: {other.model} (step {other.step}) and {r.model} (step {r.step}) were evaluated "
                "on different problems, which cannot be averaged or compared; report them apart"
            )


def records(path: Path) -> list[dict[str, Any]]:
    """Records of a file that may still grow: a torn last line is ignored."""
    if not path.exists():
        return []
    check_regular(path)
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise RunFolderError(f"{path}:{number}: not JSON ({why:.200}); delete this line") from None
        if not isinstance(record, dict):
            raise RunFolderError(f"{path}:{number}: not a record; delete this line")
        rows.append(record)
    return rows


def _column(path: Path, records: Sequence[dict[str, Any]], name: str) -> Array:
    try:
        return np.array([record[name] for record in records], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path}: a line has no number {name!r}") from error


def _metrics(records: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """All numbers in step records; NaN if missing. Older runs recorded success as reward/accuracy."""
    rows = [{k: float(v) for k, v in r.items() if isinstance(v, int | float)} for r in records]
    names = sorted(set().union(*rows))
    columns = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
    return {"success": columns["reward/accuracy"], **columns} if "reward/accuracy" in columns else columns


def _mapping(path: Path, load: Callable[[str], Any]) -> dict[str, Any]:
    """The mapping in a JSON or YAML file, or {}."""
    if not path.exists():
        return {}
    try:
        content = load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise RunFolderError(f"{path}: not {path.suffix[1:].upper()}: {error}") from error
    return content if isinstance(content, dict) else {}
