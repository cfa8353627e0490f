"""What replicas can get after a learner's crash decides what is published again."""

from pathlib import Path

from common.load import load
from common.redis import connect
from common.weight_versions import Manifest, announce, available
from deploy.launch.redis_server import RedisServer


def test_only_an_announced_file_that_is_still_there_spares_publishing(tmp_path: Path) -> None:
    config, file = load("tiny", ["run.name=versions"]), tmp_path / "00000007.safetensors"
    with RedisServer(tmp_path / "redis") as server:
        client = connect(server.url)
        assert available(client, config) == 0
        announce(client, Manifest("versions", 7, str(file), "0" * 64, 3))
        assert available(client, config) == 0  # announced, then lost: steps 1 to 7 are published again
        file.write_bytes(b"ab")
        assert available(client, config) == 0  # cut short when the machine fell
        file.write_bytes(b"abc")
        assert available(client, config) == 7
        over_nccl = config.model_copy(
            update={"weights": config.weights.model_copy(update={"transport": "nccl"})}
        )
        assert available(client, over_nccl) == 0
