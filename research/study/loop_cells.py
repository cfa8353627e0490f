"""The cells of `hora study FILE --loop`: each is trained in one process, without servers."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path

from pebble import ProcessExpired, ProcessPool
from rich.console import Console

from hora_rl.common.console import counting_bar
from hora_rl.common.load import dump_yaml
from hora_rl.common.processes import die_with_parent, processors
from research.study.cells import Cell, Design, Study
from research.study.curve_sources import CURVES
from research.study.loop import run_cell


def is_measured(cell: Cell, out: Path) -> bool:
    """Whether the cell has its curves. Raises ConfigError where they are of other settings."""
    if not (cell.folder(out) / CURVES).exists():
        return False
    cell.refuse_another(out, "run.folder")
    return True


def run_loops(
    plan: Study, todo: list[Cell], every: Sequence[Cell], out: Path, parallel: int | None, console: Console
) -> list[tuple[Cell, str]]:
    """Train `todo`, `parallel` at a time (default: a processor each). Returns failed cells with reasons."""
    failed = list[tuple[Cell, str]]()
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    workers = max(1, min(parallel or processors(), len(todo)))
    pool = ProcessPool(workers, initializer=_obey, initargs=(os.getpid(),), context=context)
    with counting_bar(console) as bar, pool:
        task = bar.add_task("cells", total=len(todo))
        started: dict[Future[Path], Cell] = {pool.schedule(_run, args=(c, plan.design)): c for c in todo}
        try:
            for future in as_completed(started):
                if error := future.exception():
                    failed.append((started[future], _reason(error)))
                bar.advance(task)
        except KeyboardInterrupt:
            pool.stop()  # the pool's end would wait for its cells
            raise
    return failed


def _reason(error: BaseException) -> str:
    if isinstance(error, ProcessExpired):
        return f"its process ended with {error.exitcode}; -9 is a kill, as by short memory: lower --parallel"
    return f"{type(error).__name__}: {error}"


def _obey(study: int) -> None:
    """In a new worker: only the study hears Ctrl-C, and a worker ends with the study, killed or not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL, study)


def _run(cell: Cell, design: Design) -> Path:
    cell.config.run.path.mkdir(parents=True, exist_ok=True)
    (cell.config.run.path / "config.yaml").write_text(dump_yaml(cell.config))
    return run_cell(cell.config, design.every, dynamic=cell.arm in design.dynamic)
