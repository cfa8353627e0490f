"""The decoder against a million damaged messages: every one decodes or is refused, in bounded time and
memory.

    python -m benchmarks.fuzz_wire [MESSAGES]            # a few minutes for the million

Four kinds of damage, mixed: bytes overwritten, pieces cut out, pieces doubled, and msgpack's own length marks
put in random places (which ask a careless reader for gigabytes). Anything but a group or a WireError ends the
benchmark with the message's seed, with which `damage` makes it again.
"""

import random
import resource
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from hora_rl.common.errors import WireError
from hora_rl.common.types import Group, VersionSpan
from hora_rl.common.wire import decode_group, encode_extra, encode_group, encode_pre_rollouts
from tests.support.groups import group, rollout

HANG_S = 1.0
LENGTH_MARKS = bytes([0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF])


def sample_group() -> Group:
    """Four rollouts of a dozen tokens: small, so that most damage hits structure, not buffers."""
    spans, rewards = (VersionSpan(3, 0, 5), VersionSpan(4, 5, 12)), {"accuracy": 1.0, "format": 0.0}
    logprobs = -np.linspace(0.0, 2.0, 12, dtype=np.float32)
    made = partial(rollout, np.arange(12), logprobs=logprobs, spans=spans, rewards=rewards)
    rollouts = [made(phase=phase) for phase in ("A", "A", "B", "B")]
    names: dict[str, Any] = {"run": "run", "tokenizer": "tok", "rule": "hit_utility", "prior": (1.0, 1.5)}
    return group(17, rollouts, prompt=[7, 8], epoch=2, batch=5, shard=1, pre_rollouts=2, **names)


def damage(message: bytes, seed: int) -> bytes:
    """The same damage for the same seed."""
    rng, data = random.Random(seed), bytearray(message)
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.randrange(8), rng.randrange(max(1, len(data)))
        end = at + rng.randint(1, 32)
        if kind < 4:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 4:
            del data[at:end]
        elif kind == 5:
            data[at:at] = data[at:end]
        elif kind == 6:
            data[at : at + 5] = bytes([rng.choice(LENGTH_MARKS), 0xFF, 0xFF, 0xFF, 0xFF])
        else:
            del data[at:]
    return bytes(data)


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def main(messages: int) -> None:
    sample = sample_group()
    message, pre_rollouts, extra = (f(sample) for f in (encode_group, encode_pre_rollouts, encode_extra))
    decoded, slowest, early, began = 0, 0.0, 0.0, time.perf_counter()
    for seed in range(messages):
        # A group in one message, and each of the two that the queue holds beside the other.
        parts = (
            (damage(message, seed),),
            (damage(pre_rollouts, seed), extra),
            (pre_rollouts, damage(extra, seed)),
        )[seed % 3]
        start = time.thread_time()
        try:
            decode_group(*parts)
            decoded += 1
        except WireError:
            pass
        except BaseException as error:
            raise SystemExit(f"message {seed}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.thread_time() - start)
        if seed == messages // 10:
            early = resident_mib()
    late, peak = resident_mib(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{messages} messages in {time.perf_counter() - began:.0f} s: {decoded} decode, the others are "
        "refused"
    )
    print(f"slowest decode {slowest * 1e3:.1f} ms of processor time")
    print(f"resident after a tenth {early:.1f} MiB, at the end {late:.1f} MiB, peak {peak:.1f} MiB")
    if slowest > HANG_S or late - early > 16:
        raise SystemExit("a message hung the decoder, or memory grew")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
