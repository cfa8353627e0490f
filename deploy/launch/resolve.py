"""What a start of `hora run` uses. Its configuration is read, completed for this machine, compared with that
of the run that it resumes, and checked, once. Changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from hora_rl.common.config import Config, RunConfig
from hora_rl.common.config.base import Scope
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import differences, load
from hora_rl.deploy.checks.findings import Finding
from hora_rl.deploy.checks.machine import check_writable
from hora_rl.deploy.checks.memory import run_target
from hora_rl.deploy.checks.run_checks import require
from hora_rl.deploy.machine.record import CONFIG, RUN, RunFile, with_absolute_folder

Folder = Literal["new", "resume", "fresh", "resume or new"]
"""How a start uses the run's folder: `fresh` sets an older run aside."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """`config` has the values that `run.resources: auto` chose. `begun` is the configuration of the run to
    resume, None for a new run. `findings` are those of the checks."""

    config: Config
    run_dir: Path
    begun: Config | None
    findings: Sequence[Finding]


def resolve(source: str, overrides: Sequence[str], folder: Folder, console: Console) -> Resolved:
    """Raises HoraError if the configuration is invalid, contradicts the run to resume, or cannot run here."""
    written = with_absolute_folder(load(source, overrides))
    run_dir = written.run.path
    kept = _file_of_run(Path(source), overrides, written.run, folder)
    same = kept is not None and Path(source).is_file() and kept.samefile(source) and not overrides
    begun = written if same else None if kept is None else load(str(kept))
    _refuse(run_dir, new=folder != "fresh" and begun is None)
    learner = written.learner
    if begun is not None:
        # Checkpoints hold one part per rank, and `run.resources: auto` may choose differently here.
        unset = {"workers", "zero_stage"} - learner.model_fields_set
        learner = learner.model_copy(update={key: getattr(begun.learner, key) for key in unset})
    target = run_target(written.model_copy(update={"learner": learner}))
    if begun is not None:
        # Results before and after training must have the same problems and sizes.
        results = [d for d in differences(begun, target.config) if d.startswith("evaluation.")]
        if changed := differences(begun, target.config, below=Scope.START) + results:
            raise ConfigError(
                f"{run_dir}: a resumed run must keep its configuration; changed: {'; '.join(changed)}"
            )
    return Resolved(target.config, run_dir, begun, require(target, console))


def _file_of_run(file: Path, overrides: Sequence[str], run: RunConfig, folder: Folder) -> Path | None:
    """The config.yaml of the run to resume; None for a new run."""
    kept = run.path / CONFIG
    if folder in ("new", "fresh") or (folder == "resume or new" and not kept.is_file()):
        return None
    _refuse_moved(file, overrides, run)
    if not kept.is_file():
        raise ConfigError(f"{kept.parent}: no run to resume; start it without --resume")
    return kept


def _refuse_moved(file: Path, overrides: Sequence[str], run: RunConfig) -> None:
    """Raise ConfigError if `file` is the config.yaml of a run folder that was moved or copied, and still
    names its old place."""
    here, there = file.resolve().parent, run.path
    of_a_run = file.name == CONFIG and (here / RUN).is_file()
    if of_a_run and here != there and not any(override.startswith("run.") for override in overrides):
        raise ConfigError(
            f"{file} names the run in {there}, not the one beside it: name this folder {run.name}, and add "
            "-s run.folder=FOLDER, the folder that holds it"
        )


def _refuse(run_dir: Path, *, new: bool) -> None:
    """Raise HoraError if the folder is not writable, has a live run, or has a run and a `new` one starts."""
    check_writable(run_dir, "run.folder")
    RunFile(run_dir).refuse_if_alive()
    if new and (run_dir / CONFIG).exists():
        raise ConfigError(
            f"{run_dir} holds a run already: add --resume to continue it, --fresh to set it aside, or change "
            "run.name"
        )
