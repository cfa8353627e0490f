"""Compiled layers and head have the eager gradient, in few compilations. FlexAttention's mask of blocks is
the dense mask; on a CPU its forward pass is compared, for it has no backward pass there."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo import config, utils
from torch.fx.experimental import _config as shapes
from torch.nn.attention.flex_attention import create_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hora_rl.learner.model import cuda_kernels
from hora_rl.learner.model.cuda_kernels import block_mask_of, use_block_masks
from hora_rl.learner.model.logprobs import Policy, compile_policy
from hora_rl.learner.rows.batch import make_micro_batch
from hora_rl.learner.rows.packing import Sharing, divide, mask_of, rows_of
from tests.learner.test_exactness import TEMPERATURE, batch, estimator, policy
from tests.learner.test_logprobs import Waiting
from tests.learner.test_logprobs import rows as several_rows
from tests.support.formula import apart, by_cut, by_formula
from tests.support.samples import ALWAYS, sample
from tests.support.tiny_qwen2 import tiny_qwen2


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Errors are shown rather than passed over; no compilation stays, nor one that was killed."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    kept = config.recompile_limit, config.suppress_errors, shapes.use_duck_shape
    torch._dynamo.reset()
    utils.counters.clear()
    yield
    config.recompile_limit, config.suppress_errors, shapes.use_duck_shape = kept
    torch._dynamo.reset()


def compiled(backend: str, *, again: bool = False) -> Policy:
    made = policy()
    if again:
        made.hf.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        made.hf.train()
    compile_policy(made, backend)
    config.suppress_errors = False
    return made


@pytest.mark.parametrize(
    ("backend", "again"),
    [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", False, marks=pytest.mark.system)],
)
@pytest.mark.timeout(500)
def test_the_gradient_is_the_formulas_for_any_cut(compiler: None, backend: str, again: bool) -> None:
    groups = batch(1, 2, 5)
    wanted = by_formula(policy(), groups, estimator(), TEMPERATURE)
    made = compiled(backend, again=again)
    for cut in ((48, None, 1), (100, ALWAYS, 1), (777, None, 1), (300, ALWAYS, 2)):
        made.zero_grad()
        assert apart(by_cut(made, groups, estimator(), TEMPERATURE, *cut), wanted) < 1e-5, cut
    counted = dict(utils.counters["stats"])
    assert not utils.counters["graph_break"], dict(utils.counters["graph_break"])
    # Layer: mask or none, one row or several, and the head's two functions; for all layers together.
    assert 0 < counted["unique_graphs"] <= 12, counted


def test_the_models_own_forward_stays_eager(compiler: None) -> None:
    made = Policy(tiny_qwen2(5000))
    compile_policy(made, "aot_eager")
    micro = make_micro_batch(several_rows())
    with torch.no_grad():
        eager = made(micro, 0.7, 16, by_model=True)[0]
        assert not utils.counters["stats"]
        torch.testing.assert_close(made(micro, 0.7, 16)[0], eager, rtol=1e-5, atol=1e-5)
    assert utils.counters["stats"]["unique_graphs"]


def ends_of(rng: np.random.Generator, rows: int, width: int) -> torch.Tensor:
    """Rows of a prompt, completions of random lengths and padding, of which any may be missing."""
    made = np.full((rows, width), width)
    for row in made:
        cuts = np.sort(rng.integers(0, width + 1, int(rng.integers(1, 12))))
        for at, end in pairwise(cuts):
            row[at:end] = end
    return torch.from_numpy(made)


def seen(ends: torch.Tensor) -> torch.Tensor:
    """Which tokens see which (B, T, T), as kernels read the mask: whole blocks, others by `mask_mod`."""
    mask, (batch, width) = block_mask_of(ends), ends.shape
    inside = create_mask(mask.mask_mod, batch, 1, width, width, device="cpu")[:, 0]
    visible = torch.zeros_like(inside)
    for numbers, listed, full in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        for b, q in np.ndindex(batch, mask.kv_indices.shape[2]):
            for kv in listed[b, 0, q, : numbers[b, 0, q]].tolist():
                part = (b, *(slice(i * cuda_kernels.BLOCK, (i + 1) * cuda_kernels.BLOCK) for i in (q, kv)))
                visible[part] = True if full else inside[part]
    return visible


@pytest.mark.parametrize("width", [1, 64, 128, 320, 700])
def test_blocks_are_those_of_the_dense_mask(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, block in ((0, 128), (1, 16), (2, 16)):
        monkeypatch.setattr(cuda_kernels, "BLOCK", block)
        ends = ends_of(np.random.default_rng(seed), 3, width)
        dense = mask_of(ends, torch.float32)[:, 0] == 0
        assert torch.equal(seen(ends), dense), (seed, block)
        with Waiting() as waiting:
            mask = block_mask_of(ends)
        assert waiting.found == []
    if width == 700:
        assert mask.sparsity() > 60, "most blocks are skipped"
        assert int(mask.full_kv_num_blocks.sum()) > 0


@pytest.fixture
def sdpa() -> Iterator[None]:
    kept = ALL_ATTENTION_FUNCTIONS["sdpa"]
    yield
    ALL_ATTENTION_FUNCTIONS["sdpa"] = kept


@pytest.mark.parametrize("heads", [2, 3])  # keys and values are repeated where heads are no power of two
def test_log_probs_under_a_mask_of_blocks_are_those_under_the_dense_one(sdpa: None, heads: int) -> None:
    rng = np.random.default_rng(0)
    sizes = {"hidden_size": 16 * heads, "num_attention_heads": heads, "num_key_value_heads": 1}
    shared = Policy(tiny_qwen2(500, initializer_range=0.2, **sizes))
    rows = [
        [sample(rng.integers(0, 500, p), rng.integers(0, 500, n)) for n in (90, 40, 7, 120)] for p in (150, 3)
    ]
    rows = [[sample(row[0].prompt, s.tokens) for s in row] for row in rows]
    micro = make_micro_batch(rows, 64)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        dense = shared(micro, 0.7, 64)
        shared.blocks = use_block_masks(shared.hf)
        assert shared.blocks
        sparse = shared(micro, 0.7, 64)
        alone = shared(make_micro_batch([[s] for r in rows for s in r]), 0.7, 64)
    for ours, theirs, single in zip(sparse, dense, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours, single, rtol=1e-5, atol=1e-5)


def test_groups_are_cut_only_to_fit_where_a_row_costs_what_is_seen() -> None:
    assert len(divide(200, [512] * 32, 65_536, 3000.0, sparse=True)) == 1
    assert len(divide(200, [512] * 32, 4096, 3000.0, sparse=True)) == 5
    assert len(divide(200, [512] * 32, 65_536, 3000.0)) > 5
    assert len(divide(200, [8000] * 8, 65_536, 3000.0, sparse=True)) == 8, "nothing is saved"
    samples = [sample([1] * 200, np.full(512, i)) for i in range(32)]
    assert len(rows_of(samples, 65_536, Sharing(3000.0, sparse=True))) == 1
