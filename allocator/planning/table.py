"""Rows of a plan and their text table."""

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 0.02
"""The least gain, a share of prompts with a hit, that is advised. Ten seeds of the studies in
`research/results` see differences of about that size at the end of training."""


@dataclass(frozen=True, slots=True)
class Row:
    """One arm: shares of prompts with a hit and of groups with signal, with 90% intervals. `gain`: hits minus
    those of uniform sampling at equal G. `uniform_group_size`: the G at which uniform sampling has as many
    prompts with a hit; None beyond the counts."""

    rule: str
    rounds: int
    stop: str
    group_size: int
    pre_rollouts: int
    hits: float
    hits_low: float
    hits_high: float
    gain: float
    gain_low: float
    gain_high: float
    signal: float
    signal_low: float
    signal_high: float
    uniform_group_size: int | None
    uniform_group_size_low: int | None
    uniform_group_size_high: int | None

    @property
    def name(self) -> str:
        """`hit_utility, stop at hit, 4 rounds`."""
        stop = f", stop at {self.stop}" if self.stop != "none" else ""
        return f"{self.rule}{stop}" + (f", {self.rounds} rounds" if self.rounds > 1 else "")


@dataclass(frozen=True, slots=True)
class Rest:
    """Share of `epochs` epochs that prompts rest under `data.rest: [solved]` while success rates stay, with
    its 90% interval."""

    epochs: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All arms and the best one; `str` is the output of `hora plan`. `rests`: what `data.rest: [solved]`
    would spare with the best arm's G0. `leverage`: the share of a gain that counts where prompts share their
    gradient (see `plan`); else None."""

    rows: tuple[Row, ...]
    recommended: Row
    notes: tuple[str, ...]
    rests: tuple[Rest, ...]
    leverage: float | None = None

    @property
    def worthwhile(self) -> bool:
        """Whether the best arm's gain, times the leverage, reaches `SHOWN`."""
        return self.recommended.gain * (1.0 if self.leverage is None else self.leverage) >= SHOWN

    @property
    def verdict(self) -> str:
        """One sentence: the best arm with its gain, or to stay uniform."""
        best = self.recommended
        if best.gain == 0.0:
            return "stay uniform: no rule here gives more prompts a hit without losing groups with signal."
        points = _share(best.gain, best.gain_low, best.gain_high, "+")
        gain = f"{best.name} at G = {best.group_size} gives {points} points more prompts a hit than uniform"
        if self.leverage is not None:
            gain += f", and shared gradients leave {self.leverage:.2f} of that"
        if self.worthwhile:
            return f"use it: {gain}."
        return f"stay uniform: {gain}; no run shows less than {100 * SHOWN:g}."

    def __str__(self) -> str:
        most = max(self.rows, key=lambda row: (row.group_size, row.hits))
        heads = (
            "rule",
            "G",
            "G0",
            "equals uniform G",
            "prompts with a hit",
            "over uniform",
            "groups with signal",
        )
        rests = ", ".join(
            f"{_share(r.share, max(0.0, r.low), r.high)} of {r.epochs} epochs" for r in self.rests
        )
        lines = [
            f"Verdict: {self.verdict}",
            f"Most hits: {most.name} at G = {most.group_size} equals uniform sampling at G {_same(most)}.",
            "Shares in %, with 90% intervals:",
            *_columns([heads, *map(_cells, self.rows)]),
            f"data.rest: [solved] spares, in % while rates stay: {rests}.",
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        str(row.group_size),
        str(row.pre_rollouts),
        _same(row),
        _share(row.hits, row.hits_low, row.hits_high),
        _share(row.gain, row.gain_low, row.gain_high, "+"),
        _share(row.signal, row.signal_low, row.signal_high),
    )


def _same(row: Row) -> str:
    same, low, high = (
        "beyond" if g is None else str(g)
        for g in (row.uniform_group_size, row.uniform_group_size_low, row.uniform_group_size_high)
    )
    return same if low == high else f"{same} ({low} to {high})"


def _share(value: float, low: float, high: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
