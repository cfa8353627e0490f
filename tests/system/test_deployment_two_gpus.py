"""`deploy/hora-2gpu.yaml` with two GPUs that Ray was told of, computed on CPU: the file is served, trains and
ends with equal weights. `test_two_gpus.py` does the same on two cards."""

from pathlib import Path

import pytest
import torch

from tests.support.cluster import Cluster
from tests.support.two_gpus import trained

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the cards are real: test_two_gpus.py"),
]


@pytest.mark.parametrize("transport", ["file", "gloo"])
def test_it_trains_with_little_drift_and_equal_checksums(tmp_path: Path, transport: str) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.start(gpus=2)
        print(f"trained over {transport}: {trained(cluster, transport)}")
    finally:
        cluster.end()
