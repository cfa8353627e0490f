"""Which weights `hora serve RUN [--step N]` serves, and what it refuses before anything starts."""

import json
from pathlib import Path

import pytest

from common.errors import RunError
from common.load import dump_yaml, load
from common.model_files import ORIGIN
from deploy.launch.serving import FOLDER, served_config
from learner.origin import write_origin


def run_folder(tmp_path: Path, *steps: int, trained: int | None = None) -> Path:
    """A run that keeps checkpoints of `steps`, and its trained model after `trained` steps."""
    run = tmp_path / "r"
    run.mkdir()
    (run / "config.yaml").write_text(dump_yaml(load("tiny")))
    for step in steps:
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    if trained is not None:
        model(run / "model")
        write_origin(run / "model", "tiny", trained)
    return run


def model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({}))


def path_of(run: Path, step: int | None) -> Path:
    return Path(served_config(run, step, None, None).model.path)


@pytest.mark.parametrize(
    ("steps", "trained", "known"), [((3, 6), None, "3, 6"), ((3,), 25, "3, 25"), ((), None, "none")]
)
def test_a_step_that_is_not_kept_is_refused_with_those_that_are(
    tmp_path: Path, steps: tuple[int, ...], trained: int | None, known: str
) -> None:
    run = run_folder(tmp_path, *steps, trained=trained)
    with pytest.raises(RunError) as error:
        path_of(run, 7)
    assert str(error.value) == f"--step 7: {run} keeps no weights of that step; it keeps: {known}"
    assert not (run / FOLDER).exists(), "nothing was begun"


def test_the_last_step_is_the_trained_model_whose_checkpoint_is_gone(tmp_path: Path) -> None:
    run = run_folder(tmp_path, 3, trained=25)
    assert path_of(run, 25) == path_of(run, None) == (run / "model").resolve()


def test_a_finished_run_that_was_extended_serves_its_newest_weights(tmp_path: Path) -> None:
    """RUN/model stays that of the first end until the run ends again."""
    run = run_folder(tmp_path, 20, 25, 29, 30, trained=25)
    model(run / FOLDER / "step-30")
    assert path_of(run, None) == (run / FOLDER / "step-30").resolve()
    assert path_of(run, 25) == (run / "model").resolve()


@pytest.mark.parametrize("steps", [(), (20,), (20, 25)])
def test_a_run_that_ended_serves_its_trained_model(tmp_path: Path, steps: tuple[int, ...]) -> None:
    assert path_of(run := run_folder(tmp_path, *steps, trained=25), None) == (run / "model").resolve()


def test_a_trained_model_of_unknown_step_is_taken_for_the_newest(tmp_path: Path) -> None:
    run = run_folder(tmp_path, 20, trained=25)
    (run / "model" / ORIGIN).unlink()
    assert path_of(run, None) == (run / "model").resolve()


def test_weights_that_were_written_before_are_not_written_again(tmp_path: Path) -> None:
    """Also without a step: a run that goes on has a newer checkpoint by then, in a folder of its own."""
    run = run_folder(tmp_path, 3, 6)
    model(run / FOLDER / "step-6")
    assert path_of(run, 6) == path_of(run, None) == (run / FOLDER / "step-6").resolve()


def test_a_run_without_weights_says_when_there_will_be_some(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no checkpoint yet"):
        path_of(run_folder(tmp_path), None)
