"""`hora init` writes what `hora check` accepts, on machines with and without GPUs, and never over a file."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy import init_command as initial
from hora_rl.deploy.checks import machine, memory
from hora_rl.deploy.checks.estimate import Estimate, ModelShape
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.memory import memory as memory_of
from hora_rl.deploy.checks.run_checks import CONFIGURATION, require, target_of
from hora_rl.deploy.init_command import BIG, PLANS, SMALL, Task, initialise
from tests.support.gguf import write_gguf
from tests.support.tiny_qwen2 import without_weights

Cards = Callable[[int, str], None]
# Memory as the driver says it.
H200, L40S, A100, RTX_5090 = "143771 MiB", "46068 MiB", "40960 MiB", "32607 MiB"
RTX_4090, A10, RTX_4080, RTX_4070, RTX_3070 = "24564 MiB", "23028 MiB", "16376 MiB", "12282 MiB", "8192 MiB"


def estimate_of(config: Config) -> Estimate:
    """As the checks make it, without the network."""
    own = (config.model.path, config.learner.lora is not None)
    return Estimate(config, next(p.shape for p in PLANS if (p.model, "lora:" in p.learner) == own))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder on a machine without cards."""
    monkeypatch.setattr(initial, "gpus", list)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    def have(count: int, mib: str) -> None:
        for module in (initial, machine):
            monkeypatch.setattr(module, "gpus", lambda: [f"NVIDIA, {mib}"] * count)
        monkeypatch.setattr(memory, "estimate_of", estimate_of)

    return have


def written(task: Task = "math", model: str | None = None, name: str = "mine.yaml") -> str:
    return str(initialise(Path(name), task, model)[0])


def accept(config: Config) -> None:
    findings = require(Target(config), Console(quiet=True), CONFIGURATION)
    assert {f.level for f in findings} <= {"ok", "warn"}


@pytest.mark.parametrize("model", [None, "tiny.gguf"])
@pytest.mark.parametrize(("task", "files"), [("math", 1), ("mine", 3), ("code", 2)])
def test_what_is_written_is_accepted_and_never_written_again(
    task: Task, files: int, model: str | None, tmp_path: Path
) -> None:
    write_gguf(Path("tiny.gguf"), context=1024)
    paths = initialise(Path(f"{task}-first.yaml"), task, model)
    config = load(str(paths[0]), ["model.dtype=float32"])
    accept(config)
    assert (config.run.name, len(paths)) == (f"{task}_first", files)
    assert ("deploy/demo" if model is None else str(tmp_path / "cache")) in config.model.path
    with pytest.raises(ConfigError, match=f"{task}-first.yaml"):
        initialise(Path(f"{task}-first.yaml"), task)


def test_cards_hold_a_model_of_the_users_own_by_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (initial, machine):
        monkeypatch.setattr(module, "gpus", lambda: [f"NVIDIA, {RTX_3070}"])
    file = write_gguf(Path("tiny.gguf"), context=4096)
    assert load(written("math", str(file))).learner.lora is None, "it is small"
    with pytest.raises(ConfigError, match="--model nowhere/at/all"):
        written("math", "nowhere/at/all", "none.yaml")


def test_no_number_of_gpus_is_written_for_run_divides_them(cards: Cards) -> None:
    cards(3, H200)
    config = load(written())
    assert config.run.resources == "auto"
    assert not {"replicas", "gpus"} & config.generator.model_fields_set
    assert not {"workers", "gpus", "zero_stage"} & config.learner.model_fields_set
    assert config.model.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("count", "mib", "model", "lora"),
    [
        *((count, mib, BIG, False) for count, mib in ((1, H200), (2, A100), (4, RTX_4090))),
        *((1, mib, BIG, True) for mib in (L40S, A100, RTX_5090, A10)),
        *((2, mib, BIG, True) for mib in (RTX_4090, RTX_4080, RTX_4070)),
        *((1, mib, SMALL, True) for mib in (RTX_4080, RTX_4070, RTX_3070)),
    ],
)
def test_these_gpus_hold_what_is_written_for_them(
    count: int, mib: str, model: str, lora: bool, cards: Cards
) -> None:
    cards(count, mib)
    path = written()
    target = target_of(path)
    findings = {f.what: f for f in memory_of(target)}
    assert {f.level for f in findings.values()} == {"ok"}, findings["GPU memory"].line
    assert {"resources", "memory per part", "GPU memory", "memory"} == set(findings)
    config = target.config
    assert (config.model.path, config.learner.lora is not None) == (model, lora)
    assert config.learner.optimizer.learning_rate == (1e-5 if lora else 1e-6)
    assert "Too large" not in Path(path).read_text()


def test_gpus_that_hold_no_known_model_get_the_smallest_and_are_told(
    cards: Cards, capsys: pytest.CaptureFixture[str]
) -> None:
    cards(1, "6144 MiB")
    path = written()
    target = target_of(path)
    assert target.config.model.path == SMALL
    assert {f.what: f.level for f in memory_of(target)}["GPU memory"] == "fail"
    assert "# Too large for this machine: no model" in Path(path).read_text()
    assert "no model" in capsys.readouterr().err


def test_a_card_without_own_memory_has_the_host_s(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(1, "[N/A]")
    host = SimpleNamespace(total=6 * 2**30, available=2**40)
    monkeypatch.setattr("hora_rl.deploy.checks.resources.psutil.virtual_memory", lambda: host)
    target = target_of(written())
    assert target.config.model.path == SMALL
    assert "of 6.0 GiB" in {f.what: f for f in memory_of(target)}["GPU memory"].says


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_has_the_shape_of_its_model(plan: initial.Plan) -> None:
    heads, shape = {BIG: 12, SMALL: 14}[plan.model], plan.shape
    model = without_weights(shape.vocabulary, shape.hidden, shape.intermediate, shape.layers, heads, 2)
    config = load("tiny", ["learner.lora.rank=16"] if plan.learner else [])
    assert ModelShape.of(model, config.learner.lora) == shape


@pytest.mark.parametrize(
    ("stem", "name"),
    [(same, same) for same in ("2024", "null", "1e5")]
    + [("_first", "first"), ("-a.b c", "a_b_c"), ("é", "run"), ("n" * 80, "n" * 64)],
)
def test_any_name_of_a_file_gives_a_run_and_its_files_a_name(stem: str, name: str) -> None:
    config = load(written("mine", name=f"{stem}.yaml"))
    assert config.run.name == name
    accept(config)


def test_cards_without_bfloat16_get_float16(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(1, RTX_4080)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "ask_driver", lambda fields: ["0, GPU-a, Tesla T4, 7.5"])
    assert load(written()).model.dtype == "float16"
