"""The README and docs/ name only pages, sections, files, commands, options and keys that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml
from pydantic import BaseModel

from hora_rl.common.config import Config
from hora_rl.common.config.base import section_of
from hora_rl.deploy import reference
from hora_rl.deploy.cli import app
from hora_rl.deploy.monitor.run_state import Kind

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
COMMANDS = typer.main.get_command(app).commands
SECTIONS = "|".join(Config.model_fields)
ROOMS = (
    "actors|allocator|common|deploy|learner|evaluation|hora_rl|tests|examples|benchmarks|requirements|docs"
)
MADE = {"deploy/demo/model"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_reference_is_current(page: str) -> None:
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert text == reference.PAGES[page](), "run: make reference"


def test_every_configuration_key_is_explained() -> None:
    rows = [line for line in reference.configuration().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert not [row for row in rows if row.endswith("|  |")]


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
        if re.fullmatch(rf"(?:{ROOMS})/[\w./-]*", code) and code not in MADE:
            assert (ROOT / code).exists(), code
        if found := re.match(rf"((?:{SECTIONS})(?:\.[a-z_]+)+)(?::|=|$)", code):
            assert found[1] in KEYS or code == "run.json", code


def test_every_kind_of_warning_is_explained() -> None:
    page = (DOCS / "reference" / "monitoring.md").read_text(encoding="utf-8")
    rows = page.split("## Warnings")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([a-z_]+)` \|", rows, re.MULTILINE) == [kind.value for kind in Kind]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["strict"] is True


def test_the_readme_lists_every_command() -> None:
    named = {words[0] for words in hora_commands(ROOT / "README.md")}
    assert set(COMMANDS) <= named


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
