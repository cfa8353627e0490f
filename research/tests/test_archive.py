"""A study in one file: measurements come out as they went in, and all figures are drawn from it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hora_rl.common.errors import HoraError
from hora_rl.common.load import ROOT
from research.study.archive import pack, report, unpack
from research.tasks.catalogue import TASKS
from tests.support.jsonl import lines

STUDY = """
name: mini
seeds: [100, 101, 102]
design:
  hypotheses: [HORA finds more.]
  watched: transfer
  comparisons: [[hora, grpo]]
  exploratory: [[stop, hora], [never, grpo]]
  first: [grpo, hora, stop]
set: {model.path: tasks/facts/model, data.path: tasks/facts/trained.jsonl, evaluation.path: null,
  rollout.prompts_per_batch: 4, rollout.shards: 1, rollout.group_size: 16, rollout.pre_rollouts: 4}
arms:
  grpo: {allocation.rule: uniform}
  hora: {allocation.rule: hit_utility}
  stop: {allocation.rule: first_hit, allocation.rounds: 2, allocation.stop: hit}
  never: {allocation.rule: variance}
"""
STEPS, PROMPTS = 3, 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cells of three arms on three seeds as the loop writes them, one of them unfinished."""
    task = tmp_path / "tasks" / "facts"
    task.mkdir(parents=True)
    (task / "model").symlink_to(ROOT / "deploy" / "demo" / "model")
    TASKS["facts"](0)[0].save(task)
    (tmp_path / "mini.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    for i, arm in enumerate(("grpo", "hora", "stop")):
        for seed in (100, 101, 102):
            write_cell(tmp_path / "cells" / f"{arm}-seed{seed}", i, seed)
    (tmp_path / "cells" / "stop-seed102" / "curves.json").unlink()
    return tmp_path


def write_cell(folder: Path, arm: int, seed: int) -> None:
    rng = np.random.default_rng([arm, seed])
    folder.mkdir(parents=True)
    points = [
        {"step": s, **{f"pass@{k}": float(rng.uniform(0.2, 0.9)) for k in (1, 4, 16, 64, 256)}, "ways": 1.0}
        for s in range(STEPS + 1)
    ]
    usual = {"hits": 0.5, "signal": 0.5, "rollouts": 64.0, "tokens": 512.0, "entropy": 1.0, "grad_norm": 0.1}
    steps = [{"step": s, **usual} for s in range(STEPS)]
    record = {"arm": "x", "seed": seed, "curves": {"transfer": points, "trained": points}, "steps": steps}
    (folder / "curves.json").write_text(json.dumps({**record, "success": {}, "seconds": 1.0}))
    prior = {"prior_alpha": 1.0, "prior_beta": 1.0}
    with (folder / "groups.jsonl").open("w") as file:
        for i in range(STEPS * PROMPTS):
            p, which = float(rng.uniform()), {"step": i // PROMPTS, "prompt_index": i % PROMPTS}
            hits = int(rng.binomial(12, p))
            counts = {
                "successes": 1,
                "hits": 1 + hits,
                "rounds": [8, 4],
                "round_hits": [hits, 0],
                "tokens": 99,
            }
            file.write(json.dumps({**which, "p": p, "size": 16, **counts, **prior}) + "\n")


def test_what_comes_out_of_an_archive_is_what_the_cells_wrote(folder: Path) -> None:
    assert pack("mini.yaml", folder / "cells", folder / "mini.json.xz") == 8
    archive = unpack(folder / "mini.json.xz")
    seeds_of = {arm: sorted(seeds) for arm, seeds in archive.records.items()}
    every = [100, 101, 102]
    assert seeds_of == {"grpo": every, "hora": every, "stop": every[:2], "never": []}
    written = json.loads((folder / "cells" / "hora-seed101" / "curves.json").read_text())
    curve = archive.curves()["hora"][101]
    expected = [point["pass@16"] for point in written["curves"]["transfer"]]
    np.testing.assert_allclose(curve.mean("transfer", "pass@16"), expected, rtol=1e-4)
    groups = lines(folder / "cells" / "stop-seed101" / "groups.jsonl")
    record = archive.records["stop"][101]
    assert record["groups.round_hits"] == [group["round_hits"] for group in groups]
    np.testing.assert_allclose(record["groups.p"], [group["p"] for group in groups], rtol=5e-3)


def test_one_command_writes_every_table_and_figure_of_an_archive(folder: Path) -> None:
    pack("mini.yaml", folder / "cells", folder / "mini.json.xz")
    text = report(folder / "mini.json.xz", folder / "out").read_text()
    assert text.index("HORA finds more.") < text.index("Seeds missing: stop (2 of 3), never (0 of 3)")
    assert (folder / "out" / "mini-curves.png").stat().st_size > 4000


def test_cells_that_ran_later_join_those_whose_folders_are_gone(folder: Path) -> None:
    out = folder / "mini.json.xz"
    assert pack("mini.yaml", folder / "cells", out) == 8
    before = unpack(out).records["grpo"][100]
    shutil.rmtree(folder / "cells")
    write_cell(folder / "cells" / "stop-seed102", 2, 102)
    assert pack("mini.yaml", folder / "cells", out) == 9
    assert unpack(out).records["grpo"][100] == before
    other = STUDY.replace("rollout.group_size: 16", "rollout.group_size: 12")
    (folder / "mini.yaml").write_text(other)
    with pytest.raises(HoraError, match="grpo"):
        pack("mini.yaml", folder / "cells", out)


def test_what_is_no_archive_is_one_line(folder: Path) -> None:
    (folder / "other.json.xz").write_bytes(b"nothing")
    with pytest.raises(HoraError, match=r"other\.json\.xz"):
        unpack(folder / "other.json.xz")
    with pytest.raises(HoraError, match="nowhere"):
        pack("mini.yaml", folder / "nowhere", folder / "x.json.xz")
