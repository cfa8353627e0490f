"""The whole stack trains on an environment of the library `verifiers`: the tiny model learns a game of
several turns that knows nothing of us."""

from collections.abc import Iterator

import numpy as np
import pytest
from typer.testing import CliRunner

from hora_rl.deploy.verifiers_rows import app
from tests.support.jsonl import lines
from tests.support.verifiers_python import PYTHON, ROOT, needs_verifiers
from tests.system.conftest import LiveRun

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500), needs_verifiers]
STEPS = 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("library")
    example = str(ROOT / "examples/verifiers_guess.yaml")
    settings = {
        "data.path": folder / "rows.jsonl",
        "model.path": ROOT / "deploy/demo/model",
        "environment.verifiers.python": PYTHON,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "examples"))
        words = [word for k, v in settings.items() for word in ("-s", f"{k}={v}")]
        done = CliRunner().invoke(app, [example, *words], catch_exceptions=False)
        assert done.stdout.endswith("rows.jsonl: 42 rows\n"), done.output
        run = LiveRun(folder, STEPS, preset=example, **settings)
        try:
            run.start()
            run.finish()
            yield run
        finally:
            run.end()


def test_it_learns(finished: LiveRun) -> None:
    success = [s["success"] for s in lines(finished.run / "steps.jsonl")]
    print("success by step:", [round(s, 2) for s in success])
    assert np.mean(success[-3:]) > success[0] + 0.05


def test_generator_and_learner_agree_on_every_turn(finished: LiveRun) -> None:
    finished.assert_exact()
    steps = lines(finished.run / "steps.jsonl")
    assert max(s["drift"] for s in steps if "drift" in s) < 1e-4
    assert all(1.0 < s["turns/mean"] <= 3.0 for s in steps)
