"""The identity of a run from its first plan to its end: its prompts, and its configuration except for what
may change.

Seed, Γ and the number of prompts determine which prompts a batch holds. A coordinator with other settings or
other data would mistake half-done batches for others, and would skip prompts without notice.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from hora_rl.common.config import Config, Source
from hora_rl.common.config.base import Scope
from hora_rl.common.data.prompt_order import Mixture
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.live.state import read_config
from hora_rl.common.load import differences
from hora_rl.common.types import Prompt
from hora_rl.common.wire import SCHEMA

# The first coordinator's prompts are the run's. They may be replaced together with settings under which
# nothing was sampled.
CLAIM = """
if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('HDEL', KEYS[3], 'prompts')
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSETNX', KEYS[3], 'prompts', ARGV[2])
return redis.call('HGET', KEYS[3], 'prompts')
"""


async def claim_identity(redis: AsyncRedis, config: Config, prompts: Sequence[Prompt]) -> None:
    """Store a coordinator's configuration and the identity of its prompts. Both may be replaced while the run
    has no plan.

    Raises RunError when the run has begun with other settings, which it names, or with other prompts. `redis`
    is an asyncio client that returns bytes.
    """
    name, keys = config.run.name, Keys(config.run.name)
    stored = await redis.get(keys.config)
    if stored is not None and await redis.exists(keys.plans):
        changed = differences(read_config(stored, name), config, below=Scope.START)
        if changed:
            raise RunError(
                f"run {name!r} has begun with other settings: {'; '.join(changed)} (its own first): deploy "
                "it with its own, or start again under another run.name"
            )
    here: dict[str, object] = {"n": len(prompts), "fingerprint": fingerprint(prompts), "schema": SCHEMA}
    if config.data.sources:  # for the audit
        here["rows"] = list(mixture_of(config.data.sources, prompts).rows)
    args = [config.model_dump_json(), json.dumps(here)]
    begun = json.loads(await redis.eval(CLAIM, 3, keys.config, keys.plans, keys.state, *args))
    if begun.get("schema") != SCHEMA:
        raise RunError(
            f"run {name!r} was begun by another version of hora, whose groups have a schema older or newer "
            f"than {SCHEMA}: end it with that version, or start again under another run.name"
        )
    if begun != here:
        paths = ", ".join(config.of(source).data.path for source in config.source_names)
        raise RunError(
            f"run {name!r} has begun with {begun['n']} prompts (fingerprint {begun['fingerprint']}), and the "
            f"data here gives {here['n']} others ({here['fingerprint']}): bring back its data "
            f"({paths}) and tokenizer ({config.model.path}) as they were, or start again under "
            "another run.name"
        )


def mixture_of(sources: Mapping[str, Source], prompts: Sequence[Prompt]) -> Mixture:
    """How many of the run's prompts are of each source, with the weights of these. Raises ConfigError for a
    source without any."""
    found = Counter(p.source for p in prompts)
    if not sources:
        return Mixture((len(prompts),))
    empty = [name for name in sources if not found[name]]
    if empty:
        raise ConfigError(f"data.sources.{empty[0]}: none of its rows can be used")
    return Mixture(tuple(found[name] for name in sources), tuple(s.weight for s in sources.values()))


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """16 hex digits, equal for two lists of prompts if and only if these hold the same texts and tokens in
    the same order, with the same answers or tests."""
    digest = hashlib.blake2b(digest_size=8)
    for p in prompts:
        digest.update(json.dumps([p.text, p.judged_by, p.tokens.tolist()], default=str).encode())
    return digest.hexdigest()
