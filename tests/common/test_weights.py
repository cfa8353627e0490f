"""What the digest of weights sees, which versions can still be had, and where members of a group meet."""

import socket
from pathlib import Path

import pytest
import torch
from blake3 import blake3

from hora_rl.common.errors import DamagedWeights, StaleWeights
from hora_rl.common.live.redis import connect
from hora_rl.common.weights.announcement import Manifest, announce, available, check_file, path_of
from hora_rl.common.weights.group import address_towards
from hora_rl.common.weights.tensor_hash import CHUNK, TensorHash
from hora_rl.deploy.machine.redis_server import RedisServer

DTYPES = [torch.float32, torch.bfloat16, torch.int8]


def weights(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Tensors of odd sizes, one of two chunks and a half, one whose bytes are no whole number of words."""
    source = torch.Generator().manual_seed(0)
    sizes = {"a": (3, 5), "b": (3, 5), "long": (5 * CHUNK + 3,), "one": (1,)}
    return {name: (100 * torch.randn(s, generator=source)).to(dtype) for name, s in sizes.items()}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    return TensorHash().digest(tensors.items())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_weights_have_equal_digests_however_they_lie_in_memory(dtype: torch.dtype) -> None:
    tensors = weights(dtype)
    spread = {name: torch.stack([t, t], dim=-1)[..., 0] for name, t in tensors.items()}
    shifted = {n: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) for n, t in tensors.items()}
    assert not spread["long"].is_contiguous()
    assert digest(tensors) == digest(spread) == digest(shifted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["a", "long", "one"])
def test_one_flipped_bit_is_seen_wherever_it_is(dtype: torch.dtype, name: str) -> None:
    tensors, own = weights(dtype), TensorHash()
    before = own.digest(tensors.items())
    raw = tensors[name].view(-1).view(torch.uint8)
    places = {0, min(1, len(raw) - 1), len(raw) // 2, len(raw) - 1}
    digests = set()
    for place in places:
        for bit in (1, 128):
            raw[place] ^= bit
            digests.add(own.digest(tensors.items()))
            raw[place] ^= bit
    assert len(digests - {before}) == 2 * len(places)
    assert own.digest(tensors.items()) == before


def exchanged(tensor: torch.Tensor, first: object, second: object) -> torch.Tensor:
    """A copy with two of its parts exchanged."""
    new = tensor.clone()
    new[first], new[second] = tensor[second], tensor[first]
    return new


def test_what_changed_places_is_seen() -> None:
    tensors, words = weights(), 2 * CHUNK
    a, b, long = tensors["a"], tensors["b"], tensors["long"]
    for changed in (
        {"a": b, "b": a},
        {"long": exchanged(long, 4, 8)},  # words of one chunk
        {"long": exchanged(long, slice(words), slice(words, 2 * words))},  # chunks
        {"a": exchanged(a, (0, 0), (0, 1))},  # the halves of one word
    ):
        assert digest(tensors) != digest({**tensors, **changed})
    others = [{"b": torch.zeros(4)}, {"a": torch.zeros(2, 2)}, {"a": torch.zeros(4, dtype=torch.int32)}, {}]
    assert len({digest(t) for t in [{"a": torch.zeros(4)}, *others]}) == 5, "names, shapes and types count"


def test_only_an_announced_whole_file_spares_publishing(tmp_path: Path, redis_server: RedisServer) -> None:
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
    with pytest.raises(StaleWeights) as gone:
        check_file(info)
    assert not isinstance(gone.value, DamagedWeights)
    (tmp_path / "w").write_bytes(b"v")
    for path in (tmp_path / "w", tmp_path):
        with pytest.raises(DamagedWeights, match=str(path)):
            check_file({**info, "path": str(path)})
    (tmp_path / "w").write_bytes(b"w")
    with check_file(info) as file:
        assert Path(path_of(file.fileno())).read_bytes() == b"w"


def test_a_member_listens_where_packets_to_the_others_leave() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    if socket.has_ipv6:
        assert address_towards("::1") == "::1"
