"""The estimate of a rank's memory against what a step takes, counted on CPU by torch's allocator."""

import json
import sys

import pytest

from hora_rl.common.load import ROOT
from tests.support.programs import run_well

pytestmark = pytest.mark.system
# Tensors that are alive before a step, and the peak of what the step allocates beside them.
MEASURE = """
import gc, json, sys
from dataclasses import replace
import numpy as np
import torch
from benchmarks.gpu_step import SHAPE_1_5B, engine_of, join_alone, micro_batches, ragged_samples
from hora_rl.deploy.checks.estimate import GIB, RANK_GIB, Estimate, ModelShape, total
import hora_rl.learner.model.engine
from hora_rl.learner.ranks import set_device
from hora_rl.learner.rows.packing import rows_of

shape = SHAPE_1_5B | {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024,
                      "num_hidden_layers": 4, "num_attention_heads": 4}
dtype, stage = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
join_alone("gloo")


def alive():
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    tensors += [t.grad for t in tensors if t.grad is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


settings = hora_rl.learner.model.engine.deepspeed_config


def small_bucket(*arguments):  # its full size is taken in address space alone
    made = settings(*arguments)
    made["zero_optimization"]["reduce_bucket_size"] = 1_000_000
    return made


hora_rl.learner.model.engine.deepspeed_config = small_bucket
with engine_of(shape, dtype, 900, zero_stage=stage, tokens_per_microbatch=2048, logit_chunk=512) as engine:
    prompt = np.arange(300, dtype=np.int32)
    group = [
        replace(s, prompt=prompt, tokens=s.tokens[:200], logprobs=s.logprobs[:200], match=s.match[:200])
        for s in ragged_samples(16, 8192, 900)
    ]
    rows = rows_of(group, 2048, engine.sharing)
    assert max(map(len, rows)) > 1
    micro, _ = micro_batches(rows, 2048)
    engine.step(micro)
    kept = alive()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        engine.step(micro)
    now = peak = 0
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    shape = ModelShape.of(engine.hf, engine._config.learner.lora)
    estimate = Estimate(engine._config, shape)
    bucket = estimate.weights_gib * (dtype != "float32")
    whole = total(estimate.rank(card=False)) - RANK_GIB - bucket
    print(json.dumps({"measured": (kept + peak) / GIB, "estimated": whole}))
"""


@pytest.mark.parametrize(("dtype", "stage"), [("bfloat16", 2), ("float32", 0)])
def test_a_step_takes_what_was_estimated(dtype: str, stage: int) -> None:
    ran = run_well(sys.executable, "-c", MEASURE, dtype, str(stage), cwd=ROOT, limit_s=280)
    result = json.loads(ran.stdout.splitlines()[-1])
    assert 0.8 * result["measured"] < result["estimated"] < 1.6 * result["measured"], result
