"""What replicas can get after a learner's crash decides what is published again."""

from pathlib import Path

import pytest
from blake3 import blake3

from hora_rl.common.errors import DamagedWeights, StaleWeights
from hora_rl.common.live.redis import connect
from hora_rl.common.weights.versions import Manifest, announce, available, check_file, path_of
from hora_rl.deploy.machine.redis_server import RedisServer


def test_only_an_announced_file_that_is_there_and_whole_spares_publishing(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    client, file = connect(redis_server.url), tmp_path / "00000007.safetensors"
    assert available(client, "versions", "file") == 0
    announce(client, Manifest("versions", 7, str(file), blake3(b"abc").hexdigest(), 3))
    assert available(client, "versions", "file") == 0  # then lost: steps 1 to 7 are published again
    for damaged in (b"ab", b"abd"):  # cut short when the machine fell; noise
        file.write_bytes(damaged)
        assert available(client, "versions", "file") == 0
    file.write_bytes(b"abc")
    assert available(client, "versions", "file") == 7
    assert available(client, "versions", "nccl") == 0


def test_a_file_that_is_gone_another_or_cannot_be_read_is_told_apart(tmp_path: Path) -> None:
    info = {"version": 1, "path": str(tmp_path / "w"), "digest": blake3(b"w").hexdigest(), "bytes": 1}
    with pytest.raises(StaleWeights, match="is gone") as gone:
        check_file(info)
    assert not isinstance(gone.value, DamagedWeights)
    (tmp_path / "w").write_bytes(b"v")
    with pytest.raises(DamagedWeights, match="is not the announced"):
        check_file(info)
    with pytest.raises(DamagedWeights, match="cannot be read: Is a directory"):
        check_file({**info, "path": str(tmp_path)})
    (tmp_path / "w").write_bytes(b"w")
    with check_file(info) as file:
        assert Path(path_of(file.fileno())).read_bytes() == b"w"
