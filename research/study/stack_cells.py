"""The cells of a study through the full stack: each is a `hora run`, several at a time."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn

from hora_rl.common.console import counting_bar
from hora_rl.common.errors import RunError
from hora_rl.common.load import dump_yaml
from hora_rl.common.processes import processors
from hora_rl.deploy import cli
from hora_rl.deploy.checks.memory import run_target
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.machine.signals import heard_afterwards, undisturbed
from research.study.cells import Cell, Study

STOP_LIMIT_S = 120.0
POLL_S = 0.5


def on_this_machine(every: Sequence[Cell]) -> list[Cell]:
    """With the numbers that `run.resources: auto` chooses here: the same for all seeds of an arm."""
    chosen = {arm: run_target(cell.config).config for arm, cell in {c.arm: c for c in every}.items()}
    parts = {arm: {"generator": c.generator, "learner": c.learner} for arm, c in chosen.items()}
    return [replace(c, config=c.config.model_copy(update=parts[c.arm])) for c in every]


def at_once(todo: Sequence[Cell]) -> int:
    """How many cells fit this machine's processors: each needs those of its engines and of its learner."""
    if not todo or shutil.which("nvidia-smi"):
        return 1  # A run uses all GPUs of its machine, so more cells at once need more machines.
    generator, learner = todo[0].config.generator, todo[0].config.learner
    needed = generator.replicas * generator.threads + learner.workers * learner.threads
    return max(1, processors() // needed)


def is_finished(cell: Cell, out: Path) -> bool:
    """Whether the cell's run is complete. Raises ConfigError when the folder holds another experiment.

    A finished cell may have been moved; one that will be resumed must be where it began.
    """
    folder = cell.folder(out)
    if not (folder / "run.json").exists():
        return False
    finished = RunFile(folder).read().state == "finished"
    free = ("telemetry.", "queue.url", *(("run.folder",) if finished else ()))
    cell.refuse_another(out, *free)
    return finished


def run_cells(
    plan: Study, todo: list[Cell], every: Sequence[Cell], out: Path, parallel: int | None, console: Console
) -> list[tuple[Cell, str]]:
    """Run `todo` of `every` cell, `parallel` at a time. Returns the failed cells with their reasons."""
    parallel = parallel or at_once(todo)
    (out / "logs").mkdir(parents=True, exist_ok=True)
    waiting, failed = list(todo), list[tuple[Cell, str]]()
    running: dict[subprocess.Popen[bytes], Cell] = {}
    with counting_bar(console, TextColumn("{task.fields[text]}")) as bar:
        task = bar.add_task(plan.name, total=sum(c.config.learner.steps for c in every), text="")
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    cell = waiting.pop(0)
                    with heard_afterwards():
                        running[start_cell(cell, out)] = cell
                time.sleep(POLL_S)
                for process in [p for p in running if p.poll() is not None]:
                    cell = running.pop(process)
                    if process.returncode:
                        failed.append((cell, _reason(cell, out)))
                    console.print(f"{cell.name}: {'failed' if process.returncode else 'finished'}")
                names = ", ".join(c.name for c in running.values())
                bar.update(task, completed=sum(_steps(c, out) for c in every), text=names)
        finally:
            with undisturbed():
                _stop(list(running))
    return failed


def start_cell(cell: Cell, out: Path) -> subprocess.Popen[bytes]:
    folder = cell.folder(out)
    source = out / "logs" / f"{cell.name}.yaml"
    source.write_text(dump_yaml(cell.config))
    command = [sys.executable, "-m", cli.__name__, "run", str(source)]
    if (folder / "config.yaml").exists():
        command.append("--resume")
    with _log(cell, out).open("wb") as log:
        # A separate session: Ctrl-C reaches only the study, which stops its cells in order.
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt every cell and wait for its end. Raises RunError with the cells that had to be killed."""
    for process in running:
        process.send_signal(signal.SIGINT)
    stuck = []
    for process in running:
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            stuck.append(str(process.pid))
    if stuck:
        raise RunError(f"killed, because they ran {STOP_LIMIT_S:g} s after SIGINT: pids {', '.join(stuck)}")


def _steps(cell: Cell, out: Path) -> int:
    path = cell.folder(out) / "steps.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _reason(cell: Cell, out: Path) -> str:
    lines = _log(cell, out).read_text(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "no output"
    reason = next((line for line in reversed(lines) if line.startswith("hora:")), last)
    return f"{reason}; log: {_log(cell, out)}"


def _log(cell: Cell, out: Path) -> Path:
    """The log of the newest attempt at the cell."""
    return out / "logs" / f"{cell.name}.log"
