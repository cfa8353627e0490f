"""A run folder that an earlier version wrote is resumed, or refused in one line that names the file."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import Config
from common.errors import HoraError, RunError
from common.load import dump_yaml, load
from deploy.launch.local import run_local

# The configuration and the record of a run as the first version with run folders wrote them.
LATER = {
    "learner": ("keep_best", "max_bad_losses", "mlflow", "group_cache_gib"),
    "allocation": ("rounds", "stop", "budget", "max_group_size"),
    "evaluation": ("every", "max_sequences"),
    "reward": ("success", "success_at", "answer", "code_tests"),
    "rollout": ("stop",),
}
RECORD = {"run": "tiny", "state": "failed", "pid": 1, "http_port": None, "started": 1.0, "ended": 2.0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    @contextmanager
    def away(*_args: object, **_how: object) -> Iterator[str]:
        raise RunError("the stack was reached")
        yield ""

    monkeypatch.setattr("deploy.launch.local.starting", away)
    monkeypatch.setattr("deploy.launch.local.require", lambda *_: [])
    run = tmp_path / "tiny"
    run.mkdir()
    values = yaml.safe_load(dump_yaml(config(tmp_path)))
    for section, keys in LATER.items():
        for key in keys:
            values[section].pop(key, None)
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    (run / "run.json").write_text(json.dumps(RECORD))
    return run


def config(folder: Path) -> Config:
    return load("tiny", [f"run.folder={folder}"])


def outcome(folder: Path) -> str:
    """What `hora run --resume` says of the folder: one line."""
    with pytest.raises(HoraError) as error:
        run_local(config(folder.parent), resume=True, fresh=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def edited(path: Path, change: Callable[[Any], Any]) -> None:
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_a_folder_without_the_settings_and_fields_of_later_versions_is_resumed(folder: Path) -> None:
    assert outcome(folder) == "the stack was reached"


def test_a_setting_that_is_gone_is_named_with_its_file(folder: Path) -> None:
    edited(folder / "config.yaml", lambda values: values["rollout"].update(top_p=1.0))
    says = outcome(folder)
    assert str(folder / "config.yaml") in says
    assert "rollout.top_p" in says


def test_a_record_with_unknown_fields_is_named_with_its_file(folder: Path) -> None:
    edited(folder / "run.json", lambda values: values.update(ports=[1, 2]))
    assert str(folder / "run.json") in outcome(folder)
