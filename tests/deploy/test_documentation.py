"""The README and docs/ name only files, commands, options and keys that exist. Commands read folders of ended
runs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from hora_rl.common.config import Config
from hora_rl.common.config.base import section_of
from hora_rl.deploy import reference
from hora_rl.deploy.cli import app
from tests.support.jsonl import write_lines
from tests.support.pages import ROOT
from tests.support.reported_runs import make_run
from tests.support.rollouts import write_rollouts
from tests.support.synthetic_run import write_ended

DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
COMMANDS = typer.main.get_command(app).commands
SECTIONS = "|".join(Config.model_fields)
ROOM = "actors|allocator|common|deploy|learner|evaluation|hora_rl|tests|examples|benchmarks|requirements|docs"
MADE = {"deploy/demo/model", "common/algorithms/NAME.py", "common/algorithms/signed.py"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_reference_is_current(page: str) -> None:
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert text == reference.PAGES[page](), "run: make reference"


@each_page
def test_every_command_and_option_exists(page: Path) -> None:
    for words in hora_commands(page):
        name = words[0]
        assert name in COMMANDS, f"`hora {' '.join(words)}`: no such command"
        known = {o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known, f"`hora {' '.join(words)}`: no option {', '.join(sorted(used - known))}"


@each_page
def test_every_named_make_target_file_and_key_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for code in codes(page):
        if found := re.match(r"make ([a-z-]+)\b", code):
            assert found[1] in targets, code
        if re.fullmatch(rf"(?:{ROOM})/[\w./-]*", code) and code not in MADE:
            assert (ROOT / code).exists(), code
        if found := re.match(rf"((?:{SECTIONS})(?:\.[a-z_]+)+)(?::|=|$)", code):
            assert found[1] in KEYS or code == "run.json", code


def codes(page: Path) -> Iterator[str]:
    """Code spans, and the lines of code blocks, fenced or indented."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (line.strip() for line in re.findall(r"^ {4,}(\S.*)$", rest, re.MULTILINE))
    yield from re.findall(r"`([^`\n]+)`", rest)


def hora_commands(page: Path) -> Iterator[list[str]]:
    """Every `hora …` as its words, without a comment behind it."""
    for code in codes(page):
        if found := re.match(r"(?:\$ )?(?:\.venv/bin/)?hora ([a-z].*)", code):
            yield found[1].split(" #")[0].split()


def keys(model: type[BaseModel], path: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}" if path else name
        yield here
        if (section := section_of(field.annotation)) is not None:
            yield from keys(section, here)


KEYS = set(keys(Config, ""))


# Commands in one folder, in this order, with what each must say.
HERE: dict[str, list[tuple[str, str]]] = {
    "init": [("init named.yaml --task code --model smollm2", "named.yaml")],
    "check": [("check tiny --elsewhere", "valid. 2000 prompts")],
    "monitor": [("monitor runs/over --once", "finished"), ("monitor runs/over --json", '"step": 3')],
    "runs": [("runs", "finished")],
    "rollouts": [("rollouts runs/sampled --step 1 --prompt 0 --failure --order longest", "step 1")],
    "report": [
        ("report runs/reported", "report"),
        ("report runs/one runs/two --over rollouts --out compared", "report.html"),
    ],
    "plan": [("plan counts.jsonl", "hit_utility")],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read: runs that have ended, and recorded counts."""
    made = tmp_path_factory.mktemp("reader")
    runs = made / "runs"
    write_ended(runs / "over")
    write_rollouts(runs / "sampled", steps=3, prompts=2)
    make_run(runs / "reported", "hit_utility", 0, steps=8)
    for name, rule in (("one", "hit_utility"), ("two", "uniform")):
        (runs / name).mkdir()
        config = {"run": {"name": name}, "allocation": {"rule": rule}, "learner": {"steps": 3}}
        (runs / name / "config.yaml").write_text(yaml.safe_dump(config))
        steps = [{"step": i, "success": 0.1 * i, "rollouts": 10, "time/step": 60.0} for i in range(3)]
        write_lines(runs / name / "steps.jsonl", steps)
    counts = ({"id": f"q{i}", "successes": i % 33, "trials": 32} for i in range(330))
    write_lines(made / "counts.jsonl", counts)
    return made


@pytest.mark.system
@pytest.mark.parametrize(("command", "says"), [pair for pairs in HERE.values() for pair in pairs])
def test_a_command_does_what_it_says_on_ended_runs(
    command: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print(done.output)
    assert says in done.output
