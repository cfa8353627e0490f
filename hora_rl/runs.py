"""Run HORA from Python: configure, train, read the results as data frames.

    import hora_rl

    config = hora_rl.configure("tiny", {"learner.steps": 10, "run.name": "mine"})
    results = hora_rl.run(config)
    results.steps.plot(x="step", y="success")

`run` starts `hora run` as a separate process, so a notebook holds neither Ray nor a model.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.load import dump_yaml, load
from hora_rl.deploy import cli
from hora_rl.evaluation.rollout_table import read_rollouts
from hora_rl.evaluation.run_folders import RunFolderError, load_run, records

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Results:
    """Results of the run in `folder` so far, as data frames."""

    folder: Path

    @property
    def steps(self) -> pd.DataFrame:
        """One row per optimizer step: the metrics of `steps.jsonl`."""
        return _frame(self.folder / "steps.jsonl")

    @property
    def groups(self) -> pd.DataFrame:
        """One row per trained group: `groups.jsonl`."""
        return _frame(self.folder / "groups.jsonl")

    @property
    def evaluations(self) -> pd.DataFrame:
        """One row per evaluation and K: benchmark, step, k, pass_at_k and its interval (low, high)."""
        import pandas as pd

        rows = [
            (r.benchmark, r.step, e.k, e.value, e.low, e.high)
            for r in load_run(self.folder).results
            for e in r.estimates()
        ]
        return pd.DataFrame(rows, columns=["benchmark", "step", "k", "pass_at_k", "low", "high"])

    def rollouts(self, **wanted: Any) -> pd.DataFrame:
        """One row per rollout. `wanted` are arguments of `evaluation.rollout_table.read_rollouts`."""
        return read_rollouts(self.folder, **wanted).to_pandas()


def configure(source: str = "tiny", changes: Mapping[str, object] | None = None) -> Config:
    """A checked configuration: a file or a preset, with `changes` as {"rollout.group_size": 32}. Raises
    ConfigError naming the key."""
    return load(source, [f"{key}={_yaml(value)}" for key, value in (changes or {}).items()])


def run(config: Config, *, resume: bool = False, fresh: bool = False) -> Results:
    """Train to the last step on this machine. Raises RunError if `hora run` fails; its message is on standard
    error. After an interrupt, `resume` continues the run."""
    with TemporaryDirectory(prefix="hora-") as folder:
        file = Path(folder) / f"{config.run.name}.yaml"
        file.touch(0o600)
        file.write_text(dump_yaml(config, written=True))
        options = ["--resume"] * resume + ["--fresh"] * fresh
        process = subprocess.Popen([sys.executable, "-m", cli.__name__, "run", str(file), *options])
        try:
            status = process.wait()
        except KeyboardInterrupt:  # a notebook's interrupt does not reach the process
            process.terminate()
            process.wait()
            raise
    if status:
        raise RunError(f"hora run {config.run.name} ended with status {status}; standard error says why")
    return results(config.run.path)


def results(folder: Path | str) -> Results:
    """Results of the run in `folder`. Raises RunFolderError if it holds no run."""
    if not (Path(folder) / "config.yaml").is_file():
        raise RunFolderError(f"{folder}: no run here (config.yaml is missing)")
    return Results(Path(folder))


def _yaml(value: object) -> str:
    """`value` as one line of YAML, without the end marker `...`."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(records(path))
