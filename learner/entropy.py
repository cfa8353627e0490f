"""The entropy threshold of the trained tokens (`top_entropy_quantile`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hora_rl.learner.totals import gathered


def threshold(entropies: Sequence[torch.Tensor], share: float, world: int) -> float:
    """The (1 - share) quantile of the entropies of all ranks' tokens. A collective where `world` > 1."""
    own = torch.cat(list(entropies)).float().cpu().numpy()
    every = np.concatenate(gathered(own, world))
    return float(np.quantile(every, 1.0 - share)) if len(every) else 0.0
