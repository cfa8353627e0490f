"""The identity of a run: its prompts, and its configuration except keys that may change. Fixed once a plan
exists.

Seed, Γ and the number of prompts determine the prompts of a batch. A coordinator with other settings or data
would confuse half-done batches and silently skip prompts.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from hora_rl.common.config import Config, SourceConfig
from hora_rl.common.config.base import Scope
from hora_rl.common.data.prompt_order import Mixture
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.live.state import read_config
from hora_rl.common.load import differences
from hora_rl.common.types import Prompt
from hora_rl.common.wire import SCHEMA

# The first coordinator stores the run's prompts. They may be replaced together with the configuration while
# nothing was sampled under it.
CLAIM = """
if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('HDEL', KEYS[3], 'prompts')
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSETNX', KEYS[3], 'prompts', ARGV[2])
return redis.call('HGET', KEYS[3], 'prompts')
"""


async def claim_identity(redis: AsyncRedis, config: Config, prompts: Sequence[Prompt]) -> None:
    """Store the configuration and the identity of the prompts. Both may be replaced while the run has no
    plan.

    Raises RunError if the run has begun with other settings (the error names them) or other prompts. `redis`
    is an asyncio client that returns bytes.
    """
    name, keys = config.run.name, Keys(config.run.name)
    stored = await redis.get(keys.config)
    if stored is not None and await redis.exists(keys.plans):
        changed = differences(read_config(stored, name), config, below=Scope.START)
        if changed:
            raise RunError(
                f"run {name!r} has begun with other settings: {'; '.join(changed)} (the run's value first): "
                "deploy it with the run's settings, or start again under another run.name"
            )
    here: dict[str, object] = {"n": len(prompts), "fingerprint": fingerprint(prompts), "schema": SCHEMA}
    if config.data.sources:  # for the audit
        here["rows"] = list(mixture_of(config.data.sources, prompts).rows)
    args = [config.model_dump_json(), json.dumps(here)]
    begun = json.loads(await redis.eval(CLAIM, 3, keys.config, keys.plans, keys.state, *args))
    if begun.get("schema") != SCHEMA:
        raise RunError(
            f"run {name!r} was begun by another version of hora, whose groups do not have schema {SCHEMA}: "
            "finish it with that version, or start again under another run.name"
        )
    if begun != here:
        paths = ", ".join(config.of(source).data.path for source in config.source_names)
        raise RunError(
            f"run {name!r} has begun with {begun['n']} prompts (fingerprint {begun['fingerprint']}), but the "
            f"data here gives {here['n']} others ({here['fingerprint']}): restore the run's data ({paths}) "
            f"and tokenizer ({config.model.path}), or start again under another run.name"
        )


def mixture_of(sources: Mapping[str, SourceConfig], prompts: Sequence[Prompt]) -> Mixture:
    """The number of prompts and the weight of each source. Raises ConfigError for a source without
    prompts."""
    counts = Counter(p.source for p in prompts)
    if not sources:
        return Mixture((len(prompts),))
    empty = [name for name in sources if not counts[name]]
    if empty:
        raise ConfigError(f"data.sources.{empty[0]}: none of its rows can be used")
    return Mixture(tuple(counts[name] for name in sources), tuple(s.weight for s in sources.values()))


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """16 hex digits that identify a list of prompts: texts, tokens, and answers or tests, in order."""
    digest = hashlib.blake2b(digest_size=8)
    for p in prompts:
        digest.update(json.dumps([p.text, p.judged_by, p.tokens.tolist()], default=str).encode())
    return digest.hexdigest()
