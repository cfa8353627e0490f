"""`hora study FILE`: train the missing cells of a study, then report on all of them.

cells -> run_cells (`hora run` each) or run_loops (one process each) -> curves -> OUT/report/
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.console import counting_bar, say
from hora_rl.common.errors import HoraError, RunError
from hora_rl.evaluation.run_folders import Run, load_run
from research.report.curves import Curve
from research.report.curves_report import report_curves
from research.study.cells import Cell, Study, cells, has_exact_success, load_study
from research.study.curve_sources import SampledCurves, check_kept, exact_curve
from research.study.loop_cells import is_measured, run_loops
from research.study.stack_cells import is_finished, on_this_machine, run_cells

Source = Callable[[Config, Run], Curve]


def study(source: str, out: Path | None, parallel: int | None, loop: bool = False) -> bool:
    """Run the missing cells, then check and report. Returns False when a cell failed or the budgets of two
    cells differ. An interrupt stops every running cell in order and exits with 130."""
    console, plan = Console(), load_study(source)
    folder = (out or Path("studies") / plan.name).resolve()
    every = cells(plan, folder, loop=loop)
    exact = loop or has_exact_success(every[0].config)
    is_done, run = (is_measured, run_loops) if loop else (is_finished, run_cells)
    if not loop:
        every = on_this_machine(every)
        for cell in every if exact else []:
            check_kept(cell.config)
    try:
        with alone_in(folder):
            todo = [cell for cell in every if not is_done(cell, folder)]
            failed = run(plan, todo, every, folder, parallel, console)
    except KeyboardInterrupt:
        console.print("\nstopped; nothing is left running. The same command continues the study.")
        raise SystemExit(130) from None
    for cell, reason in failed:
        say(console, f"{cell.name} failed: {reason}")
    done = [cell for cell in every if is_done(cell, folder)]
    curves = (lambda config, _: exact_curve(config)) if exact else SampledCurves(plan.design.watched)
    path, problems = report(plan, done, curves, folder / "report", console)
    console.print(path.read_text(), markup=False)
    say(console, f"report: {path}")
    return not failed and not problems


def report(
    plan: Study, done: Sequence[Cell], source: Source, out: Path, console: Console
) -> tuple[Path, list[str]]:
    """The page of finished cells, and the inequalities of their budgets. A cell that cannot be read is named
    with the reason."""
    runs, missing = dict[str, Run](), []
    curves: dict[str, dict[int, Curve]] = {arm: {} for arm in plan.arms}
    with counting_bar(console) as bar:
        for cell in bar.track(done, description="curves"):
            try:
                run = load_run(cell.config.run.path)
                curves[cell.arm][cell.seed] = source(cell.config, run)
                runs[cell.name] = run
            except (HoraError, OSError, ValueError, KeyError, TypeError) as error:  # one cell costs itself
                reason = str(error) if isinstance(error, HoraError) else f"{type(error).__name__}: {error}"
                missing.append(f"{cell.name} ({reason})")
    problems = unmatched(runs)
    equal = "Counted from records: every batch holds its Γ·G rollouts, and all cells have the same total."
    notes = [f"**Not compute-matched:** {'; '.join(problems)}." if problems else equal]
    for config in (cell.config for cell in done[:1]):
        rollout = config.rollout
        notes.append(
            f"Model {config.model.path}, data {config.data.path}; Γ = {rollout.prompts_per_batch}, G = "
            f"{rollout.group_size}, {config.learner.steps} steps, temperature {rollout.temperature:g}."
        )
    notes += [f"Missing cells: {', '.join(missing)}."] if missing else []
    return report_curves(out, plan, curves, notes), problems


def unmatched(runs: Mapping[str, Run]) -> list[str]:
    """Where the records of runs show unequal compute: a batch without its Γ·G rollouts, or unequal totals.

    Counted from groups.jsonl, by the batch that each group was generated for.
    """
    problems, totals = [], dict[str, tuple[int, int]]()
    for name, run in runs.items():
        budget = int(run.setting("rollout.prompts_per_batch", 0)) * int(run.setting("rollout.group_size", 0))
        batches, index = np.unique(run.groups["batch"], return_inverse=True)
        sizes = np.bincount(index, weights=run.groups["size"], minlength=len(batches))
        wrong = np.flatnonzero(sizes != budget)
        if wrong.size:
            b, more = wrong[0], f" ({wrong.size} such batches)" if wrong.size > 1 else ""
            problems.append(
                f"{name}: batch {batches[b]:.0f} holds {sizes[b]:.0f} rollouts, not Γ·G = {budget}{more}"
            )
        totals[name] = (len(batches), int(sizes.sum()))
    common = max(set(totals.values()), key=list(totals.values()).count, default=(0, 0))
    return problems + [
        f"{name}: {rollouts} rollouts in {steps} batches, the others {common[1]} in {common[0]}"
        for name, (steps, rollouts) in totals.items()
        if (steps, rollouts) != common
    ]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a study's folder while the block runs. Raises RunError where another study holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunError(
                f"{folder}: another `hora study` (process {file.read()}) works there; wait for its end, or "
                "choose another --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
