"""The linear probes of the paper's prior ablation: LayerNorm, then a head for p̂ and, if dual, one for s.

Paper: appendix "Prior-design predictor details". This module imports torch; it is loaded on demand.
"""

import math
from collections import deque
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from hora_rl.allocator.posterior import Float, Int, prior_from_rate
from hora_rl.allocator.priors.base import FIXED_STRENGTH, State, checked

CYCLES = 10  # replayed
STEPS = 5  # Adam steps per cycle
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
GAMMA = 0.97  # weight of a cycle by its age
EMA = 0.99
STRENGTH_MIN, STRENGTH_MAX = 0.25, 16.0
RATE_MARGIN = 1e-6  # keeps p̂ off 0 and 1, where the likelihood is not finite


class Probe(torch.nn.Module):
    """Success rate and prior strength from features (n, d), in float64."""

    def __init__(self, d: int, dual: bool, seed: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(d, dtype=torch.float64)
        self.rate = _small_head(d, 0.0, generator := torch.Generator().manual_seed(seed))
        # Initially s = 2, the strength of the fixed prior.
        start = math.log(math.expm1(FIXED_STRENGTH))
        self.strength = _small_head(d, start, generator) if dual else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(logit of p̂ (n,), s (n,))."""
        hidden = self.norm(x)
        logit = self.rate(hidden)[:, 0]
        if self.strength is None:
            return logit, torch.full_like(logit, FIXED_STRENGTH)
        return logit, softplus(self.strength(hidden)[:, 0]).clamp(STRENGTH_MIN, STRENGTH_MAX)

    def loss(self, x: Tensor, successes: Tensor, trials: Tensor) -> Tensor:
        """NLL (n,) without its constant: binomial with one head, Beta-binomial with two."""
        logit, s = self(x)
        if self.strength is None:
            return -successes * logsigmoid(logit) - (trials - successes) * logsigmoid(-logit)
        p = torch.sigmoid(logit).clamp(RATE_MARGIN, 1 - RATE_MARGIN)
        a, b = s * p, s * (1 - p)
        return _log_beta(a, b) - _log_beta(successes + a, trials - successes + b)


def _small_head(d: int, bias: float, generator: torch.Generator) -> torch.nn.Linear:
    head = torch.nn.Linear(d, 1, dtype=torch.float64)
    torch.nn.init.uniform_(head.weight, -0.1 / math.sqrt(d), 0.1 / math.sqrt(d), generator=generator)
    torch.nn.init.constant_(head.bias, bias)
    return head


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


class ProbePrior:
    """A probe on frozen features (n_prompts, d). `dual`: predict the strength too. `online`: learn during
    training from a replay of the last cycles and predict with an exponential moving average of the
    parameters. Otherwise only `fit` changes the probe."""

    def __init__(self, name: str, features: NDArray, dual: bool, online: bool, seed: int = 0) -> None:
        self.name = name
        self.learns = online
        self._features = features
        self._probe = Probe(features.shape[1], dual, seed)
        self._replay: deque[tuple[Int, Int, int]] = deque(maxlen=CYCLES)
        self._start()

    def _start(self) -> None:
        parameters = self._probe.parameters()
        self._adam = torch.optim.Adam(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        self._average = deepcopy(self._probe).requires_grad_(False)

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        with torch.no_grad():
            logit, strength = self._average(self._rows(prompts))
        rate = torch.sigmoid(logit).clamp(RATE_MARGIN, 1 - RATE_MARGIN)
        return checked(self.name, prompts, *prior_from_rate(rate.numpy(), strength.numpy()))

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        if not self.learns:
            return
        self._replay.append((prompts, successes, trials))
        rows, c, n, weight = self._replayed()
        for _ in range(STEPS):
            self._step(rows, c, n, weight)
            for average, now in zip(self._average.parameters(), self._probe.parameters(), strict=True):
                average.lerp_(now.detach(), 1 - EMA)

    def fit(self, prompts: Int, successes: Int, trials: Int, steps: int = 500) -> float:
        """Pretrain on recorded rollouts, (m,) each, by full-batch Adam; returns the last mean NLL."""
        rows, c, n = self._rows(prompts), _tensor(successes), _tensor(trials)
        loss = math.nan
        for _ in range(steps):
            loss = self._step(rows, c, n, torch.full_like(c, 1 / len(c)))
        # Training starts without the moments and the average of pretraining.
        self._start()
        return loss

    def _step(self, rows: Tensor, successes: Tensor, trials: Tensor, weight: Tensor) -> float:
        self._adam.zero_grad()
        loss = (weight * self._probe.loss(rows, successes, trials)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        return float(loss.detach())

    def _rows(self, prompts: Int) -> Tensor:
        return _tensor(self._features[prompts])

    def _replayed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features (m, d), successes, trials and weights (m,) of replayed cycles; weights sum to 1."""
        prompts = np.concatenate([p for p, _, _ in self._replay])
        successes = np.concatenate([c for _, c, _ in self._replay])
        sizes = [len(p) for p, _, _ in self._replay]
        trials = np.repeat([t for _, _, t in self._replay], sizes)
        weight = np.repeat(GAMMA ** np.arange(len(sizes) - 1, -1, -1.0), sizes)
        return self._rows(prompts), _tensor(successes), _tensor(trials), _tensor(weight / weight.sum())

    def state_dict(self) -> State:
        state = {f"probe.{k}": v.numpy().copy() for k, v in self._probe.state_dict().items()}
        state |= {f"average.{k}": v.numpy().copy() for k, v in self._average.state_dict().items()}
        for i, moments in self._adam.state_dict()["state"].items():
            state |= {f"adam.{i}.{k}": v.numpy().copy() for k, v in moments.items()}
        for i, (prompts, successes, trials) in enumerate(self._replay):
            state[f"replay.{i}"] = np.stack([prompts, successes, np.full(len(prompts), trials)])
        return state

    def load_state_dict(self, state: State) -> None:
        try:
            self._probe.load_state_dict(_below(state, "probe."))
            self._average.load_state_dict(_below(state, "average."))
        except RuntimeError as error:
            raise ValueError(f"prior {self.name}: {' '.join(str(error).split())[:300]}") from None
        adam = self._adam.state_dict()
        adam["state"] = {i: _below(state, f"adam.{i}.") for i in range(64) if f"adam.{i}.step" in state}
        self._adam.load_state_dict(adam)
        self._replay.clear()
        for i in range(CYCLES):
            if f"replay.{i}" in state:
                prompts, successes, trials = np.asarray(state[f"replay.{i}"], dtype=np.int64)
                self._replay.append((prompts, successes, int(trials[0])))


def _tensor(values: NDArray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


def _below(state: State, prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): torch.from_numpy(v) for k, v in state.items() if k.startswith(prefix)}
