"""A leak is seen, noise is not, and a short soak runs to its end."""

import argparse

import numpy as np
import pytest
from rich.console import Console

from benchmarks.soak import config_of, grown, growth, soak


def test_a_slope_within_noise_is_none_and_a_leak_is_one() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(300, 600.0)
    noise = rng.normal(100, 2, 300)
    assert not growth("noise", steps, noise).grows
    leak = growth("leak", steps, noise + 0.05 * steps)
    assert leak.grows
    assert leak.slope == pytest.approx(50, abs=10)


def test_what_fills_up_in_the_first_half_does_not_count() -> None:
    rows = [{"step": float(s), "pool": min(50.0, s), "leak": 0.1 * s} for s in range(200)]
    assert {g.what: g.grows for g in grown(rows)} == {"pool": False, "leak": True}


@pytest.mark.system
@pytest.mark.slow
def test_a_short_soak_samples_every_part() -> None:
    options = argparse.Namespace(steps=60, prompts=8, group=8, tokens=32)
    found = {g.what: g for g in soak(config_of(options), 32, Console())}
    for part in ("coordinator", "learner's feed", "views", "Redis"):
        assert found[f"{part}: resident memory, MiB"].last > 1
    assert not found["coordinator: open handles"].grows
