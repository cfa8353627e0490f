"""`hora serve`: a run's model as an OpenAI-compatible endpoint on this machine, without training."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from common.config import Config
from common.errors import RunError
from common.load import load
from deploy.launch.local import with_port
from deploy.launch.stack import stack
from deploy.preflight.checks import require
from deploy.preflight.findings import Target
from deploy.runs.record import CONFIG
from learner.origin import step_of

FOLDER = "serving"
"""Below the run's: what serves it has a Redis and logs of its own, so that the run's stay as they are."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where the endpoint is, its model's name, and the file with its key. HORA_TOKEN, where it is set, is the
    key instead, for the endpoint and for us."""

    url: str
    model: str
    key_file: Path

    @property
    def key(self) -> str:
        """Raises RunError where there is none."""
        own = os.environ.get("HORA_TOKEN")
        if not own and not self.key_file.is_file():
            raise RunError(
                f"{self.key_file}: no such file, so there is no key: on a cluster it is HORA_TOKEN of the "
                "replicas; set it here too"
            )
        return own or self.key_file.read_text().strip()

    @property
    def key_is(self) -> tuple[str, str]:
        """Where the key is, in words and for a shell."""
        if os.environ.get("HORA_TOKEN"):
            return "HORA_TOKEN", "$HORA_TOKEN"
        return f"the content of {self.key_file}", f"$(cat {self.key_file})"


def serve_run(run: Path, step: int | None, host: str | None, port: int | None) -> None:
    """Serve until interrupted; says where, and how to ask."""
    console = Console()
    with serving(run, step, console, host, port) as served:
        where, shell = served.key_is
        console.print(
            f"{served.url}/v1, model {served.model}; key: {where}\n"
            f'  curl {served.url}/v1/models -H "Authorization: Bearer {shell}"\n'
            "Ctrl-C ends it.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        try:
            while True:
                time.sleep(3600)
        except (KeyboardInterrupt, SystemExit):
            console.print("stopping", markup=False)


@contextmanager
def serving(
    run: Path, step: int | None, console: Console, host: str | None = None, port: int | None = None
) -> Iterator[Served]:
    """The model of the run in folder `run` after `step` (the newest by default), served while the block runs.
    Raises RunError for a folder that holds no run, or no such model."""
    config = with_port(served_config(run, step, host, port))
    require(Target(config, "eval"), console)
    folder = (run / FOLDER).resolve()
    folder.mkdir(exist_ok=True)
    with stack(config, folder, console, train=False):
        url = f"http://{config.telemetry.http_host}:{config.telemetry.http_port}"
        yield Served(url, config.run.name, folder / "token")


def served_config(run: Path, step: int | None, host: str | None, port: int | None) -> Config:
    """The run's configuration with its trained model and the endpoint on."""
    config = config_of(run)
    telemetry = config.telemetry.model_copy(
        update={"http_port": 0 if port is None else port, "http_host": host or config.telemetry.http_host}
    )
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": str(_model(run, step).resolve())}),
            "serve": config.serve.model_copy(update={"endpoint": True}),
            "telemetry": telemetry,
        }
    )


def config_of(run: Path) -> Config:
    """The configuration of the run in folder `run`. Raises RunError where there is none."""
    if not (run / CONFIG).is_file():
        raise RunError(f"{run}: not a run folder, there is no {CONFIG}; `hora runs` lists runs")
    return load(str(run / CONFIG))


def _model(run: Path, step: int | None) -> Path:
    """The folder of the model after `step` (the newest by default): the trained model where it is that, else
    one that is written from its checkpoint. Raises RunError for a step that neither holds, with those that
    are kept."""
    from deploy.runs.export_run import export_run
    from learner.checkpoint import checkpoints_in

    finished, kept = run / "model", checkpoints_in(run / "checkpoints")
    last = None
    if (finished / "config.json").is_file():
        last = step_of(str(finished))
        # A run that was extended has newer checkpoints. The step is unknown where there is no hora.json.
        is_newest = last is None or last >= max(kept, default=0)
        if last == step or (step is None and is_newest):
            return finished
    if step is not None and step not in kept:
        known = ", ".join(map(str, sorted({*kept, *([] if last is None else [last])}))) or "none"
        raise RunError(f"--step {step}: {run} keeps no weights of that step; it keeps: {known}")
    folder = run / FOLDER / f"step-{max(kept) if step is None and kept else step}"
    if not (folder / "config.json").is_file():
        export_run(run, step, folder)
    return folder
