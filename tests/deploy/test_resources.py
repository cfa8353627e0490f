"""What `run.resources: auto` chooses for a machine's cards, and that it fits by the estimate of memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

import hora_rl.runs
from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import dump_yaml, load
from hora_rl.deploy.checks import machine, resources
from hora_rl.deploy.checks.estimate import Estimate, ModelShape, total
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.machine import enough_gpus
from hora_rl.deploy.checks.memory import beside_engine, fits_cards, memory, run_target, table
from hora_rl.deploy.checks.resources import SPARE, Card, choose, read_cards, step_seconds
from hora_rl.deploy.checks.run_checks import target_of
from hora_rl.deploy.launch import local
from hora_rl.deploy.machine.record import with_absolute_folder, write_config
from hora_rl.learner.launch import backend, gpu_share
from tests.support.checks import by_name
from tests.support.tiny_qwen2 import SHAPES, without_weights

Settings, Have = tuple[str, ...], Callable[[int], None]
H200, H100, RTX = Card("H200", 139.8), Card("H100", 79.6), Card("RTX 4090", 24.0)
LORA = ("learner.lora.rank=16",)
SLEEP = ("generator.sleep=step", "rollout.max_staleness=0")
SHORT = ("rollout.max_prompt_tokens=256", "rollout.max_response_tokens=512")
BATCH = (*SHORT, "rollout.prompts_per_batch=16")
LONG = ("rollout.max_response_tokens=16384", "learner.tokens_per_microbatch=20480")
PAPER = ("rollout.prompts_per_batch=60", "rollout.group_size=32", "rollout.max_prompt_tokens=2048")
PAPER += ("learner.tokens_per_microbatch=16384", "learner.gradient_checkpointing=true")


@pytest.fixture(autouse=True)
def with_processors(monkeypatch: pytest.MonkeyPatch) -> Have:
    """`with_processors(16)`: this machine has as many. By default four, which serve one engine."""

    monkeypatch.setattr(resources, "free_memory", lambda: 2**40)

    def have(count: int) -> None:
        monkeypatch.setattr(resources, "processors", lambda: count)

    have(4)
    return have


def case(name: str, *more: str, folder: Path | None = None) -> Estimate:
    """A configuration without numbers of replicas, ranks or cards, and the shape of a model. In a `folder`
    one without any size."""
    source, settings = "tiny", ["rollout.max_prompt_tokens=1024", "rollout.max_response_tokens=2048"]
    settings += ["model.dtype=bfloat16", "learner.tokens_per_microbatch=4096"]
    if folder is not None:
        (folder / "run.yaml").write_text("model: {path: deploy/demo/model}\ndata: {path: arithmetic}\n")
        source, settings = str(folder / "run.yaml"), ["model.dtype=bfloat16"]
    config = load(source, [*settings, *more])
    return Estimate(config, ModelShape.of(without_weights(*SHAPES[name]), config.learner.lora))


@pytest.mark.parametrize(
    ("name", "cards", "more", "again", "tokens"),
    [
        ("0.5B", [H200], (), False, 65_536),
        ("1.5B", [H200], (), False, 16_384),
        ("1.5B", [H100], (), False, 8192),
        ("0.5B", [RTX], (), True, 16_384),
        ("3B", [RTX], LORA, True, 4096),
        ("7B", [H100], LORA, False, 4096),
        ("1.5B", [H200] * 2, (), False, 32_768),
        ("7B", [H100] * 8, (), True, 32_768),
        ("1.5B", [H200], SLEEP, False, 32_768),
    ],
)
def test_activations_are_kept_in_the_largest_micro_batches_beside_what_generation_needs(
    tmp_path: Path, name: str, cards: list[Card], more: Settings, again: bool, tokens: int
) -> None:
    sizes = (*SHORT, "rollout.prompts_per_batch=64", "rollout.group_size=32", "generator.max_sequences=256")
    chosen = choose(case(name, *sizes, *more, folder=tmp_path), cards)
    generator, learner = chosen.config.generator, chosen.config.learner
    assert (learner.gradient_checkpointing, learner.tokens_per_microbatch) == (again, tokens)
    assert fits_cards(chosen, cards).level == "ok"
    if len(cards) == 1:
        card, cache = cards[0], generator.kv_cache_gib
        assert cache is not None
        assert (generator.replicas, generator.gpus, learner.workers, learner.gpus) == (1, 0.5, 1, 0.5)
        assert cache >= min(256 * chosen.longest_kv_gib, chosen.least_kv_gib)
        # vLLM asks for its share to be free when it starts, also again while the learner holds its own.
        rank, _ = chosen.phases()[-1]
        assert total(chosen.generator()) - 0.01 <= generator.memory_utilization * card.gib <= card.gib - rank
    written = ("learner.tokens_per_microbatch=1024", "learner.gradient_checkpointing=true")
    learner = choose(case(name, *sizes, *more, *written, folder=tmp_path), cards).config.learner
    assert (learner.gradient_checkpointing, learner.tokens_per_microbatch) == (True, 1024)


@pytest.mark.parametrize(
    ("name", "card", "have", "more", "engines"),
    [
        *(("1.5B", H200, have, BATCH, engines) for have, engines in ((2, 1), (7, 1), (10, 2), (16, 4))),
        ("7B", H100, 64, LORA, 1),  # bound by the card's memory
        ("1.5B", H200, 16, (*BATCH, "learner.steps=4"), 1),  # one more loads longer
        ("0.5B", H200, 4, (*BATCH, "generator.replicas=3"), 3),
        ("0.5B", H200, 64, (*BATCH, *SLEEP), 1),
    ],
)
def test_a_card_gets_as_many_engines_as_its_processors_serve_and_the_run_gains_from(
    tmp_path: Path, with_processors: Have, name: str, card: Card, have: int, more: Settings, engines: int
) -> None:
    with_processors(have)
    chosen = choose(case(name, *more, folder=tmp_path), [card])
    generator, engine = chosen.config.generator, total(chosen.generator())
    assert (generator.replicas, chosen.engines) == (engines, engines)
    assert 0.499 < engines * generator.gpus <= 0.5, "and the learner has the other half"
    assert enough_gpus(Target(chosen.config), 1, "this machine has").level == "ok"
    # vLLM asks for each engine's share to be free when it starts, also beside all others.
    assert engine <= generator.memory_utilization * card.gib < engine + 0.011 * card.gib
    assert chosen.card_gib <= card.usable_gib
    assert (f"and {engines} · generator" in fits_cards(chosen, [card]).line) == (engines > 1)
    if more[: len(BATCH)] == BATCH and "generator.sleep=step" not in more:
        assert generator.max_sequences == -(-1024 // (8 * engines)) * 8, "two batches of 16 · 32"
        assert generator.kv_cache_gib >= generator.max_sequences * chosen.longest_kv_gib


def test_a_host_with_little_memory_gets_fewer_engines(
    tmp_path: Path, with_processors: Have, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_processors(16)
    for engines in (1, 2):
        chosen = choose(case("1.5B", *BATCH, f"generator.replicas={engines}", folder=tmp_path), [H200])
        free = 1.01 * total(chosen.host(cards=True)) / (1 - SPARE) * 2**30
        monkeypatch.setattr(resources, "free_memory", lambda free=free: free)
        assert choose(case("1.5B", *BATCH, folder=tmp_path), [H200]).config.generator.replicas == engines


@pytest.mark.parametrize("longest", [72, 80, 81])
@pytest.mark.parametrize(("more", "sequences"), [((), 1024), (("generator.max_sequences=128",), 128)])
def test_the_cache_holds_every_sequence_that_may_run_to_its_end(
    tmp_path: Path, longest: int, more: Settings, sequences: int
) -> None:
    """In vLLM's blocks of 16 tokens, of which it keeps one for itself."""
    limits = ("rollout.max_prompt_tokens=64", f"rollout.max_response_tokens={longest - 64}")
    chosen = choose(case("0.5B", *limits, *more, folder=tmp_path), [H100])
    generator, blocks = chosen.config.generator, sequences * -(-longest // 16) + 1
    assert generator.max_sequences == sequences
    assert generator.kv_cache_gib * 2**30 >= blocks * 16 * chosen.kv_token_bytes


@pytest.mark.parametrize(
    ("name", "cards", "more"), [("1.5B", [H100], (*LONG, *LORA)), ("7B", [H100] * 2, LONG)]
)
def test_where_memory_is_short_at_most_twice_the_longest_sequences_run(
    tmp_path: Path, name: str, cards: list[Card], more: Settings
) -> None:
    chosen = choose(case(name, *more, folder=tmp_path), cards)
    generator = chosen.config.generator
    cache = generator.kv_cache_gib or 0.9 * H100.gib - total(chosen.generator(0.0))
    assert 64 < generator.max_sequences <= 2 * cache / chosen.longest_kv_gib + 8 < 256
    if len(cards) == 1:
        assert chosen.card_gib > 0.9 * H100.usable_gib, "the card is used"


@pytest.mark.parametrize(("name", "more"), [("0.5B", ("learner.tokens_per_microbatch=20480",)), ("3B", LORA)])
def test_taking_turns_leaves_the_cache_what_only_a_step_needs(name: str, more: Settings) -> None:
    more = (*more, "generator.max_sequences=1024")
    together, apart = (choose(case(name, *more, *sleep), [RTX]) for sleep in ((), SLEEP))
    caches = [estimate.config.generator.kv_cache_gib or 0.0 for estimate in (together, apart)]
    assert caches[1] > caches[0] + 0.5
    assert total(apart.rank()) + total(apart.generator()) > RTX.usable_gib, "at once they would not fit"
    assert max(rank + engine for rank, engine in apart.phases()) <= RTX.usable_gib
    assert fits_cards(apart, [RTX]).level == "ok"
    assert ["engine asleep" in table(estimate) for estimate in (together, apart)] == [False, True]


def test_halves_of_several_cards_hold_an_engine_each_and_no_card_all_of_them() -> None:
    def halves(count: int) -> Estimate:
        sizes = (f"generator.replicas={count}", f"learner.workers={count}")
        return case(
            "1.5B", *PAPER, *sizes, "generator.gpus=0.5", "learner.gpus=0.5", "generator.kv_cache_gib=8"
        )

    assert [halves(count).engines for count in (1, 2, 8)] == [1, 2, 2]
    assert halves(8).card_gib <= halves(2).card_gib <= H100.usable_gib


def test_channels_graphs_of_many_tokens_and_a_mask_without_flex_attention_are_counted() -> None:
    def rank(*more: str, **shape: bool) -> dict[str, float]:
        estimate = case("0.5B", *more)
        return replace(estimate, shape=replace(estimate.shape, **shape)).rank()

    def engine(*more: str) -> dict[str, float]:
        return case("0.5B", "generator.max_sequences=1792", *more).generator()

    assert rank("learner.workers=2")["context"] == rank()["context"] + 0.5
    assert engine("generator.tensor_parallel=2")["context"] == engine()["context"] + 0.5
    graphs = engine()["engine"] - engine("generator.enforce_eager=true")["engine"]
    assert graphs == pytest.approx(2.0), "1,792 and 256 tokens"
    added = rank(blocks=False)["activations"] - rank()["activations"]
    assert added == pytest.approx(2 * 4096**2 / 2**30), "16 bits for each pair of a row's tokens"
    heads = (without_weights(1000, 64, 256, 1, count, 1) for count in (4, 8))  # of 16 and of 8
    assert [ModelShape.of(hf, None).blocks for hf in heads] == [True, False]


def test_sleep_is_refused_where_no_card_can_be_freed(cards: Have) -> None:
    for count, level in ((0, "fail"), (1, "ok")):
        cards(count)
        findings = by_name(machine.gpu_count(Target(case("0.5B", *SLEEP).config)))
        assert findings["generator.sleep"].level == level


def test_what_no_card_holds_is_refused_with_every_part_and_the_keys() -> None:
    finding = fits_cards(choose(case("7B"), [H100]), [H100])
    assert finding.level == "fail"
    for named in ("learner rank 1", "generator 1", "H100", "lora", "rollout.max_response_tokens"):
        assert named in finding.line


def test_a_generator_of_its_own_leaves_room_for_the_buffers_of_nccl() -> None:
    shares = {
        transport: choose(case("0.5B", f"weights.transport={transport}"), [RTX] * 2).config.generator
        for transport in ("file", "nccl")
    }
    assert shares["file"].memory_utilization == 0.9
    need = 1.0 + 0.5 + 3 * (0.25 + 151_936 * 896 * 2 / 2**30)
    assert 24 * (1 - shares["nccl"].memory_utilization) >= need


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


@pytest.mark.parametrize("name", ["1.5B", "7B"])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_several_cards_are_divided_so_that_the_slower_side_is_fastest(name: str, count: int) -> None:
    chosen = choose(case(name, *PAPER), [H100] * count)
    assert chosen.config.generator.replicas + chosen.config.learner.workers == count
    assert chosen.config.generator.gpus is None
    for other in range(1, count):
        split = (f"generator.replicas={other}", f"learner.workers={count - other}")
        estimate = choose(case(name, *PAPER, *split), [H100] * count)
        if estimate.card_gib <= H100.usable_gib:
            assert step_seconds(chosen, "H100", 79.6) <= step_seconds(estimate, "H100", 79.6) + 1e-9


@pytest.mark.parametrize(
    ("name", "count", "more", "chosen"),
    [  # replicas, ranks, ZeRO stage
        ("7B", 8, PAPER, (2, 6, 0)),
        ("7B", 8, (*PAPER, *LONG), (4, 4, 0)),  # long answers want generators
        ("7B", 3, (), (1, 2, 3)),  # and does not fit even so
        ("1.5B", 4, ("learner.workers=3",), (1, 3, 0)),
        ("1.5B", 8, ("learner.workers=6",), (2, 6, 0)),
        ("1.5B", 8, ("learner.workers=7",), (1, 7, 0)),
        ("1.5B", 4, ("learner.workers=1", "generator.replicas=1", "learner.zero_stage=3"), (1, 1, 3)),
        ("1.5B", 4, ("run.resources=manual",), (1, 1, 0)),
        ("1.5B", 0, (), (1, 1, 0)),
    ],
)
def test_a_split_has_what_is_written_and_is_sharded_where_no_rank_would_fit(
    name: str, count: int, more: Settings, chosen: tuple[int, int, int]
) -> None:
    estimate = choose(case(name, *more), [H100] * count)
    config = estimate.config
    assert (config.generator.replicas, config.learner.workers, config.learner.zero_stage) == chosen
    assert (estimate.card_gib <= H100.usable_gib) == (count != 3)


def test_written_shares_of_one_card_stay() -> None:
    config = choose(case("1.5B", "generator.gpus=0.3", "learner.zero_stage=3"), [H100]).config
    assert (config.generator.gpus, config.learner.gpus, config.learner.zero_stage) == (0.3, 0.5, 3)


def test_the_driver_s_cards_are_those_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{i}, GPU-{i}a7, NVIDIA H100, 8155{i} MiB" for i in range(4)]
    monkeypatch.setattr(machine, "ask_driver", lambda _: lines)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert len(machine.gpus()) == 4
    seen = {"1,3": "13", "GPU-2a7": "2", "0,9,1": "0", "": "", "-1": "", "MIG-5c1": "0"}
    for shown, cards in seen.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert machine.gpus() == [f"NVIDIA H100, 8155{card} MiB" for card in cards], shown


def test_what_continues_a_cluster_s_run_is_not_divided_over_this_machine(tmp_path: Path, cards: Have) -> None:
    (tmp_path / "config.yaml").write_text(dump_yaml(load("tiny", ["generator.replicas=48"])))
    cards(8)
    target = target_of(str(tmp_path / "config.yaml"), trained=True)
    assert target.config.generator.replicas == 48
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
def test_what_cannot_be_divided_is_refused(settings: Settings, count: int, key: str) -> None:
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


def test_a_run_from_python_leaves_free_what_nobody_wrote(
    monkeypatch: pytest.MonkeyPatch, cards: Have
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


@pytest.mark.parametrize(("written", "split"), [([], (3, 3)), (["learner.workers=2"], (2, 4))])
def test_a_resumed_run_keeps_its_ranks_on_a_machine_with_other_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: Have, written: list[str], split: tuple[int, int]
) -> None:
    """A checkpoint has the parts of as many ranks as there were."""
    monkeypatch.setattr(local, "require", lambda *_: [])
    cards(8)
    three = with_absolute_folder(load("tiny", [f"run.folder={tmp_path}", "learner.workers=3"]))
    write_config(tmp_path / "tiny", run_target(three).config)
    cards(6)
    settings, console = [f"run.folder={tmp_path}", *written], Console(quiet=True)
    config = local.resolve("tiny", settings, "resume", console).config
    assert (config.learner.workers, config.generator.replicas) == split
