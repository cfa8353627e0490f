"""The linear probes of the paper's prior ablation: LayerNorm, then one linear head (p̂) or two (p̂ and strength s).

Gradients are written out, so that a probe needs only numpy: it learns inside the coordinator, in milliseconds, and
its state is a dozen arrays. Paper: appendix "Prior-design predictor details".
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from allocator.posterior import prior_from_rate
from allocator.priors.base import Float, Int, State, checked
from allocator.special import digamma, log_gamma

CYCLES = 10  # replayed
STEPS = 5  # Adam steps per cycle
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
GAMMA = 0.97  # weight of a cycle by its age
EMA = 0.99
FIXED_STRENGTH = 2.0
STRENGTH_MIN, STRENGTH_MAX = 0.25, 16.0

Parameters = dict[str, Float]


def sigmoid(x: Float) -> Float:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def normalised(features: NDArray) -> Float:
    """LayerNorm without its scale and offset, over the last axis, eps 1e-5. (n, d) -> (n, d)."""
    x = np.asarray(features, dtype=np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def initial(d: int, dual: bool, seed: int) -> Parameters:
    """LayerNorm at identity, small random heads; the strength head starts at s = 2, the fixed prior's."""
    rng = np.random.default_rng(seed)
    bound = 1 / np.sqrt(d)
    parameters = {
        "scale": np.ones(d),
        "offset": np.zeros(d),
        "rate": rng.uniform(-bound, bound, d) * 0.1,
        "rate_bias": np.zeros(1),
    }
    if dual:
        parameters["strength"] = rng.uniform(-bound, bound, d) * 0.1
        parameters["strength_bias"] = np.full(1, np.log(np.expm1(FIXED_STRENGTH)))
    return parameters


def forward(parameters: Parameters, x: Float) -> tuple[Float, Float]:
    """(p̂ (n,), s (n,)) of normalised features x (n, d)."""
    hidden = x * parameters["scale"] + parameters["offset"]
    rate = sigmoid(hidden @ parameters["rate"] + parameters["rate_bias"])
    if "strength" not in parameters:
        return rate, np.full(len(x), FIXED_STRENGTH)
    raw = hidden @ parameters["strength"] + parameters["strength_bias"]
    return rate, np.clip(np.logaddexp(0, raw), STRENGTH_MIN, STRENGTH_MAX)


def loss_and_gradient(
    parameters: Parameters, x: Float, successes: Float, trials: Float, weight: Float
) -> tuple[float, Parameters]:
    """Weighted mean NLL and its gradient: binomial with one head, Beta-binomial with two. All (n,), x (n, d)."""
    hidden = x * parameters["scale"] + parameters["offset"]
    logit = hidden @ parameters["rate"] + parameters["rate_bias"]
    weight = weight / weight.sum()
    gradient: Parameters = {}
    if "strength" in parameters:
        raw = hidden @ parameters["strength"] + parameters["strength_bias"]
        nll, by_logit, by_raw = _beta_binomial(logit, raw, successes, trials)
        by_hidden = np.outer(weight * by_logit, parameters["rate"])
        by_hidden += np.outer(weight * by_raw, parameters["strength"])
        gradient["strength"] = (weight * by_raw) @ hidden
        gradient["strength_bias"] = np.array([np.sum(weight * by_raw)])
    else:
        # -c log p̂ - (G0-c) log(1-p̂), written in the logit so that it neither overflows nor takes log 0.
        nll = trials * np.logaddexp(0, logit) - successes * logit
        by_logit = trials * sigmoid(logit) - successes
        by_hidden = np.outer(weight * by_logit, parameters["rate"])
    gradient["rate"] = (weight * by_logit) @ hidden
    gradient["rate_bias"] = np.array([np.sum(weight * by_logit)])
    gradient["scale"] = np.sum(by_hidden * x, axis=0)
    gradient["offset"] = by_hidden.sum(axis=0)
    return float(np.sum(weight * nll)), gradient


def _beta_binomial(logit: Float, raw: Float, c: Float, n: Float) -> tuple[Float, Float, Float]:
    """(NLL, d/dlogit, d/draw), each (n,); the binomial coefficient, a constant, is left out as in the paper."""
    # Kept off 0 and 1: a saturated rate would give Beta(0, s), whose log-likelihood is not finite.
    p = np.clip(sigmoid(logit), 1e-6, 1 - 1e-6)
    soft = np.logaddexp(0, raw)
    s = np.clip(soft, STRENGTH_MIN, STRENGTH_MAX)
    a, b = s * p, s * (1 - p)
    nll = (
        log_gamma(a)
        + log_gamma(b)
        - log_gamma(s)
        + log_gamma(s + n)
        - log_gamma(a + c)
        - log_gamma(b + n - c)
    )
    by_a = digamma(a) - digamma(a + c)
    by_b = digamma(b) - digamma(b + n - c)
    by_s = p * by_a + (1 - p) * by_b + digamma(s + n) - digamma(s)
    inside = (soft > STRENGTH_MIN) & (soft < STRENGTH_MAX)
    return nll, (by_a - by_b) * s * p * (1 - p), np.where(inside, by_s * sigmoid(raw), 0.0)


class Adam:
    """torch.optim.Adam with its weight decay (added to the gradient), on a dict of arrays, in place."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.first = {k: np.zeros_like(v) for k, v in parameters.items()}
        self.second = {k: np.zeros_like(v) for k, v in parameters.items()}
        self.count = 0

    def step(self, gradient: Parameters) -> None:
        self.count += 1
        for name, value in self.parameters.items():
            g = gradient[name] + WEIGHT_DECAY * value
            self.first[name] += 0.1 * (g - self.first[name])
            self.second[name] += 0.001 * (g * g - self.second[name])
            mean = self.first[name] / (1 - 0.9**self.count)
            spread = np.sqrt(self.second[name] / (1 - 0.999**self.count)) + 1e-8
            value -= LEARNING_RATE * mean / spread


class ProbePrior:
    """A probe over frozen features (n_prompts, d), one row per prompt of the data set.

    `dual`: predict the strength too. `online`: learn during training from a replay of the last cycles and predict
    with an exponential moving average of the parameters; otherwise only `fit` changes it.
    """

    def __init__(self, name: str, features: NDArray, dual: bool, online: bool, seed: int = 0) -> None:
        self.name = name
        self._features = features
        self.learns = online
        self._adam = Adam(initial(features.shape[1], dual, seed))
        self._shadow = {k: v.copy() for k, v in self._adam.parameters.items()}
        self._replay: deque[tuple[Int, Int, int]] = deque(maxlen=CYCLES)

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        rate, strength = forward(self._shadow, normalised(self._features[prompts]))
        alpha, beta = prior_from_rate(np.clip(rate, 1e-6, 1 - 1e-6), strength)
        return checked(self.name, prompts, alpha, beta)

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        if not self.learns:
            return
        self._replay.append((prompts, successes, trials))
        batch = self._replayed()
        for _ in range(STEPS):
            self._adam.step(loss_and_gradient(self._adam.parameters, *batch)[1])
            for name, value in self._adam.parameters.items():
                self._shadow[name] += (1 - EMA) * (value - self._shadow[name])

    def fit(self, prompts: Int, successes: Int, trials: Int, steps: int = 500) -> float:
        """Pretrain on recorded rollouts, (m,) each, by full-batch Adam; returns the last mean NLL per prompt."""
        x = normalised(self._features[prompts])
        c, n = successes.astype(np.float64), trials.astype(np.float64)
        loss = np.nan
        for _ in range(steps):
            loss, gradient = loss_and_gradient(self._adam.parameters, x, c, n, np.ones(len(c)))
            self._adam.step(gradient)
        # Training starts from here afresh: neither Adam's moments nor the average carry the pretraining's path.
        self._adam = Adam(self._adam.parameters)
        self._shadow = {k: v.copy() for k, v in self._adam.parameters.items()}
        return loss

    def _replayed(self) -> tuple[Float, Float, Float, Float]:
        prompts = np.concatenate([p for p, _, _ in self._replay])
        successes = np.concatenate([c for _, c, _ in self._replay]).astype(np.float64)
        trials = np.concatenate([np.full(len(p), float(t)) for p, _, t in self._replay])
        ages = range(len(self._replay) - 1, -1, -1)
        weight = np.concatenate(
            [np.full(len(p), GAMMA**age) for age, (p, _, _) in zip(ages, self._replay, strict=True)]
        )
        return normalised(self._features[prompts]), successes, trials, weight

    def state_dict(self) -> State:
        state: State = {"count": np.array([self._adam.count])}
        parts = ("now", self._adam.parameters), ("shadow", self._shadow)
        for part, arrays in (*parts, ("first", self._adam.first), ("second", self._adam.second)):
            state.update({f"{part}.{k}": v.copy() for k, v in arrays.items()})
        for i, (prompts, successes, trials) in enumerate(self._replay):
            state[f"replay.{i}"] = np.stack([prompts, successes, np.full(len(prompts), trials)])
        return state

    def load_state_dict(self, state: State) -> None:
        for part, arrays in (
            ("now", self._adam.parameters),
            ("shadow", self._shadow),
            ("first", self._adam.first),
            ("second", self._adam.second),
        ):
            for k, v in arrays.items():
                saved = state.get(f"{part}.{k}")
                if saved is None or saved.shape != v.shape:
                    found = "nothing" if saved is None else f"shape {saved.shape}"
                    raise ValueError(
                        f"prior {self.name}: the state holds {found} for {part}.{k}, not shape {v.shape}"
                    )
                v[...] = saved
        self._adam.count = int(state["count"][0])
        self._replay.clear()
        for i in range(CYCLES):
            if f"replay.{i}" in state:
                prompts, successes, trials = np.asarray(state[f"replay.{i}"], dtype=np.int64)
                self._replay.append((prompts, successes, int(trials[0])))
