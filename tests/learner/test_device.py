"""The allocator's settings on a card, and the optimizer's kernel."""

import pytest
import torch

from hora_rl.learner.device import expand_segments


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None])
def test_segments_grow_unless_the_user_has_settings_of_his_own(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", given.append)
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(variable, raising=False)
    if name is not None:
        monkeypatch.setenv(name, "max_split_size_mb:512")
    expand_segments()
    assert given == ([] if name else ["expandable_segments:True"])
