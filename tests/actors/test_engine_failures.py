"""What keeps a vLLM engine from starting or ends it is named; what a replica notes of its requests."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.front_end import core_request
from hora_rl.actors.generator.engine_records import Sequences
from hora_rl.actors.generator.failures import FailureNotes, Progress, stage_now
from hora_rl.common.errors import ConfigError, RunError, UnhealthyError
from hora_rl.common.load import ROOT, load
from hora_rl.common.model.model_files import not_finite, refuse_not_finite
from tests.support.engines import engine_of

CHILD = """
import logging, sys
from hora_rl.actors.generator.failures import note_failures
note_failures()
note_failures()
log = logging.getLogger("vllm.v1.engine.core")
log.setLevel("INFO")
for text in sys.argv[1:]:
    log.info(text)
for text, why in [
    ("Invocation of hash_weights method failed", "one call"),
    ("WorkerProc failed to start.", "no room\\nfor the cache"),
    ("EngineCore failed to start.", "See stack trace for root cause."),
]:
    try:
        raise ValueError(why)
    except ValueError:
        log.exception(text)
"""


@pytest.mark.parametrize(
    ("messages", "stage"),
    [
        ([], "importing vLLM"),
        (["Starting to load model /m...", "Loading weights took 0.34 seconds"], "loading the model"),
        (["Loading model from scratch...", "Using cache directory: c for vLLM's torch.compile"], "compiling"),
        (["CPU KV cache size: 524,288 tokens"], "warming up and capturing graphs"),
    ],
)
def test_what_an_engine_does_and_what_ended_it_reach_the_one_that_started_it(
    messages: list[str], stage: str
) -> None:
    notes = FailureNotes()
    assert (stage_now(), notes.reason()) == ("importing vLLM", None)
    command = [sys.executable, "-c", CHILD, *messages]
    subprocess.run(command, check=True, capture_output=True, env=os.environ, cwd=ROOT)
    assert stage_now() == stage
    assert notes.reason() == "ValueError: no room for the cache"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_no_number_is_found_by_its_tensor_s_name(dtype: torch.dtype, value: float) -> None:
    largest = torch.finfo(dtype).max
    right = {"a": torch.full((4, 4), largest, dtype=dtype), "b": torch.zeros(0), "c": torch.arange(3)}
    assert not_finite(right.items()) == []
    refuse_not_finite([], "m")
    wrong = torch.zeros(5, 7, dtype=dtype)
    wrong[3, 2] = value
    assert not_finite([*right.items(), ("d", wrong), ("e", wrong.T)]) == ["d", "e"]
    with pytest.raises(ConfigError, match=r"d \(and 1 more\)"):
        refuse_not_finite(["d", "e"], "m")


def nan_weights(tmp_path: Path) -> Path:
    """The demo's model with one value that is no number."""
    folder = Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.system
@pytest.mark.timeout(280)
async def test_an_engine_names_what_is_wrong_with_its_model(tmp_path: Path) -> None:
    folder = nan_weights(tmp_path)
    with pytest.raises(RunError) as caught:
        async with engine_of(load("tiny", [f"model.path={folder}"])):
            pass
    assert "model.layers.1.mlp.down_proj.weight" in str(caught.value)
    assert "root cause" not in str(caught.value)


@pytest.mark.system
def test_a_learner_names_the_weights_that_are_no_numbers(tmp_path: Path) -> None:
    from hora_rl.learner.model.engine import Engine
    from hora_rl.learner.ranks import set_device

    folder = nan_weights(tmp_path)
    config = load("tiny", [f"model.path={folder}"])
    set_device(config.learner, config.run.seed, 0)
    with pytest.raises(ConfigError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        Engine(config, 0, 1)


@pytest.mark.system
@pytest.mark.timeout(280)
@pytest.mark.parametrize("moment", ["launch", "first token"])
async def test_an_engine_frozen_at_its_start_is_ended(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hora_rl.actors.generator import vllm_engine as module

    def freeze() -> None:
        while not (children := multiprocessing.active_children()):
            time.sleep(0.05)
        os.kill(children[0].pid, signal.SIGSTOP)

    monkeypatch.setattr(module, "STILL_S", 3.0)
    if moment == "launch":
        threading.Thread(target=freeze, daemon=True).start()
    else:
        label = module.Engine.label

        async def freeze_first(self: module.Engine, version: int) -> None:
            freeze()
            await label(self, version)

        monkeypatch.setattr(module.Engine, "label", freeze_first)
    with pytest.raises((RunError, UnhealthyError)):
        async with engine_of(load("tiny")):
            pass
    assert not multiprocessing.active_children()


def sequence(request: str, index: int, stats: str | None) -> Any:
    """What the table reads of vLLM's `RequestState`."""
    return SimpleNamespace(external_req_id=request, request_index=index, stats=stats)


def test_each_sequence_of_a_request_leaves_its_record() -> None:
    table = Sequences({})
    with table.ended("a") as of_a, table.ended("b") as of_b:
        table["0_a"], table["1_a"] = sequence("a", 0, "first"), sequence("a", 1, "second")
        table["0_b"] = sequence("b", 0, "third")
        assert table.pop("1_a").request_index == 1
        table.pop("0_b")
        table.pop("0_a", None)
        assert table.pop("0_a", None) is None
        assert of_a == {0: "first", 1: "second"}
        assert of_b == {0: "third"}
        # A request that is cancelled while its sequences are added leaves the first ones running.
        table["2_a"], table["x"] = sequence("a", 2, "late"), sequence("served", 0, "second")
    table.pop("2_a")
    table.pop("x")
    assert not table
    assert not table._ended


def test_only_open_requests_without_a_token_count() -> None:
    clock = SimpleNamespace(now=100.0)
    progress = Progress(lambda: clock.now)
    clock.now += 500
    assert progress.still_s == 0.0, "idle"
    with suppress(ConnectionError), progress.request():
        assert progress.still_s == 0.0, "the idle time before it does not count"
        clock.now += 3
        assert progress.still_s == 3.0
        with progress.request():
            assert progress.still_s == 3.0, "another request is no progress"
            clock.now += 1
            progress.moved()
            clock.now += 2
            assert progress.still_s == 2.0
        assert progress.still_s == 2.0
        raise ConnectionError
    clock.now += 9
    assert progress.still_s == 0.0


STEPS, REQUESTS = 30, 5


def outputs_of(own: bool) -> list[Any]:
    """The completions of requests whose tokens come one to three at a time, from `Sequences` or vLLM's
    table."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.outputs import LogprobsLists

    from hora_rl.actors.generator.engine_records import Sequences

    processor = OutputProcessor(None, log_stats=False)
    if own:
        processor.request_states = Sequences(processor.request_states)
    whole = {"output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False, "logprobs": 0}
    params = SamplingParams(max_tokens=4 * STEPS, flat_logprobs=not own, **whole)
    names = [f"r{i}" for i in range(REQUESTS)]
    queues = {name: RequestOutputCollector(params.output_kind, request_id=name) for name in names}
    for name in names:
        processor.add_request(core_request(name, params, 6), None, None, 0, queues[name])
    source = np.random.default_rng(0)
    for step in range(STEPS):
        made = []
        for name in names:
            new = int(source.integers(1, 4))
            lists = LogprobsLists(
                source.integers(0, 1000, (new, 1)).astype(np.int32),
                -source.exponential(size=(new, 1)).astype(np.float32),
                np.ones(new, np.int32),
                None,
            )
            tokens = lists.logprob_token_ids[:, 0].tolist()
            last = FinishReason.LENGTH if step == STEPS - 1 else None
            made.append(EngineCoreOutput(name, tokens, new_logprobs=lists, finish_reason=last))
        processor.process_outputs(made, time.monotonic(), None, weight_version=str(step // 10))
    return [queue.get_nowait().outputs[0] for queue in queues.values()]


@pytest.mark.system
@pytest.mark.timeout(120)
def test_numbers_are_vllm_s_log_probs_to_the_bit() -> None:
    for ours, theirs in zip(outputs_of(own=True), outputs_of(own=False), strict=True):
        assert len(ours.logprobs) == len(ours.token_ids) > STEPS
        assert ours.logprobs == theirs.logprobs.logprobs
        assert theirs.logprobs.token_ids == ours.token_ids
        assert ours.weight_versions == theirs.weight_versions
        assert ours.finish_reason == theirs.finish_reason == "length"
