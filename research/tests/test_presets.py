"""The tasks' presets for the whole stack."""

from pathlib import Path

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import ROOT, check_paths
from hora_rl.deploy.checks.configuration import context, model, names
from hora_rl.deploy.checks.run_checks import target_of
from hora_rl.deploy.checks.sources import data
from research.study.cells import PRESETS, load_base
from research.tasks.catalogue import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_the_preset_of_a_task_stands_every_check_once_its_task_is_built(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"model\.path \(.*tasks/{name}/model\): no such file or folder"):
        check_paths(load_base(name))
    folder = tmp_path / "tasks" / name
    folder.mkdir(parents=True)
    TASKS[name](0)[0].save(folder)
    (folder / "model").symlink_to(ROOT / "deploy" / "demo" / "model")  # of its size, with its tokenizer
    target = target_of(str(PRESETS / f"{name}.yaml"))
    found = [f for check in (model, names, context, data) for f in check(target)]
    assert {f.level for f in found} <= {"ok", "warn"}, found
    assert any("150" in f.says or "300" in f.says for f in found), found
