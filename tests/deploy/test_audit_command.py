"""`hora audit` says in a line what is wrong with a folder that holds no finished run."""

from pathlib import Path

import pytest

from common.errors import RunError
from deploy.runs.audit_run import audit_run
from deploy.runs.record import RunFile


def test_a_folder_without_a_run_or_without_steps_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run here"):
        audit_run(tmp_path)
    RunFile(tmp_path).start("r", 1)
    with pytest.raises(RunError, match=r"groups\.jsonl: no such file"):
        audit_run(tmp_path)
