"""`hora export`: write a checkpoint as a Hugging Face folder."""

from pathlib import Path

from hora_rl.common.console import working
from hora_rl.common.errors import RunError
from hora_rl.common.load import load


def export_run(run: Path, step: int | None, out: Path, *, adapter: bool = False) -> str:
    """Write the checkpoint of `step` (default: the newest) of the run in folder `run` to `out`. With
    `adapter`, write only the LoRA adapter. Returns a message."""
    file = run / "config.yaml"
    if not file.is_file():
        raise RunError(f"{run}: not a run folder, there is no config.yaml; `hora runs` lists runs")
    with working(f"export of {run}"):
        from hora_rl.learner.checkpoints.export import export_checkpoint

        done = export_checkpoint(run, load(str(file)), step, out, adapter=adapter)
    what = "adapter" if adapter else "model"
    return f"{out}: the {what} after step {done}; `hora eval {out} --config {file}` measures it"
