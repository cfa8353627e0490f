"""The recall tasks: facts, pairs of facts, facts with many right answers, and sums.

facts   keys with a value of three digits, remembered with probability log-uniform in 1/300..0.98. No skill is
        shared. Each key is asked in two forms, of which one is trained (transfer), and some in none (damage).
pairs   the values of two of 60 facts, so success is the product of two memories: skills are shared, and easy
        facts are needed in hard prompts. The held-out pairs test generalisation.
many    as facts, with three right values of unequal probability: training on hits may lose the rarer ones.
sums    two numbers of two digits, where half of the sums of digits are misremembered. A sum of digits is
        needed in many prompts, and the carry must be learned. The held-out sums test generalisation.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from research.tasks.recall import TRAINED, Demonstrations, RecallTask

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CANDIDATES = 4
WRONG_SHARES = (0.55, 0.30, 0.15)
RIGHT_SHARES = (0.70, 0.25, 0.05)
KEYS, TRAINED_KEYS = 210, 150
FACTS, TRAINED_PAIRS, HELD_OUT_PAIRS = 60, 300, 300
DIGITS = 10
PAIRS = [divmod(k, DIGITS) for k in range(DIGITS**2)]
Drawn = tuple[RecallTask, Demonstrations]


def facts(seed: int) -> Drawn:
    """Facts of one seed, and a sampler of the demonstrations that the warm start imitates."""
    rng = np.random.default_rng([seed, 1])
    keys, values = _keys(rng, KEYS), _values(rng, KEYS)
    rates = rng.permutation(np.geomspace(1 / 300, 0.98, KEYS))
    shares = _with_wrong(rates)
    # Prompt i < KEYS asks key i in the trained form, prompt KEYS + i in the other.
    questions = [f"{key}=?" for key in keys] + [f"?:{key}" for key in keys]
    trained, rest = range(TRAINED_KEYS), range(TRAINED_KEYS, KEYS)
    transfer = tuple(KEYS + i for i in trained)
    sets = {TRAINED: tuple(trained), "transfer": transfer, "never-trained": tuple(rest)}
    twice = [*values, *values]
    task = RecallTask("facts", tuple(questions), tuple((v[0],) for v in twice), sets)
    return task, _by_share(twice, np.concatenate([shares, shares]))


def many(seed: int) -> Drawn:
    """Facts with three right values that share the success as 70, 25 and 5%."""
    rng = np.random.default_rng([seed, 3])
    keys, values = _keys(rng, TRAINED_KEYS), _values(rng, TRAINED_KEYS)
    rates = rng.permutation(np.geomspace(1 / 300, 0.98, TRAINED_KEYS))
    shares = np.concatenate([rates[:, None] * RIGHT_SHARES, (1 - rates)[:, None]], axis=1)
    sets = {TRAINED: tuple(range(TRAINED_KEYS))}
    task = RecallTask("many", tuple(f"{key}=?" for key in keys), tuple(tuple(v[:3]) for v in values), sets)
    return task, _by_share(values, shares)


def pairs(seed: int) -> Drawn:
    """Pairs of 60 facts: half of them remembered with 0.9 to 0.99, half log-uniform in 1/60..0.9. Prompt k
    asks for the facts k // 60 and k % 60; the warm start shows all pairs alike."""
    rng = np.random.default_rng([seed, 2])
    keys, values = _keys(rng, FACTS), _values(rng, FACTS)
    rates = _half_easy(rng, FACTS)
    shares = _with_wrong(rates)
    both = [divmod(k, FACTS) for k in range(FACTS**2)]
    questions = tuple(f"{keys[a]}{keys[b]}=?" for a, b in both)
    right = tuple((values[a][0] + values[b][0],) for a, b in both)
    return RecallTask("pairs", questions, right, _split(rng, len(both))), _by_fact(values, shares)


def sums(seed: int) -> Drawn:
    """Sums of two numbers of two digits. Half of the sums of digits are remembered with 0.9 to 0.99, half
    log-uniform in 1/60..0.9. Prompt k asks for k // 100 + k % 100; the warm start shows all of them alike.
    The answer has three digits, the ones first, as one adds."""
    rng = np.random.default_rng([seed, 4])
    rates = _half_easy(rng, DIGITS**2)
    # What is remembered in place of a + b: three other sums of two digits and perhaps a carry.
    wrong = [rng.permutation([v for v in range(2 * DIGITS - 1) if v != a + b])[:3] for a, b in PAIRS]
    answers = np.concatenate([np.array([[a + b] for a, b in PAIRS]), wrong], axis=1)
    shares = _with_wrong(rates)
    sets = _split(rng, DIGITS**4)
    each = [divmod(k, DIGITS**2) for k in range(DIGITS**4)]
    right = tuple((_ones_first(a + b),) for a, b in each)
    questions = tuple(f"{a:02}+{b:02}=?" for a, b in each)
    return RecallTask("sums", questions, right, sets), _by_column(answers, shares)


TASKS: dict[str, Callable[[int], Drawn]] = {"facts": facts, "pairs": pairs, "many": many, "sums": sums}


def _split(rng: np.random.Generator, count: int) -> dict[str, tuple[int, ...]]:
    """300 trained and 300 held-out prompts of `count`."""
    numbers = tuple(rng.permutation(count)[: TRAINED_PAIRS + HELD_OUT_PAIRS].tolist())
    return {TRAINED: numbers[:TRAINED_PAIRS], "held-out": numbers[TRAINED_PAIRS:]}


def _keys(rng: np.random.Generator, count: int) -> list[str]:
    """Different keys of two letters."""
    places = rng.permutation(len(LETTERS) ** 2)[:count]
    return [LETTERS[k // len(LETTERS)] + LETTERS[k % len(LETTERS)] for k in places]


def _values(rng: np.random.Generator, count: int) -> list[tuple[str, ...]]:
    """The candidate values of each key, three digits without a leading zero."""
    return [tuple(str(100 + v) for v in rng.permutation(900)[:CANDIDATES]) for _ in range(count)]


def _half_easy(rng: np.random.Generator, count: int) -> NDArray:
    """(count,) probabilities in random order: half 0.9 to 0.99, half log-uniform in 1/60..0.9."""
    easy = count // 2
    return rng.permutation(
        np.concatenate([np.linspace(0.9, 0.99, easy), np.geomspace(1 / 60, 0.9, count - easy)])
    )


def _with_wrong(rates: NDArray) -> NDArray:
    """(n, 4) shares of the right value, remembered with `rates` (n,), and of three wrong ones."""
    return np.concatenate([rates[:, None], (1 - rates)[:, None] * WRONG_SHARES], axis=1)


def _candidates(rng: np.random.Generator, below: NDArray) -> NDArray:
    """A candidate for each row of cumulated shares (n, 4)."""
    return (rng.random((len(below), 1)) > below).sum(axis=1).clip(0, CANDIDATES - 1)


def _by_share(values: Sequence[Sequence[str]], shares: NDArray) -> Demonstrations:
    """Draws (prompt, candidate) half by its share (n, 4) and half evenly, weighted so that the loss is that
    of the shares: drawn only by share, a rare value would hardly be seen."""
    flat = shares.ravel() / shares.sum()
    chances = 0.5 * flat + 0.5 / flat.size

    def draw(rng: np.random.Generator, count: int) -> tuple[list[int], list[str], NDArray]:
        chosen = rng.choice(flat.size, size=count, p=chances)
        prompts = (chosen // CANDIDATES).tolist()
        answers = [values[i][k] for i, k in zip(prompts, (chosen % CANDIDATES).tolist(), strict=True)]
        return prompts, answers, flat[chosen] / chances[chosen]

    return draw


def _by_fact(values: Sequence[Sequence[str]], shares: NDArray) -> Demonstrations:
    """Draws a pair evenly and each of its values by the share (n, 4) of its fact."""
    below = shares.cumsum(axis=1)

    def draw(rng: np.random.Generator, count: int) -> tuple[list[int], list[str], NDArray]:
        a, b = rng.integers(len(values), size=(2, count))
        i, j = _candidates(rng, below[a]), _candidates(rng, below[b])
        answers = [values[p][k] + values[q][m] for p, k, q, m in zip(a, i, b, j, strict=True)]
        return (a * len(values) + b).tolist(), answers, np.ones(count)

    return draw


def _ones_first(number: int) -> str:
    return f"{number:03}"[::-1]


def _by_column(candidates: NDArray, shares: NDArray) -> Demonstrations:
    """Draws two numbers evenly, and adds them column by column with a sum of digits (100, 4) drawn by the
    shares of its pair; the carry is right."""
    below = shares.cumsum(axis=1)

    def draw(rng: np.random.Generator, count: int) -> tuple[list[int], list[str], NDArray]:
        prompts = rng.integers(DIGITS**4, size=count)
        a, b = prompts // DIGITS**2, prompts % DIGITS**2
        ones, tens = (a % DIGITS) * DIGITS + b % DIGITS, (a // DIGITS) * DIGITS + b // DIGITS
        first, second = (candidates[pair, _candidates(rng, below[pair])] for pair in (ones, tens))
        answers = [_ones_first(o + DIGITS * t) for o, t in zip(first.tolist(), second.tolist(), strict=True)]
        return prompts.tolist(), answers, np.ones(count)

    return draw
