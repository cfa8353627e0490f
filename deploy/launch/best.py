"""`learner.keep_best`: keep the weights of the best evaluation in RUN/best, with step and metric.

The learner writes candidates. Candidates are removed once another one is better or no evaluation will measure
them. Every operation is idempotent and safe to interrupt.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hora_rl.common.files import remove, replace_text
from hora_rl.deploy.launch.evaluation import TrainingRun, read_run_results
from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.results import Result
from hora_rl.learner.checkpoints.origin import BEST, CANDIDATES, best_step, candidates_in

NAME, OLD = "best.json", f"{BEST}.old"


def promote_best(
    metric: str | None,
    run_dir: Path,
    results: Sequence[Result],
    *,
    newest_due: int,
    under_way: int | None = None,
) -> str | None:
    """Move the weights of the best of `results` by `metric` (learner.keep_best) to RUN/best, once the learner
    has written them. Returns a message if RUN/best changed. Among the steps before `newest_due`, only
    `under_way` may still be measured."""
    if metric is None:
        return None
    there, held = candidates_in(run_dir), best_step(run_dir)
    kept = [r for r in results if r.step in {*there, held}]
    measured = [(r, e) for r in kept for e in r.estimates() if f"pass@{e.k}" == metric]
    # The highest, of equal ones the earliest.
    best, message = max(measured, key=lambda m: (m[1].value, -m[0].step), default=None), None
    if best is not None and best[0].step != held:
        message = _promote(run_dir, there.pop(best[0].step), *best)
    if message or held is not None:
        shutil.rmtree(run_dir / OLD, ignore_errors=True)
    for step, folder in there.items():
        if step != under_way and (step < newest_due or any(r.step == step for r in results)):
            remove(folder)
    return message


def promote_last(run: TrainingRun) -> None:
    """Promote after the last evaluation of a run, remove the candidates and print the best result."""
    learner, run_dir = run.config.learner, run.folder
    if learner.keep_best is None:
        return
    results = read_run_results(run.config.evaluation, run_dir)
    promote_best(learner.keep_best, run_dir, results, newest_due=learner.steps + 1)
    shutil.rmtree(run_dir / CANDIDATES, ignore_errors=True)
    if (best := read_best(run_dir)) is not None:
        summary = f"step {best['step']}, {best['metric']} {best['value']:.1%}"
        run.say(f"best evaluation: {summary}; its weights: {run_dir / BEST}")


def _promote(run_dir: Path, folder: Path, result: Result, estimate: Estimate) -> str:
    """Rename the candidate to RUN/best. After a kill before the rename, the next call repeats it."""
    about = {"metric": f"pass@{estimate.k}", **asdict(estimate)}
    about |= {"step": result.step, "versions": result.versions}
    replace_text(folder / NAME, json.dumps(about) + "\n")
    best, aside = run_dir / BEST, run_dir / OLD
    shutil.rmtree(aside, ignore_errors=True)
    if best.exists():
        best.rename(aside)
    folder.rename(best)
    return (
        f"best so far: step {result.step}, pass@{estimate.k} {estimate.value:.1%}; its weights are in {best}"
    )


def read_best(run_dir: Path) -> dict[str, object] | None:
    path = run_dir / BEST / NAME
    return dict(json.loads(path.read_text())) if path.is_file() else None
