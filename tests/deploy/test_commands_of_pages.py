"""Shell blocks of README and tutorials are shell; the README's configuration and Python do as it says."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from hora_rl.allocator import allocate
from hora_rl.common.load import load
from hora_rl.deploy.cli import app
from tests.support.pages import ROOT, Block, blocks

PAGES = (
    "README.md",
    "docs/how-to/deploy-in-containers.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "tutorial").glob("*.md")),
)


@pytest.mark.parametrize(
    "block", [b for p in PAGES for b in blocks(p) if b.kind == "sh"], ids=lambda b: b.name
)
def test_a_shell_block_is_written_without_mistakes(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_the_configuration_of_the_readme_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the demo's model in the place of the hub's, its rows are read."""
    (block,) = [b for b in blocks("README.md") if b.kind == "yaml"]
    (tmp_path / "mine.yaml").write_text(block.text)
    row = '{"problem": "1+1=?", "answer": "2"}\n'
    (tmp_path / "problems.jsonl").write_text(row * 60)
    (tmp_path / "held-out.jsonl").write_text(row.replace("1+1", "2+0"))
    monkeypatch.chdir(tmp_path)
    assert load("mine.yaml").model.path == yaml.safe_load(block.text)["model"]["path"]
    demo = ["model.path=deploy/demo/model", "model.dtype=float32", "data.system=null"]
    limits = ["rollout.max_prompt_tokens=32", "rollout.max_response_tokens=64"]
    words = [w for setting in (*demo, *limits) for w in ("-s", setting)]
    done = CliRunner().invoke(app, ["check", "mine.yaml", "--elsewhere", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "valid. 60 prompts" in done.output


def test_the_python_of_the_readme_divides_as_it_says() -> None:
    (block,) = [b for b in blocks("README.md") if b.kind == "python"]
    names: dict = {}
    exec(block.text, names)
    call = re.search(r"allocate\((.*?)\)  # Δ_i of each prompt, summing to (\d+)", block.text)
    assert call is not None
    assert names["allocate"] is allocate
    given = allocate(successes=[0, 3, 8], trials=8, budget=72)
    assert call[1] == "successes=[0, 3, 8], trials=8, budget=72"
    assert int(np.sum(given)) == int(call[2])
