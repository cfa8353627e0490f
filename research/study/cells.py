"""A study: arms × seeds of one experiment at equal compute. Each cell is one run.

FILE (name, base, set, arms, seeds) ─► cells ─► OUT/<arm>-seed<k>/ (run folders) ─► OUT/report/
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field, JsonValue, ValidationError

from hora_rl.common.config import Config
from hora_rl.common.config.base import Section
from hora_rl.common.errors import ConfigError
from hora_rl.common.files import read_yaml
from hora_rl.common.load import check_paths, differences, load
from research.tasks.recall import TASK_FILE, load_task

HERE = Path(__file__).parents[1]
STUDIES, PRESETS = HERE / "studies", HERE / "presets"
# Settings that every cell of a study shares: the budget, what is trained on which data, and how it is
# measured. Of `data.` all but `data.rest`.
COMMON = (
    *("rollout.max_prompt_tokens", "rollout.max_response_tokens", "rollout.time_limit_s"),
    *("rollout.temperature", "learner.steps", "learner.objective.updates_per_batch"),
    *("reward.time_limit_s", "model.", "data.", "evaluation."),
)


class Design(Section):
    """The design of a study, fixed before it runs; the report prints it first.

    The primary metric is the area under Pass@`pass_at` over steps on the prompts of `watched`, paired by
    seed, with Holm's correction over the comparisons; Pass@`pass_at` at the end where nothing is evaluated
    between. `comparisons` and `exploratory` are pairs (arm, arm it is compared with). The arms in `first` are
    trained for all seeds before the others; those in `dynamic` sample dynamically (`loop.run_cell`).
    """

    hypotheses: tuple[str, ...] = ()
    comparisons: tuple[tuple[str, str], ...] = ()
    exploratory: tuple[tuple[str, str], ...] = ()
    first: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    watched: str = "held-out"
    pass_at: int = 16
    margin: float = Field(0.02, gt=0, description="Loss of Pass@1 that still counts as not inferior.")
    exclusions: tuple[str, ...] = ()
    every: int = Field(3, ge=1, description="Steps between exact evaluations.")


class Study(Section):
    """The content of a study file. `set` and each arm map `section.key` to a value, as `-s` of `hora run`
    does."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$")
    title: str = ""
    base: str = "tiny"
    set: dict[str, JsonValue] = Field({})
    arms: dict[str, dict[str, JsonValue]] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    baseline: str | None = None
    design: Design = Design()

    @property
    def rules(self) -> Design:
        """The design with its comparisons; by default every arm with the baseline, or with the first."""
        baseline = self.baseline or next(iter(self.arms))
        default = tuple((arm, baseline) for arm in self.arms if arm != baseline)
        return self.design.model_copy(update={"comparisons": self.design.comparisons or default})


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study."""

    arm: str
    seed: int
    config: Config

    @property
    def name(self) -> str:
        return self.config.run.name

    def folder(self, out: Path) -> Path:
        return out / self.name

    def refuse_another(self, out: Path, *free: str) -> None:
        """Raise ConfigError when the cell's folder holds another experiment; keys that begin with `free` may
        differ."""
        folder = self.folder(out)
        every = differences(load(str(folder / "config.yaml")), self.config)
        if changed := [difference for difference in every if not difference.startswith(free)]:
            raise ConfigError(
                f"{folder}: was run with other settings ({'; '.join(changed)}); choose another --out, or "
                "remove it"
            )


def load_study(source: str) -> Study:
    """The study in file `source`, or the shipped one of that name. Raises ConfigError."""
    path = Path(source)
    if not path.is_file() and (STUDIES / f"{source}.yaml").is_file():
        path = STUDIES / f"{source}.yaml"
    try:
        raw = read_yaml(path, source)
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in STUDIES.glob("*.yaml")))
        raise ConfigError(f"{source}: no such file, and not one of the studies ({known})") from None
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        lines = [f"{source}: {'.'.join(map(str, e['loc'])) or 'study'}: {e['msg']}" for e in error.errors()]
        raise ConfigError("\n".join(lines)) from None
    design = study.design
    named = {
        "baseline": {study.baseline} if study.baseline else set[str](),
        "design.comparisons": {arm for pair in design.comparisons for arm in pair},
        "design.exploratory": {arm for pair in design.exploratory for arm in pair},
        "design.first": set(design.first),
        "design.dynamic": set(design.dynamic),
    }
    for key, arms in named.items():
        for arm in sorted(arms - study.arms.keys()):
            raise ConfigError(f"{source}: {key}: {arm} is none of the arms ({', '.join(study.arms)})")
    if len(set(study.seeds)) < len(study.seeds):
        raise ConfigError(f"{source}: seeds: the same seed twice ({', '.join(map(str, study.seeds))})")
    return study


def cells(study: Study, out: Path, *, loop: bool = False) -> list[Cell]:
    """Every cell, seed by seed; those of `design.first` first. A `loop` evaluates every cell itself.

    Raises ConfigError for a study without held-out problems (unless its success is exact), and for an arm
    that is not valid, equals another, or has another budget, model, data or evaluation than the first.
    """
    made = [_cell(study, arm, seed, out) for seed in study.seeds for arm in study.arms]
    first = made[: len(study.arms)]
    made.sort(key=lambda cell: bool(study.design.first) and cell.arm not in study.design.first)
    exact = [loop or has_exact_success(cell.config) for cell in first]
    if first[0].config.evaluation.path is None and not exact[0]:
        raise ConfigError(
            f"{study.name}: evaluation.path is not set: arms are compared on held-out problems; name a JSONL "
            "file or `arithmetic`"
        )
    if any(exact) and not all(exact):
        other = first[exact.index(not exact[0])]
        raise ConfigError(
            f"{study.name}: of arms {first[0].arm} and {other.arm} only one has its success computed from "
            "checkpoints: set evaluation.path for all, or use no adapter (learner.lora)"
        )
    if study.design.dynamic and not loop:
        raise ConfigError(f"{study.name}: design.dynamic: only a study with --loop has dynamic sampling")
    _check_watched(study, first[0].config, exact[0])
    for i, cell in enumerate(first):
        check_paths(cell.config)
        _check_comparable(study, cell, first[:i])
    return made


def _check_comparable(study: Study, cell: Cell, before: Sequence[Cell]) -> None:
    """Raise ConfigError where the arm equals one of `before`, or differs from the first in its budget."""
    for other in before:
        alike = (other.arm in study.design.dynamic) == (cell.arm in study.design.dynamic)
        if alike and not [d for d in differences(other.config, cell.config) if not d.startswith("run.")]:
            raise ConfigError(f"{study.name}: arms {other.arm} and {cell.arm} are the same experiment")
    for first in before[:1]:
        budgets = [c.config.rollout.batch_size for c in (first, cell)]
        unequal = [f"Γ·G: {budgets[0]}, {budgets[1]}"] if budgets[0] != budgets[1] else []
        changed = differences(first.config, cell.config)
        unequal += [d for d in changed if d.startswith(COMMON) and not d.startswith("data.rest:")]
        if unequal:
            raise ConfigError(
                f"{study.name}: arms {first.arm} and {cell.arm} cannot be compared: {'; '.join(unequal)}"
            )


def _check_watched(study: Study, config: Config, exact: bool) -> None:
    """Raise ConfigError where the curves will lack the set or the K of the design."""
    sets, ks = [study.design.watched], tuple(config.evaluation.k)  # sampled: the problems of evaluation.path
    if exact:
        folder = Path(config.model.path).parent
        if not (folder / TASK_FILE).is_file():
            return  # the cell says so
        task = load_task(folder)
        sets, ks = task.measured, task.ks
    for key, value, known in (("watched", study.design.watched, sets), ("pass_at", study.design.pass_at, ks)):
        if value not in known:
            raise ConfigError(
                f"{study.name}: design.{key} ({value}) is none of those of {config.model.path} and its "
                f"evaluation ({', '.join(map(str, known))})"
            )


def has_exact_success(config: Config) -> bool:
    """Whether the run trains all weights of a recall task's model and nothing else evaluates it: then its
    success is computed from the checkpoints."""
    folder = Path(config.model.path).parent
    unevaluated = config.evaluation.path is None and config.learner.lora is None
    return unevaluated and (folder / TASK_FILE).is_file() and load_task(folder).exact


def load_base(name: str, overrides: Sequence[str] = ()) -> Config:
    """A configuration by its file or its name here or among the product's presets, with `overrides`."""
    path = PRESETS / f"{name}.yaml"
    return load(str(path) if path.is_file() else name, overrides)


def config_of(study: Study, arm: str, **fixed: object) -> Config:
    """The configuration of an arm, with `fixed` settings on top. Raises ConfigError naming the arm."""
    settings: dict[str, object] = {**study.set, **study.arms[arm]}
    if taken := [key for key in settings if key.startswith("run.")]:
        raise ConfigError(f"{study.name}: arm {arm}: {taken[0]} is set by the study itself; remove it")
    overrides = [f"{key}={yaml.safe_dump(value)}" for key, value in {**settings, **fixed}.items()]
    try:
        return load_base(study.base, overrides)
    except ConfigError as error:
        raise ConfigError(f"{study.name}: arm {arm}: {error}") from None


def _cell(study: Study, arm: str, seed: int, out: Path) -> Cell:
    fixed = {"run.name": f"{arm}-seed{seed}", "run.seed": seed, "run.folder": str(out)}
    return Cell(arm, seed, config_of(study, arm, **fixed, **{"telemetry.http_port": 0}))
