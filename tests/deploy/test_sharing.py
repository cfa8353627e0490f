"""`weights.transport: ipc` is refused, with the remedy, where learner and generators cannot share memory."""

from collections.abc import Callable

import pytest

from common.config import Config
from common.errors import ConfigError
from common.load import load
from deploy.preflight import machine
from deploy.preflight.estimate import ModelShape, generator_need, published_gib, rank_need
from deploy.preflight.findings import Finding, Target
from deploy.preflight.sharing import one_machine, shared_weights

IPC = "weights.transport=ipc"


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def have(count: int) -> None:
        monkeypatch.setattr(machine, "gpus", lambda: ["NVIDIA H100, 81559 MiB"] * count)

    return have


def found(config: Config) -> list[Finding]:
    return list(shared_weights(Target(config)))


def test_one_card_or_none_is_right_and_more_are_refused(cards: Callable[[int], None]) -> None:
    for count in (0, 1):
        cards(count)
        assert {f.level for f in found(load("tiny", [IPC]))} == {"ok"}
    cards(4)
    [failed] = [f for f in found(load("tiny", [IPC])) if f.level == "fail"]
    assert failed.line == (
        "weights.transport: ipc, for a learner and generators on one card, and this machine has 4; set "
        "weights.transport: file, gloo or nccl"
    )
    assert found(load("tiny")) == []


def test_memory_that_torch_cannot_share_is_refused(
    cards: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    cards(0)
    assert {f.level for f in found(load("tiny", [IPC]))} == {"ok"}, "host memory is not torch's"
    cards(1)
    [failed] = [f for f in found(load("tiny", [IPC])) if f.level == "fail"]
    assert "ipc, and PYTORCH_ALLOC_CONF=expandable_segments:True; its memory cannot be mapped" in failed.line


def test_a_cluster_has_one_machine() -> None:
    target = Target(load("tiny", [IPC]), "train")
    assert [f.level for f in one_machine(target, 1)] == ["ok"]
    [failed] = one_machine(target, 3)
    assert failed.line.startswith(
        "weights.transport: ipc, for processes of one machine, and the cluster has 3;"
    )
    assert list(one_machine(Target(load("tiny"), "train"), 3)) == []


@pytest.mark.parametrize("setting", ["learner.workers=2", "generator.tensor_parallel=2"])
def test_several_ranks_are_refused_with_both_values(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"weights.transport \(ipc\) .* need 2: set both to 1, or"):
        load("tiny", [IPC, setting])
    load("tiny", [setting])


def test_what_both_keep_of_a_version_is_in_the_estimate() -> None:
    shape = ModelShape(10**9, 0, 10, 512, 2048, 128, 1000)
    file, ipc = load("tiny"), load("tiny", [IPC])
    more = published_gib(shape, ipc)
    assert more > 0
    assert rank_need(shape, ipc).gib == pytest.approx(rank_need(shape, file).gib + more)
    assert generator_need(shape, ipc, 1.0).gib == pytest.approx(generator_need(shape, file, 1.0).gib + more)
