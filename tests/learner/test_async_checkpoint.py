"""DeepSpeed's real checkpoints, written while the next step trains: what is loaded is the state before that
step, and the files are those of a checkpoint that is written within the step."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import cases_of, run_ranks

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

CASES = """
import json, sys
from pathlib import Path
import torch
from hora_rl.common.load import load
from hora_rl.learner.checkpoint import Checkpoints
from hora_rl.learner.device import set_device
from hora_rl.learner.engine import Engine
from tests.support.samples import random_micro_batch

folder = Path(sys.argv[1])


def step(engine, seed):
    return engine.step([random_micro_batch(40, s, 60) for s in (seed, seed + 100)]).grad_norm


def weights(engine):
    return {name: t.clone() for name, t in engine.gathered()}


for stage, lora, aside in json.loads(sys.argv[2]):
    adapter = ["learner.lora.rank=4", "learner.objective.kl=0.01"] if lora else []
    config = load("tiny", [
        "run.name=c", f"learner.zero_stage={stage}", f"learner.async_checkpoint={str(aside).lower()}",
        "learner.optimizer.learning_rate=0.01", *adapter,
    ])
    if not torch.distributed.is_initialized():
        backend = set_device(config.learner, config.run.seed, 0)
        torch.distributed.init_process_group(
            backend, init_method=f"file://{folder / 'store'}", rank=0, world_size=1
        )
    place = folder / f"{stage}-{lora}-{aside}"
    place.mkdir()
    engine, checkpoints = Engine(config, 0, 1), Checkpoints(config, place, 0, 1)
    step(engine, 1)
    step(engine, 2)
    checkpoints.begin(engine, 2)
    norm, after = step(engine, 3), weights(engine)
    checkpoints.finished(wait=True)
    again = Engine(config, 0, 1)
    assert Checkpoints(config, place, 0, 1).restore(again) == 2
    same = step(again, 3) == norm
    found = weights(again)
    same = same and all(torch.equal(found[name], after[name]) for name in after)
    files = {str(p.relative_to(place)): p.stat().st_size for p in place.rglob("*") if p.is_file()}
    print(json.dumps([[stage, lora, aside], [same, files]]), flush=True)
"""


def test_a_checkpoint_that_is_written_aside_is_the_state_when_it_was_taken(tmp_path: Path) -> None:
    kinds = ((0, False), (2, True), (3, False))
    cases = [(*kind, aside) for kind in kinds for aside in (True, False)]
    lines = cases_of(run_ranks(CASES, tmp_path, str(tmp_path), json.dumps(cases), ranks=1))
    found = {tuple(case): result for case, result in lines}
    assert set(found) == set(cases)
    assert all(same for same, _ in found.values()), found
    for stage, lora in kinds:
        aside, within = (found[stage, lora, way][1] for way in (True, False))
        assert aside.keys() == within.keys()
        sizes = {name: size for name, size in aside.items() if name.endswith(".pt")}
        larger = {n: (size, within[n]) for n, size in sizes.items() if size > 1.1 * within[n] + 4096}
        assert not larger
