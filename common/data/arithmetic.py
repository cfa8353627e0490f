"""Addition problems `a+b=?` of 1 to 6 digits, which a model of a million parameters can learn.

Both numbers have the same count of digits, the problem's difficulty. The split is a function of the unordered
pair of numbers: no seed, size or mix moves a held-out problem, or its mirror image `b+a=?`, into training."""

import hashlib
import random
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "held-out"]
SPLITS: tuple[Split, ...] = ("train", "held-out")
MAX_DIGITS = 6
ROWS: Mapping[Split, int] = {"train": 2000, "held-out": 500}

# Weight of each count of digits, chosen for the demo model: at its warm start it nearly always solves 38% of
# these problems and almost never solves 38%. One digit has a small weight, because it has only 100 problems.
DEFAULT_DIGITS: Mapping[int, float] = {1: 0.05, 2: 0.35, 3: 0.3, 4: 0.2, 5: 0.1}


@dataclass(frozen=True, slots=True)
class Addition:
    """One problem: two numbers of `digits` digits each (no leading 0, except the number 0)."""

    a: int
    b: int

    @property
    def problem(self) -> str:
        return f"{self.a}+{self.b}=?"

    @property
    def spaced(self) -> str:
        """In the notation that pretrained models know."""
        return f"{self.a} + {self.b}"

    @property
    def answer(self) -> str:
        return str(self.a + self.b)

    @property
    def digits(self) -> int:
        return len(str(self.a))


def split_of(a: int, b: int) -> Split:
    """`held-out` for one unordered pair in five, decided by a hash."""
    low, high = sorted((a, b))
    return split_of_text(f"{low}+{high}")


def normalised(question: str) -> str:
    """The text by which questions are compared."""
    text = unicodedata.normalize("NFKC", question).casefold()
    return re.sub(r"\s+", "", text).strip(".,:;?!")


def split_of_text(text: str) -> Split:
    """`held-out` for one text in five, decided by its hash."""
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
    return "held-out" if int.from_bytes(digest, "little") % 5 == 0 else "train"


def stream(seed: int, split: Split, digits: Mapping[int, float] = DEFAULT_DIGITS) -> Iterator[Addition]:
    """Endless problems of one split, with repeats, determined by (seed, split, digits).

    `digits` maps a count of digits to its weight. Raises ValueError for a count outside 1..6 or weights that
    are negative or all zero."""
    _check(digits)
    rng = random.Random(f"arithmetic:{seed}:{split}")
    counts, weights = list(digits), list(digits.values())
    while True:
        n = rng.choices(counts, weights)[0]
        yield _draw(rng, n, split)


def generate(
    seed: int, split: Split, rows: int, digits: Mapping[int, float] = DEFAULT_DIGITS
) -> list[Addition]:
    """The first `rows` different problems of `stream`, so a larger data set begins with the smaller one.

    A class without unused problems leaves its share to the rest. Raises ValueError if the split has fewer
    than `rows` different problems."""
    _check(digits)
    room = _room(split, [n for n, weight in digits.items() if weight > 0], rows)
    if rows > room:
        raise ValueError(
            f"arithmetic: {rows} rows asked for, but the {split} split has only {room} different problems "
            f"of {', '.join(map(str, sorted(digits)))} digits: ask for fewer rows or allow more digits"
        )
    problems = stream(seed, split, digits)
    chosen: dict[Addition, None] = {}
    while len(chosen) < rows:
        chosen.setdefault(next(problems))
    return list(chosen)


def _draw(rng: random.Random, digits: int, split: Split) -> Addition:
    low = 0 if digits == 1 else 10 ** (digits - 1)
    high = 10**digits
    while True:
        a, b = rng.randrange(low, high), rng.randrange(low, high)
        if split_of(a, b) == split:
            return Addition(a, b)


def _room(split: Split, counts: list[int], enough: int) -> int:
    """Number of different problems of these digits in the split, or `enough` if there are more."""
    room = 0
    for n in counts:
        if n > 2:
            return max(enough, room)
        low, high = (0, 10) if n == 1 else (10, 100)
        room += sum(split_of(a, b) == split for a in range(low, high) for b in range(low, high))
    return room


def _check(digits: Mapping[int, float]) -> None:
    outside = [n for n in digits if not 1 <= n <= MAX_DIGITS]
    if outside:
        raise ValueError(f"arithmetic: {outside[0]} digits asked for; possible are 1 to {MAX_DIGITS}")
    if any(weight < 0 for weight in digits.values()) or not any(digits.values()):
        raise ValueError("arithmetic: weights of digits must not be negative, and one must be above 0")
