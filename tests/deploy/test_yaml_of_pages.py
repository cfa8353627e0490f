"""Every YAML block of the README and the guides is accepted: a configuration by `hora check` with the demo's
model; a study and a Serve file are read. A new block fails here until it has a place."""

import json
import textwrap
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema
from typer.testing import CliRunner

from hora_rl.common.config import Config
from hora_rl.deploy.checks.run_checks import target_of
from hora_rl.deploy.cli import app
from tests.support.pages import ROOT, Block, blocks

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "how-to").glob("*.md"))]
YAML = [block for page in PAGES for block in blocks(page) if block.kind == "yaml"]
SECTIONS = set(Config.model_fields)
CONFIGURATIONS = [b for b in YAML if set(yaml.safe_load(b.text)) <= SECTIONS]
ANOTHER_PYTHON = [b for b in CONFIGURATIONS if yaml.safe_load(b.text).get("environment", {}).get("verifiers")]
"""Environments of a library that has a Python of its own, with modules that a reader has and we have not."""
OTHERS = {
    "docs/how-to/run-on-several-machines.md": "a part of a Serve file",
    "docs/how-to/evaluate-a-model.md": "a Serve file",
}
ROW = {
    "problem": "1+1=?",
    "answer": "2",
    "expected": "2",
    "task": "print 2",
    "tests": [{"input": "", "output": "2\n"}],
    "solution": "print(2)",
}
"""A row that every page's rewards can use."""
NARROW = {
    "environment": {"max_turn_tokens": 40, "max_given_tokens": 100},
    "rollout": {"max_prompt_tokens": 128, "max_response_tokens": 200},
}
"""The demo's model has a context of 512 tokens."""


def tiny() -> dict:
    preset = yaml.safe_load((ROOT / "deploy/presets/tiny.yaml").read_text())
    preset["model"]["path"] = str(ROOT / preset["model"]["path"])
    return preset


def completed(text: str) -> dict:
    """The configuration of a page on the demo's model, which has no words for a system message, and
    on rows of ours, with what a page leaves out."""
    shown, base = yaml.safe_load(text), tiny()
    own = {"data": {"path": "problems.jsonl", "system": None}, "evaluation": {"path": None}}
    if sources := shown.get("data", {}).get("sources"):
        own["data"] = {"sources": {name: {**source, "system": None} for name, source in sources.items()}}
        del shown["data"]
    for name in ("environment", "rollout"):
        limits = {k: v for k, v in NARROW[name].items() if name == "rollout" or name in shown}
        shown[name] = {**shown.get(name, {}), **limits}
    model = {**shown.pop("model", {}), **base["model"]}
    kept = {k: v for k, v in base.items() if k not in (*own, "model")}
    merged = {k: {**kept.get(k, {}), **own.get(k, {}), **shown.get(k, {})} for k in {*kept, *own, *shown}}
    return {**{k: v for k, v in merged.items() if v}, "model": model}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that the pages name."""
    for name, row in (
        ("problems", ROW),
        ("programs", ROW),
        ("held-out", {**ROW, "problem": "2+0=?"}),
    ):
        (tmp_path / f"{name}.jsonl").write_text(60 * (json.dumps(row) + "\n"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_block_is_a_configuration_or_has_a_test() -> None:
    assert {b.page for b in YAML if b not in CONFIGURATIONS} == set(OTHERS)


@pytest.mark.system
@pytest.mark.parametrize(
    "block", [b for b in CONFIGURATIONS if b not in ANOTHER_PYTHON], ids=lambda b: b.name
)
def test_the_configuration_of_a_page_passes_hora_check(block: Block, folder: Path) -> None:
    for code in (b for b in blocks(block.page) if b.kind == "python" and "def " in b.text):
        name = "rooms" if "rooms" in block.text else "my_rewards"
        (folder / f"{name}.py").write_text(code.text)
    (folder / "mine.yaml").write_text(yaml.safe_dump(completed(block.text)))
    done = CliRunner().invoke(app, ["check", "mine.yaml", "--elsewhere"])
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert "mine.yaml: valid. " in done.output
    if "sources" in block.text:
        assert "math: 60 prompts" in done.output
        assert "75%: " in done.output
        assert "code: code_tests 1: reward 1, a success" in done.output


def test_the_serve_files_of_the_pages_are_read(folder: Path) -> None:
    [part] = [b for b in YAML if OTHERS.get(b.page) == "a part of a Serve file"]
    schema = ServeApplicationSchema(import_path="hora_rl.deploy.app:build", **yaml.safe_load(part.text))
    assert [d.name for d in schema.deployments] == ["generator"]
    [block] = [b for b in YAML if OTHERS.get(b.page) == "a Serve file"]
    args = yaml.safe_dump({**tiny(), "serve": {"endpoint": True}})
    text = block.text.replace("      …\n", textwrap.indent(args, "      "))
    (folder / "serve.yaml").write_text(text)
    ServeDeploySchema.model_validate(yaml.safe_load(text))
    assert target_of("serve.yaml").config.serve.endpoint


@pytest.mark.parametrize("block", ANOTHER_PYTHON, ids=lambda b: b.name)
def test_the_configuration_of_an_environment_with_another_python_has_only_known_keys(block: Block) -> None:
    shown = Config.model_validate(completed(block.text)).model_dump()
    for section, values in yaml.safe_load(block.text).items():
        assert shown[section].keys() >= values.keys()
