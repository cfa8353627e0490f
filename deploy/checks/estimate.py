"""Memory of a run per part, from the model's shape and the configuration. Pure arithmetic.

P: parameters, A: trained parameters, n: ranks. Bytes of a rank in 16 bits; in brackets the ZeRO stage from
which a part is divided by n:

    always    weights 2 · P (3), master copy and Adam's moments 12 · A (1; on the host with
              offload_optimizer), with ZeRO-1 and 3 float32 gradients 4 · A
    backward  float32 gradients 4 · A (2), gradients in 16 bits 2 · A, a bucket of them, activations, logits,
              the head's gradient and its float32 sum, with ZeRO-3 the parameters of the layers at work
    update    float32 gradients 4 · A, and without a fused optimizer its temporaries 8 · A

Completions of one prompt share rows of T tokens (`learner.rows.prefixes`), with a mask of T numbers a token,
and keys and values repeated for all query heads. A generator needs weights 2 · P over its tensor-parallel
ranks, KV cache, activations of `max_batched_tokens`, the sampler's logits, and graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hora_rl.common.config import PACKED_BYTES, Config
from hora_rl.deploy.checks.model_shape import ModelShape
from hora_rl.learner.rows.prefixes import ALIGNED, divide

GIB = 2**30
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
CONTEXT_GIB, NCCL_GIB = 1.0, 0.5
"""CUDA context, kernels and workspaces of a process; channels of a communicator over several cards."""
REPLICA_GIB, RANK_GIB, BASE_GIB = 2.2, 1.0, 1.5
"""Host memory without weights: a replica, a rank, and Ray, Redis, coordinator and verifier together."""
KV_BLOCK = 16
"""Tokens of a block of vLLM's KV cache on a GPU."""
GRAPHS_GIB, GRAPHS_TOKENS = 0.8, 1024
"""CUDA graphs of vLLM's engine up to so many tokens, without `enforce_eager`. 0.4 measured up to 512."""
BUCKET, LIVE = 5e8, 1e9
"""Elements that DeepSpeed reduces at once (`reduce_bucket_size`, fully allocated on a card), and most that
ZeRO-3 gathers (`max_live_parameters`) and updates at once (`sub_group_size`)."""
LOGIT_BYTES = 20
"""Per logit in a backward pass of the head: 16 bits, float32, scaled by temperature, softmax, gradients."""
PACKED = 3
"""Chunks of weights on each side of a transfer over NCCL (vLLM's `packed_tensor.py`): the tensors of one,
their concatenation, and the chunk before. A chunk may exceed `PACKED_BYTES` by the largest tensor."""


@dataclass(frozen=True, slots=True)
class Need:
    """GiB of one process by purpose, on a card or in host memory: permanent, only during the backward pass,
    and only during the optimizer's update."""

    part: str
    always: dict[str, float]
    backward: dict[str, float] = field(default_factory=dict)
    update: dict[str, float] = field(default_factory=dict)

    @property
    def idle_gib(self) -> float:
        """Permanent memory: what a learner rank keeps between steps."""
        return sum(self.always.values())

    @property
    def gib(self) -> float:
        """Peak: permanent memory and the larger of backward pass and update."""
        return self.idle_gib + max(sum(self.backward.values()), sum(self.update.values()))

    def __str__(self) -> str:
        named = (("", self.always), ("; backward: ", self.backward), ("; update: ", self.update))
        return "".join(before + amounts(parts) for before, parts in named if parts)


def amounts(parts: dict[str, float]) -> str:
    """`weights 2.90, KV cache 1.20`, without what takes nothing."""
    return ", ".join(f"{name} {gib:.2f}" for name, gib in parts.items() if gib)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory of a run of `config` with a model of this `shape`."""

    config: Config
    shape: ModelShape

    @property
    def width(self) -> int:
        """Bytes of a number in the model's precision."""
        return WIDTH[self.config.model.dtype]

    @property
    def trained(self) -> int:
        """Parameters that are trained."""
        return self.shape.adapter or self.shape.parameters

    @property
    def checkpoint_gib(self) -> float:
        """One checkpoint of all ranks: weights, Adam's moments, and in 16 bits the master copy."""
        return self.trained * (self.width + (12 if self.width == 2 else 8)) / GIB

    @property
    def weights_gib(self) -> float:
        """The full model without an adapter."""
        return self.shape.parameters * self.width / GIB

    @property
    def published_gib(self) -> float:
        """One published version of the weights."""
        return self.trained * self.width / GIB

    @property
    def transfer_gib(self) -> float:
        """Buffers on each side for weight transfer between cards. The largest tensor is the embedding."""
        if self.config.weights.transport != "nccl":
            return 0.0
        largest = self.shape.vocabulary * self.shape.hidden * self.width
        return NCCL_GIB + PACKED * (PACKED_BYTES + largest) / GIB

    def rank(self, *, card: bool = True) -> Need:
        """Memory of one learner rank, on a card or (without `card`) in host memory."""
        from hora_rl.learner.model.optimizer import effective_stage

        learner, shape, width, trained = self.config.learner, self.shape, self.width, self.trained
        stage, world = effective_stage(learner, self.config.model.dtype), learner.workers
        shard = trained / (world if stage >= 1 else 1)
        reference = shape.parameters if learner.objective.kl and not shape.adapter else 0
        copies = (shape.parameters + shape.adapter + reference) / (world if stage == 3 else 1)
        sums = 4 * (shard if stage >= 2 else trained)
        at_once = min(shard, LIVE) if stage == 3 else shard
        several = NCCL_GIB if card and world > 1 else 0.0
        moments = 0 if card and learner.offload_optimizer else 12 if stage else 8
        always = {
            "weights": width * copies,
            "master weights, moments": float(moments * shard),
            "gradients": sums if stage in (1, 3) else 0.0,
            "communication": (several + self.transfer_gib) * GIB,
            "context": (CONTEXT_GIB if card else RANK_GIB) * GIB,
        }
        backward = {
            "gradients": 0.0 if stage in (1, 3) else sums,
            "gradients as computed": width * trained / (world if stage == 3 else 1) if stage else 0.0,
            "bucket": width * (BUCKET if card else min(trained, BUCKET)) if stage else 0.0,
            "live parameters": width * min(shape.parameters, LIVE) if stage == 3 and world > 1 else 0.0,
            **self._micro_batch(),
            "logits": LOGIT_BYTES * learner.logit_chunk * shape.vocabulary,
            "head's gradient": 0.0 if shape.adapter else (4 + width) * shape.vocabulary * shape.hidden,
        }
        update = {
            "gradients": 4 * at_once + (4 * min(trained, BUCKET) if not stage else 0.0),
            "temporaries": 0.0 if card or not stage else 8 * at_once,
        }
        in_gib = ({name: size / GIB for name, size in parts.items()} for parts in (always, backward, update))
        return Need("learner rank", *in_gib)

    def _micro_batch(self) -> dict[str, float]:
        """Bytes of one full micro-batch's activations, with at most the tokens of a batch. A mask repeats
        keys and values for all query heads, in place of those that attention would keep."""
        rollout, learner, shape = self.config.rollout, self.config.learner, self.shape
        prompt, longest, row = rollout.max_prompt_tokens, rollout.max_response_tokens, self.widest_row()
        group = sum(prompt + n * longest for n in self.shared_rows(prompt, longest))
        tokens = min(learner.tokens_per_microbatch, rollout.prompts_per_batch * group)
        layers = 1 if learner.gradient_checkpointing else shape.layers
        repeated = 2 * (shape.queries - shape.kv_width) if row else 0
        return {
            "activations": float(tokens * self.token_bytes),
            "repeated keys and values": float(tokens * self.width * layers * repeated),
            "mask": float(tokens * self.width * -(-row // ALIGNED) * ALIGNED),
        }

    @property
    def token_bytes(self) -> float:
        """Activations of one token of a micro-batch. Each layer keeps about ten vectors of the hidden size,
        four of the feed-forward size, and keys and values. Gradient checkpointing keeps one vector per layer,
        and one layer in full."""
        shape, again = self.shape, self.config.learner.gradient_checkpointing
        layers, kept = (1, shape.layers * shape.hidden) if again else (shape.layers, 0)
        vectors = 10 * shape.hidden + 4 * shape.intermediate + 4 * shape.kv_width
        return float(self.width * (kept + layers * vectors))

    def shared_rows(self, prompt: int, response: int) -> list[int]:
        """Completions per row when the learner packs a group of `group_size` completions of this length."""
        shape, group = self.shape, [max(1, response)] * self.config.rollout.group_size
        if shape.window is not None and prompt + response > shape.window:
            return [1] * len(group)
        budget = self.config.learner.tokens_per_microbatch
        return [len(row) for row in divide(max(1, prompt), group, budget, shape.even)]

    def widest_row(self) -> int:
        """Tokens of the longest row of completions that share the longest prompt, for responses of the full,
        half, quarter and eighth length; 0 if none share."""
        prompt, longest = self.config.rollout.max_prompt_tokens, self.config.rollout.max_response_tokens
        lengths = [max(1, longest >> halved) for halved in range(4)]
        counts = [max(self.shared_rows(prompt, response)) for response in lengths]
        rows = zip(counts, lengths, strict=True)
        return max((prompt + count * response for count, response in rows if count > 1), default=0)

    @property
    def kv_token_bytes(self) -> float:
        """Keys and values of one token in all layers, on one tensor-parallel rank."""
        shape, parallel = self.shape, self.config.generator.tensor_parallel
        return 2 * shape.layers * shape.kv_width * self.width / parallel

    @property
    def longest_kv_gib(self) -> float:
        """KV cache of one longest sequence, in whole blocks, and the block of a step planned ahead."""
        blocks = -(-self.config.longest // KV_BLOCK) + 1
        return blocks * KV_BLOCK * self.kv_token_bytes / GIB

    @property
    def least_kv_gib(self) -> float:
        """KV cache for eight of the longest sequences, the least that is useful."""
        return 8 * self.longest_kv_gib

    def generator(self, kv_gib: float | None = None, *, card: bool = True) -> Need:
        """One tensor-parallel rank of a generator replica with `kv_gib` of KV cache; by default the
        configured one, or the least useful one."""
        generator, shape, width = self.config.generator, self.shape, self.width
        parallel = generator.tensor_parallel
        layer = generator.batched_tokens * width * (6 * shape.hidden + 3 * shape.intermediate / parallel)
        sampler = LOGIT_BYTES * generator.max_sequences * shape.vocabulary
        captures = card and not generator.enforce_eager
        graphs = captures * GRAPHS_GIB * max(1.0, generator.captured / GRAPHS_TOKENS)
        several = NCCL_GIB if card and parallel > 1 else 0.0
        return Need(
            "generator",
            {
                "weights": width * (shape.parameters + shape.adapter) / parallel / GIB,
                "KV cache": generator.kv_cache_gib or self.least_kv_gib if kv_gib is None else kv_gib,
                "engine": (layer + sampler) / GIB + graphs,
                "communication": several + self.transfer_gib,
                "context": CONTEXT_GIB if card else REPLICA_GIB,
            },
        )

    @property
    def engines(self) -> int:
        """Engines on one card: several if each reserves a part of it."""
        generator = self.config.generator
        return max(1, min(generator.replicas, int(1 / min(1.0, generator.gpus or 1.0))))

    def shared_gib(self, generator: Need) -> float:
        """GiB on a card that one rank shares with `engines` like `generator`: the sum. With
        `generator.sleep`, the larger of a step beside what a sleeping engine keeps, and generation beside a
        waiting learner."""
        rank = self.rank()
        if self.config.generator.sleep != "step":
            return rank.gib + self.engines * generator.gib
        asleep = generator.always["engine"] + generator.always["context"]
        return max(rank.gib + asleep, rank.idle_gib + generator.gib)

    def host(self, *, cards: bool, trains: bool = True) -> dict[str, float]:
        """Host memory of a run on one machine, in GiB by purpose. With cards, weights and caches are on
        them, and the model of a generator runs in one process more."""
        learner, generator = self.config.learner, self.config.generator
        engine = self.generator(generator.cpu_kv_cache_gib, card=False).gib
        each = REPLICA_GIB + RANK_GIB if cards else engine
        needs = {
            "Ray, Redis, coordinator": BASE_GIB,
            f"generator, {generator.replicas} of": generator.replicas * each,
        }
        if not trains:
            return needs
        rank = RANK_GIB if cards else self.rank(card=False).gib
        pinned = self.shape.pinned_bytes(self.width) / GIB
        return needs | {
            f"learner rank, {learner.workers} of": learner.workers * rank,
            "published weights": self.published_gib * (2 if self.config.weights.transport == "file" else 1),
            "checkpoint's copy": self.checkpoint_gib * learner.async_checkpoint,
            "offloaded optimizer": (12 + 4) * self.trained / GIB * (cards and learner.offload_optimizer),
            "engine asleep": pinned * (generator.sleep == "step"),
        }
