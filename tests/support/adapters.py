"""Policies with strong random adapters, and the log-probs that the learner gives them."""

import numpy as np
import torch

from hora_rl.common.config import Config
from hora_rl.common.model.adapters import published_name
from hora_rl.common.types import Completion, Tokens
from hora_rl.learner.model.loading import load_model
from hora_rl.learner.model.logprobs import Policy
from hora_rl.learner.model.lora import add_adapter
from hora_rl.learner.rows.batch import make_micro_batch
from tests.support.samples import sample


def policy_with_adapter(config: Config, seed: int | None) -> Policy:
    """The policy of `config` with an adapter whose A and B are random; None: as at the start of a run."""
    assert config.learner.lora is not None
    hf = load_model(config.model, config.learner)
    add_adapter(hf, config.run.seed, config.learner.lora)
    if seed is not None:
        source = torch.Generator().manual_seed(seed)
        for parameter in (p for p in hf.parameters() if p.requires_grad):
            with torch.no_grad():
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=source))
    return Policy(hf)


def published(policy: Policy) -> dict[str, torch.Tensor]:
    """What the learner would publish of it."""
    named = policy.hf.named_parameters()
    return {published_name(name): p.detach().clone() for name, p in named if p.requires_grad}


def scores(policy: Policy, prompt: Tokens, completion: Completion) -> np.ndarray:
    """The learner's log-probs of the completion's tokens (L,)."""
    micro = make_micro_batch([[sample(prompt, completion.tokens, completion.logprobs)]])
    with torch.no_grad():
        return policy(micro, 1.0, 1024)[0].numpy()


def errors(policies: dict[int, Policy], prompt: Tokens, completions: list[Completion]) -> dict[int, float]:
    """Largest |difference| to the learner's log-probs, by the version that the tokens are labelled with."""
    found = dict[int, float]()
    for completion in completions:
        for span in completion.spans:
            wanted, part = scores(policies[span.version], prompt, completion), slice(span.start, span.end)
            gap = float(np.abs(wanted[part] - completion.logprobs[part]).max(initial=0.0))
            found[span.version] = max(found.get(span.version, 0.0), gap)
    return found
