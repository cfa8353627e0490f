"""What the run writes down of a step is what each rank says that it trained on."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RANK = """
import json, os, sys
import torch
from hora_rl.common.load import load
from hora_rl.learner.records import records_of
from tests.support.groups import group, rollout

rank = int(os.environ["RANK"])
torch.distributed.init_process_group("gloo")

def of_size(index):
    return group(index, [rollout(phase=phase) for phase in "AB"[: 1 + index % 2]])

mine = [of_size(i) for i in ([3, 4], [7])[rank]]
records = records_of(5, mine, load("tiny"), 2)
found = [[r["step"], r["group_id"], r["size"]] for r in records]
open(os.path.join(sys.argv[1], f"rank-{rank}.json"), "w").write(json.dumps(found))
torch.distributed.destroy_process_group()
"""


def test_each_rank_writes_down_its_own_groups(tmp_path: Path) -> None:
    run_ranks(RANK, tmp_path, str(tmp_path))
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert found == [[5, "0:3", 2], [5, "0:4", 1], [5, "0:7", 2]]
