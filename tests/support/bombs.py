r"""A batch of right answers with 32 hostile ones among them: towers, factorials, products, binomial
coefficients, powers, nested `\left(`. A real pool judges it, as in a replica."""

from __future__ import annotations

import random
import time

from hora_rl.actors.verifier.pool import Item, VerifierPool
from hora_rl.common.config import Reward

ANSWERS, BOMBS = 640, 32
_KINDS = (
    "{n}^{{9^{{9^9}}}}",
    "({n}0^{{10}})!",
    r"\prod_{{k=1}}^{{10^{{{n}}}}} k",
    r"\binom{{10^{{{n}}}}}{{5\cdot 10^7}}",
    "(x+{n})^{{99999}}",
    "{n}^{{999999999}}+x",
)


def right(number: int) -> Item:
    """A right answer that only math-verify can see, different for every number."""
    return "q", f"<answer>{number} + \\frac{{6}}{{14}}</answer>", rf"\frac{{3}}{{7}} + {number}"


def bombs(count: int) -> list[str]:
    """Different answers that are short to write, each too large to compute or too deep to parse. A quarter is
    nested."""
    deep = [r"\left(" * (38 + n) + "1" + r"\right)" * (38 + n) for n in range(count // 4)]
    return deep + [_KINDS[n % len(_KINDS)].format(n=n + 9) for n in range(count - len(deep))]


def batches() -> tuple[list[Item], list[Item]]:
    """One batch of right answers, and one in which bombs stand in the place of some."""
    plain = [right(number) for number in range(ANSWERS)]
    mined = [*plain[BOMBS:], *(("q", f"<answer>{bomb}</answer>", "28") for bomb in bombs(BOMBS))]
    random.Random(0).shuffle(mined)
    return plain, mined


async def seconds(items: list[Item], processes: int) -> float:
    """Time of one batch on a fresh pool whose workers are up. Raises RuntimeError where a verdict is
    wrong."""
    pool = VerifierPool(Reward(), processes)
    try:
        await pool.score_batch([right(-1 - n) for n in range(4 * processes)])
        started = time.monotonic()
        scored = await pool.score_batch(items)
        took = time.monotonic() - started
    finally:
        pool.close()
    if [s["accuracy"] for s in scored] != [float(item[2] != "28") for item in items]:
        raise RuntimeError("a verdict is wrong")
    return took
