"""What `run.resources: auto` chooses for a machine's cards, and the estimate of memory that it goes by."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

import hora_rl.runs
from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import dump_yaml, load
from hora_rl.deploy.checks import machine, resources
from hora_rl.deploy.checks.estimate import Estimate
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.machine import enough_gpus
from hora_rl.deploy.checks.memory import beside_engine, holds, memory, run_target, table
from hora_rl.deploy.checks.model_shape import ModelShape
from hora_rl.deploy.checks.resources import SPARE, Card, choose, read_cards
from hora_rl.deploy.checks.run_checks import target_of
from hora_rl.deploy.checks.step_costs import step_seconds
from hora_rl.deploy.launch import resolve
from hora_rl.deploy.machine.record import with_absolute_folder, write_config
from hora_rl.learner.launch import backend, gpu_share
from tests.support.checks import by_name
from tests.support.tiny_qwen2 import SHAPES, without_weights

MOMENTS = "master weights, moments"
H100, RTX = Card("H100", 79.6), Card("RTX 4090", 24.0)
BASE = ("model.dtype=bfloat16", "rollout.max_prompt_tokens=1024", "rollout.max_response_tokens=2048")
BASE += ("learner.tokens_per_microbatch=4096",)
LORA = ("learner.lora.rank=16",)


@pytest.fixture(autouse=True)
def with_processors(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`with_processors(16)`: this machine has as many. By default four, which serve one engine."""

    monkeypatch.setattr(resources, "free_memory", lambda: 2**40)

    def have(count: int) -> None:
        monkeypatch.setattr(resources, "processors", lambda: count)

    have(4)
    return have


def case(name: str, *more: str) -> Estimate:
    """A configuration in which nobody wrote how many replicas, ranks or cards, and the shape of a model."""
    config = load("tiny", [*BASE, *more])
    return Estimate(config, ModelShape.of(without_weights(*SHAPES[name]), config.learner.lora))


def plain(tmp_path: Path, name: str, *more: str) -> Estimate:
    """A configuration of which nobody wrote what a generator holds, and the shape of a model."""
    file = tmp_path / "run.yaml"
    file.write_text("model: {path: deploy/demo/model, dtype: bfloat16}\ndata: {path: arithmetic}\n")
    config = load(str(file), more)
    return Estimate(config, ModelShape.of(without_weights(*SHAPES[name]), config.learner.lora))


@pytest.mark.parametrize(
    ("name", "card", "more"),
    [("1.5B", H100, ()), ("7B", H100, LORA), ("0.5B", RTX, ()), ("3B", RTX, LORA)],
)
def test_one_card_holds_generator_and_learner(name: str, card: Card, more: tuple[str, ...]) -> None:
    chosen = choose(case(name, *more), [card])
    generator, learner = chosen.config.generator, chosen.config.learner
    assert (generator.replicas, generator.gpus, learner.workers, learner.gpus) == (1, 0.5, 1, 0.5)
    cache = generator.kv_cache_gib
    assert cache is not None
    rank, engine = chosen.rank(), chosen.generator(cache)
    assert rank.gib + engine.gib <= card.gib * (1 - SPARE)
    assert cache >= chosen.least_kv_gib - 0.01
    # vLLM asks for its share to be free when it starts, also again while the learner holds its own.
    assert generator.memory_utilization * card.gib <= card.gib - rank.gib
    assert generator.memory_utilization * card.gib >= engine.gib - 0.01
    assert holds(chosen, [card]).level == "ok"


H200 = Card("H200", 139.8)
SHORT = ("rollout.max_prompt_tokens=256", "rollout.max_response_tokens=512", "rollout.prompts_per_batch=64")
SHORT += ("rollout.group_size=32", "generator.max_sequences=256")


@pytest.mark.parametrize(
    ("name", "cards", "again", "tokens"),
    [
        ("0.5B", [H200], False, 65_536),
        ("1.5B", [H200], False, 16_384),
        ("1.5B", [H100], False, 8192),
        ("1.5B", [H200] * 2, False, 32_768),
        ("7B", [H100] * 8, True, 32_768),
    ],
)
def test_activations_are_kept_in_the_largest_micro_batches_that_memory_allows(
    tmp_path: Path, name: str, cards: list[Card], again: bool, tokens: int
) -> None:
    def chosen(*more: str) -> Estimate:
        return choose(plain(tmp_path, name, *SHORT, *more), cards)

    made = chosen()
    generator, learner = made.config.generator, made.config.learner
    assert (learner.gradient_checkpointing, learner.tokens_per_microbatch) == (again, tokens)
    assert holds(made, cards).level == "ok"
    if len(cards) == 1:
        assert generator.kv_cache_gib >= 0.99 * min(256 * made.longest_kv_gib, cards[0].gib / 4)
    learner = chosen(
        "learner.tokens_per_microbatch=1024", "learner.gradient_checkpointing=true"
    ).config.learner
    assert (learner.gradient_checkpointing, learner.tokens_per_microbatch) == (True, 1024)


BATCH = ("rollout.max_prompt_tokens=256", "rollout.max_response_tokens=512", "rollout.prompts_per_batch=16")


@pytest.mark.parametrize(("have", "engines"), [(2, 1), (7, 1), (10, 2), (16, 4)])
def test_a_card_gets_as_many_engines_as_its_processors_serve(
    tmp_path: Path, with_processors: Callable[[int], None], have: int, engines: int
) -> None:
    with_processors(have)
    made = choose(plain(tmp_path, "1.5B", *BATCH), [H200])
    generator, rank, engine = made.config.generator, made.rank(), made.generator()
    assert (generator.replicas, made.engines) == (engines, engines)
    assert 0.499 < engines * generator.gpus <= 0.5, "and the learner has the other half"
    assert enough_gpus(Target(made.config), 1, "this machine has").level == "ok"
    assert generator.max_sequences * engines == 1024, "two batches of 16 · 32"
    assert generator.kv_cache_gib >= generator.max_sequences * made.longest_kv_gib
    assert made.shared_gib(engine) == pytest.approx(rank.gib + engines * engine.gib)
    assert made.shared_gib(engine) <= H200.usable_gib
    # vLLM asks for each engine's share to be free when it starts, also beside all others.
    assert engine.gib <= generator.memory_utilization * H200.gib < engine.gib + 0.011 * H200.gib
    assert (f"and {engines} · generator" in holds(made, [H200]).line) == (engines > 1)


def test_a_card_that_is_bound_by_its_memory_gets_one_engine(
    tmp_path: Path, with_processors: Callable[[int], None]
) -> None:
    with_processors(64)
    assert choose(plain(tmp_path, "7B", *LORA), [H100]).config.generator.replicas == 1


def test_a_host_with_little_memory_gets_fewer_engines(
    tmp_path: Path, with_processors: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_processors(16)
    for engines in (1, 2):
        made = choose(plain(tmp_path, "1.5B", *BATCH, f"generator.replicas={engines}"), [H200])
        free = 1.01 * sum(made.host(cards=True).values()) / (1 - SPARE) * 2**30
        monkeypatch.setattr(resources, "free_memory", lambda free=free: free)
        assert choose(plain(tmp_path, "1.5B", *BATCH), [H200]).config.generator.replicas == engines


def test_a_run_that_samples_little_gets_one_engine(
    tmp_path: Path, with_processors: Callable[[int], None]
) -> None:
    """One more would load longer than all steps sample."""
    with_processors(16)
    few = (*BATCH, "learner.steps=4")
    engines = [
        choose(plain(tmp_path, "1.5B", *few, *more), [H200]).config.generator.replicas
        for more in ((), ("learner.steps=100",))
    ]
    assert engines[0] == 1 < engines[1]


def test_engines_somebody_wrote_divide_the_card(tmp_path: Path) -> None:
    made = choose(plain(tmp_path, "0.5B", *BATCH, "generator.replicas=3"), [H200])
    generator = made.config.generator
    assert (generator.replicas, generator.gpus, generator.max_sequences) == (3, 0.1666, 344)
    assert holds(made, [H200]).level == "ok"
    turns = choose(plain(tmp_path, "0.5B", *BATCH, *SLEEP), [H200]).config.generator
    assert turns.replicas == 1


@pytest.mark.parametrize("longest", [72, 80, 81])
def test_the_cache_holds_every_sequence_that_may_run_to_its_end(tmp_path: Path, longest: int) -> None:
    """In vLLM's blocks of 16 tokens, of which it keeps one for itself."""
    limits = ("rollout.max_prompt_tokens=64", f"rollout.max_response_tokens={longest - 64}")
    for more in ((), ("generator.max_sequences=128",)):
        made = choose(plain(tmp_path, "0.5B", *limits, *more), [H100])
        generator = made.config.generator
        blocks = generator.max_sequences * -(-longest // 16) + 1
        assert generator.kv_cache_gib * 2**30 >= blocks * 16 * made.kv_token_bytes
        assert generator.max_sequences == 128 if more else generator.max_sequences == 1024


def test_where_memory_is_short_twice_the_longest_sequences_run(tmp_path: Path) -> None:
    long = ("rollout.max_response_tokens=16384", "learner.tokens_per_microbatch=20480")
    made = choose(plain(tmp_path, "1.5B", *long, *LORA), [H100])
    generator = made.config.generator
    held = 2 * generator.kv_cache_gib / made.longest_kv_gib
    assert 64 < generator.max_sequences <= held + 8
    assert made.shared_gib(made.generator()) > 0.9 * H100.usable_gib, "the card is used"


SLEEP = ("generator.sleep=step", "rollout.max_staleness=0")


@pytest.mark.parametrize(("name", "more"), [("0.5B", ("learner.tokens_per_microbatch=20480",)), ("3B", LORA)])
def test_taking_turns_leaves_the_cache_what_only_a_step_needs(name: str, more: tuple[str, ...]) -> None:
    more = (*more, "generator.max_sequences=1024")
    together, apart = (choose(case(name, *more, *sleep), [RTX]) for sleep in ((), SLEEP))
    settings = apart.config.generator
    assert settings.kv_cache_gib is not None
    assert settings.kv_cache_gib > (together.config.generator.kv_cache_gib or 0.0) + 0.5
    rank, generator = apart.rank(), apart.generator(settings.kv_cache_gib)
    usable = RTX.gib * (1 - SPARE)
    assert rank.gib + generator.gib > usable, "at the same time they would not fit"
    assert apart.shared_gib(generator) <= usable
    assert rank.gib + generator.always["engine"] + generator.always["context"] <= usable
    assert rank.idle_gib + generator.gib <= usable
    # vLLM asks for its share to be free when a replica starts, which it does while the learner waits.
    assert settings.memory_utilization * RTX.gib <= RTX.gib - rank.idle_gib
    assert holds(apart, [RTX]).level == "ok"
    assert "engine asleep" in table(apart)
    assert "engine asleep" not in table(together)


def test_sleep_is_refused_where_no_card_can_be_freed(cards: Callable[[int], None]) -> None:
    config = case("0.5B", *SLEEP).config
    for count, level in ((0, "fail"), (1, "ok")):
        cards(count)
        [finding] = machine.engine_sleep(Target(config))
        assert finding.level == level


def test_what_no_card_holds_is_refused_with_every_part_and_the_keys() -> None:
    finding = holds(choose(case("7B"), [H100]), [H100])
    assert finding.level == "fail"
    for named in ("learner rank 1", "generator 1", "H100", "learner.lora"):
        assert named in finding.line


def test_buffers_of_nccl_that_do_not_fit_beside_vllm_s_share_are_a_warning_with_the_share_that_does() -> None:
    def beside(cards: list[Card], *more: str) -> list[Finding]:
        return [*beside_engine(case("0.5B", *more), cards)]

    nccl = "weights.transport=nccl"
    [small] = beside([H100, RTX], nccl)
    assert small.level == "warn"
    assert "RTX 4090" in small.line
    assert "generator.memory_utilization to 0.87" in small.line
    lower = beside([RTX], nccl, "generator.memory_utilization=0.87")
    assert [f.level for f in (*lower, *beside([H100], nccl))] == ["ok", "ok"]
    assert not beside([RTX], nccl, "generator.kv_cache_gib=8"), "all of it is in the estimate"
    assert not beside([RTX])


PAPER = ("rollout.prompts_per_batch=60", "rollout.group_size=32", "rollout.max_prompt_tokens=2048")
PAPER += ("learner.tokens_per_microbatch=16384", "learner.gradient_checkpointing=true")
PAPER += ("generator.max_batched_tokens=8192",)


@pytest.mark.parametrize("name", ["1.5B", "7B"])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_several_cards_are_divided_so_that_the_slower_side_is_fastest(name: str, count: int) -> None:
    chosen = choose(case(name, *PAPER), [H100] * count)
    replicas, workers = chosen.config.generator.replicas, chosen.config.learner.workers
    assert replicas + workers == count
    took = step_seconds(chosen, "H100", H100.gib)
    for other in range(1, count):
        split = ("generator.replicas=" + str(other), "learner.workers=" + str(count - other))
        made = choose(case(name, *PAPER, *split), [H100] * count)
        if made.rank().gib <= H100.gib * (1 - SPARE):
            assert took <= step_seconds(made, "H100", H100.gib) + 1e-9
    assert chosen.config.generator.gpus is None


def test_long_answers_want_generators_and_short_ones_learners() -> None:
    assert choose(case("7B", *PAPER), [H100] * 8).config.generator.replicas == 2
    longer = ("rollout.max_response_tokens=16384", "learner.tokens_per_microbatch=18432")
    assert choose(case("7B", *PAPER, *longer), [H100] * 8).config.generator.replicas >= 3


def test_a_model_that_fits_no_rank_is_sharded() -> None:
    eight, three = (choose(case("7B"), [H100] * n) for n in (8, 3))
    assert (eight.config.learner.zero_stage, three.config.learner.zero_stage) == (2, 3)
    assert eight.rank().gib <= H100.gib * (1 - SPARE)
    assert holds(eight, [H100] * 8).level == "ok"
    assert holds(three, [H100] * 3).level == "fail", "two ranks have too little even so"


def test_written_keys_stay() -> None:
    written = ("generator.gpus=0.3", "learner.workers=1", "generator.replicas=1", "learner.zero_stage=3")
    estimate = case("1.5B", *written)
    shared = choose(estimate, [H100]).config
    assert (shared.generator.gpus, shared.learner.gpus, shared.learner.zero_stage) == (0.3, 0.5, 3)
    divided = choose(estimate, [H100] * 4).config
    assert (divided.generator.replicas, divided.learner.workers) == (1, 1)
    manual = case("1.5B", *written, "run.resources=manual")
    assert choose(manual, [H100]) == manual
    assert choose(estimate, []) == estimate


@pytest.mark.parametrize(("count", "workers", "replicas"), [(4, 3, 1), (8, 6, 2), (8, 7, 1)])
def test_ranks_somebody_wrote_leave_the_others_to_generators(count: int, workers: int, replicas: int) -> None:
    chosen = choose(case("1.5B", f"learner.workers={workers}"), [H100] * count).config
    assert (chosen.generator.replicas, chosen.learner.workers) == (replicas, workers)


def test_the_driver_s_cards_are_those_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{i}, GPU-{i}a7, NVIDIA H100, 8155{i} MiB" for i in range(4)]
    monkeypatch.setattr(machine, "ask_driver", lambda _: lines)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert len(machine.gpus()) == 4
    seen = {"1,3": "13", "GPU-2a7": "2", "0,9,1": "0", "": "", "-1": "", "MIG-5c1": "0"}
    for shown, cards in seen.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert machine.gpus() == [f"NVIDIA H100, 8155{card} MiB" for card in cards], shown


def test_what_continues_a_cluster_s_run_is_not_divided_over_this_machine(
    tmp_path: Path, cards: Callable[[int], None]
) -> None:
    config = load("tiny", ["generator.replicas=48"])
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    cards(8)
    target = target_of(str(tmp_path / "config.yaml"), trained=True)
    assert target.config.generator.replicas == config.generator.replicas == 48
    with pytest.raises(ConfigError, match=r"generator\.replicas"):
        target_of(str(tmp_path / "config.yaml"))


@pytest.mark.parametrize(
    ("settings", "count", "key"),
    [
        (("generator.tensor_parallel=2",), 1, "generator.tensor_parallel"),
        (("weights.transport=nccl",), 1, "weights.transport"),
        (("generator.replicas=2",), 2, "generator.replicas"),
        (SLEEP, 2, "generator.sleep"),
    ],
)
def test_what_cannot_be_divided_is_refused(settings: tuple[str, ...], count: int, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        choose(case("1.5B", *settings), [H100] * count)


def test_cards_are_read_from_the_driver_and_the_choice_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["NVIDIA H100 80GB HBM3, 81559 MiB"]
    [card] = read_cards(lines)
    assert (card.name, round(card.gib, 1)) == ("NVIDIA H100 80GB HBM3", 79.6)
    monkeypatch.setattr(machine, "gpus", lambda: lines)
    target = run_target(load("tiny"))
    for named in (card.name, "generator.kv_cache_gib = ", "learner.gpus = 0.5"):
        assert named in target.chosen
    findings = by_name(memory(target))
    assert findings["resources"].says == target.chosen
    assert findings["GPU memory"].level == "ok"
    assert "generator, 1 of" in findings["memory per part"].says
    monkeypatch.setattr(machine, "gpus", list)
    assert run_target(load("tiny")) == Target(load("tiny"))


def test_ray_may_have_a_gpu_that_no_process_can_use() -> None:
    assert gpu_share(0.25, {"CPU": 2}) == 0.0
    assert gpu_share(0.25, {"CPU": 2, "GPU": 1}) == 0.25
    assert gpu_share(None, {"GPU": 4}) == 1.0
    assert backend({"CPU": 2, "GPU": 1}) == "gloo"
    assert backend({"GPU": 1, "accelerator_type:H100": 1}) == "nccl"
    assert backend({"CPU": 2}) == "gloo"


def test_an_adapter_needs_no_master_copy_of_its_base() -> None:
    full, lora = case("7B"), case("7B", *LORA)
    assert lora.rank().always[MOMENTS] < 0.01 * full.rank().always[MOMENTS]
    assert lora.checkpoint_gib < 0.01 * full.checkpoint_gib
    assert lora.published_gib < 0.01 * full.published_gib
    assert lora.rank().always["weights"] >= full.rank().always["weights"]


def test_a_run_from_python_leaves_free_what_nobody_wrote(
    monkeypatch: pytest.MonkeyPatch, cards: Callable[[int], None]
) -> None:
    cards(8)
    configs: list[Config] = []

    def process(command: list[str]) -> Mock:
        configs.append(run_target(load(command[command.index("run") + 1])).config)
        return Mock(wait=lambda: 1)

    monkeypatch.setattr(hora_rl.runs.subprocess, "Popen", process)
    with pytest.raises(RunError):
        hora_rl.run(hora_rl.configure("tiny", {"learner.workers": 2}))
    [config] = configs
    assert (config.generator.replicas, config.learner.workers) == (6, 2)


def test_a_resumed_run_keeps_its_ranks_on_a_machine_with_other_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: Callable[[int], None]
) -> None:
    """A checkpoint has the parts of as many ranks as there were."""
    monkeypatch.setattr(resolve, "require", lambda *_: [])
    cards(8)
    three = with_absolute_folder(load("tiny", [f"run.folder={tmp_path}", "learner.workers=3"]))
    write_config(tmp_path / "tiny", run_target(three).config)
    cards(6)
    for written, split in (([], (3, 3)), (["learner.workers=2"], (2, 4))):
        settings, console = [f"run.folder={tmp_path}", *written], Console(quiet=True)
        again = resolve.resolve("tiny", settings, "resume", console).config
        assert (again.learner.workers, again.generator.replicas) == split


def test_a_generator_s_own_card_samples_as_many_sequences_as_its_cache_holds(tmp_path: Path) -> None:
    def chosen(name: str, *more: str) -> int:
        return choose(plain(tmp_path, name, *more), [H100] * 2).config.generator.max_sequences

    long = ("rollout.max_response_tokens=16384", "learner.tokens_per_microbatch=32768")
    assert chosen("1.5B") == 1024
    assert 64 <= chosen("7B", *long) < 256
    assert chosen("1.5B", "generator.max_sequences=100") == 100
