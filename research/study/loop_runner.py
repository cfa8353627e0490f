"""`hora study FILE --loop`: every cell of a study in a process of its own, without servers, and the report of
their curves."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console

from hora_rl.common.console import counting_bar, say
from hora_rl.common.load import dump_yaml
from hora_rl.common.processes import die_with_parent, processors
from research.study.cells import Cell, cells, load_study
from research.study.exact_curves import CURVES
from research.study.exact_report import write_exact_report
from research.study.folder import alone_in
from research.study.loop import run_cell


def study_loop(source: str, out: Path | None, parallel: int | None) -> bool:
    """Train the missing cells of the study, `parallel` at a time (default: a processor each), and report on
    all.

    False when a cell failed. An interrupted study continues with the cells that have no curves yet.
    """
    console, plan = Console(), load_study(source)
    folder = (out or Path("studies") / plan.name).resolve()
    with alone_in(folder):
        todo = [c for c in cells(plan, folder, held_out=False) if not _finished(c, folder)]
        failed = _run_all(todo, plan.design.every, parallel or processors(), folder, console)
    for cell, reason in failed:
        say(console, f"{cell.name} failed: {reason}")
    path = write_exact_report(plan, folder)
    console.print(path.read_text(), markup=False)
    say(console, f"report: {path}")
    return not failed


def _finished(cell: Cell, out: Path) -> bool:
    """Whether the cell has its curves. Raises ConfigError where they are of other settings."""
    if not (cell.folder(out) / CURVES).exists():
        return False
    cell.refuse_another(out, "run.folder")
    return True


def _run_all(
    todo: list[Cell], every: int, parallel: int, out: Path, console: Console
) -> list[tuple[Cell, str]]:
    failed = list[tuple[Cell, str]]()
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    with (
        counting_bar(console) as bar,
        ProcessPoolExecutor(
            min(parallel, max(1, len(todo))), context, initializer=_obey, initargs=(os.getpid(),)
        ) as pool,
    ):
        task = bar.add_task("cells", total=len(todo))
        started: dict[Future[Path], Cell] = {pool.submit(_run, c, every, out): c for c in todo}
        try:
            for future in as_completed(started):
                if error := future.exception():
                    failed.append((started[future], f"{type(error).__name__}: {error}"))
                bar.advance(task)
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():  # the pool's end would wait for their cells
                worker.terminate()
            console.print("\nstopped; nothing is left running. The same command continues the study.")
            raise SystemExit(130) from None
    return failed


def _obey(study: int) -> None:
    """In a new worker: only the study hears Ctrl-C, and a worker ends with the study, killed or not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL, study)


def _run(cell: Cell, every: int, out: Path) -> Path:
    folder = cell.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_yaml(cell.config))
    return run_cell(cell.config, every)
