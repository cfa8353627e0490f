"""Memory of a run: a table of GiB by purpose for each process. Pure arithmetic, explained in
docs/explanation/gpus.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hora_rl.common.config import PACKED_BYTES, Config, GeneratorConfig, LearnerConfig, LoraConfig
from hora_rl.learner.model.flops import widths

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GIB = 2**30
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
CONTEXT_GIB, NCCL_GIB = 1.0, 0.5
"""CUDA context, kernels and workspaces of a process; channels of a communicator over several cards."""
REPLICA_GIB, RANK_GIB, BASE_GIB = 2.2, 1.0, 1.5
"""Host memory without weights: a replica, a rank, and Ray, Redis, coordinator and verifier together."""
KV_BLOCK = 16
"""Tokens of a block of vLLM's KV cache on a GPU."""
GRAPHS_GIB, GRAPHS_TOKENS = 1.0, 1024
"""CUDA graphs of vLLM's engine up to so many tokens, without `enforce_eager`. 0.4 measured up to 512."""
BUCKET, LIVE = 5e8, 1e9
"""Elements that DeepSpeed reduces at once (`reduce_bucket_size`), fully allocated on a card, and most that
ZeRO-3 gathers (`max_live_parameters`)."""
LOGIT_BYTES = 20
"""Per logit in a backward pass of the head: 16 bits, float32, scaled by temperature, softmax, gradients."""
PACKED = 3
"""Chunks of weights on each side of a transfer over NCCL (vLLM's `packed_tensor.py`): the tensors of one,
their concatenation, and the chunk before. A chunk may exceed `PACKED_BYTES` by the largest tensor."""
PINNED = 2
"""Pinned memory of a sleeping engine, relative to its weights: torch rounds blocks up to powers of two."""

Table = dict[str, float]


def shares_a_card(generator: GeneratorConfig, learner: LearnerConfig) -> bool:
    return (generator.gpus or 1.0) < 1 and (learner.gpus or 1.0) < 1


def total(table: Table) -> float:
    return sum(table.values())


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameters of a model and of its adapter (0: none), and the sizes of its activations. `kv_width` and
    `query_width`: elements of a token's keys and of its queries in a layer. `blocks`: on a card a mask of
    blocks takes the place of the dense one."""

    parameters: int
    adapter: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    query_width: int
    vocabulary: int
    blocks: bool = True

    @classmethod
    def of(cls, hf: PreTrainedModel, lora: LoraConfig | None) -> ModelShape:
        """The shape of a model, which may be on the meta device, and of its adapter."""
        import torch

        from hora_rl.learner.model.cuda_kernels import takes_block_masks

        text = hf.config.get_text_config()
        queries, keys = zip(*widths(text), strict=True)
        linear = {name: m for name, m in hf.named_modules() if isinstance(m, torch.nn.Linear)}
        targets = lora.targets if lora else ()
        adapted = [m for name, m in linear.items() if name.rpartition(".")[2] in targets]
        return cls(
            parameters=sum(p.numel() for p in hf.parameters()),
            adapter=sum(lora.rank * (m.in_features + m.out_features) for m in adapted) if lora else 0,
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            kv_width=max(keys),
            query_width=sum(queries) // len(queries),
            vocabulary=text.vocab_size,
            blocks=takes_block_masks(hf),
        )


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
    def weights_gib(self) -> float:
        """The full model without an adapter."""
        return self.shape.parameters * self.width / GIB

    @property
    def published_gib(self) -> float:
        """One published version: the trained weights."""
        return (self.shape.adapter or self.shape.parameters) * self.width / GIB

    @property
    def checkpoint_gib(self) -> float:
        """One checkpoint of all ranks: weights, Adam's moments, and in 16 bits the master copy."""
        return self.published_gib * (7 if self.width == 2 else 3)

    @property
    def transfer_gib(self) -> float:
        """Buffers on each side for weight transfer between cards. The largest tensor is the embedding."""
        largest = self.shape.vocabulary * self.shape.hidden * self.width
        buffers = NCCL_GIB + PACKED * (PACKED_BYTES + largest) / GIB
        return buffers * (self.config.weights.transport == "nccl")

    def rank(self, *, card: bool = True) -> Table:
        """One learner rank, on a card or (without `card`) in host memory."""
        from hora_rl.learner.model.optimizer import effective_stage

        learner, shape, width = self.config.learner, self.shape, self.width
        stage, world = effective_stage(learner, self.config.model.dtype), learner.workers
        trained, parts = shape.adapter or shape.parameters, world if stage == 3 else 1
        shard = trained / (world if stage else 1)
        reference = shape.parameters if learner.objective.kl and not shape.adapter else 0
        live = min(shape.parameters, LIVE) if parts > 1 else 0
        moments = 0 if card and learner.offload_optimizer else 12 if stage else 8
        sums = 4 * (shard if stage >= 2 else trained)
        computed = trained / parts + (BUCKET if card else min(trained, BUCKET)) if stage else 0
        dense, process = not (card and shape.blocks), CONTEXT_GIB + NCCL_GIB * (world > 1)
        head = 0 if shape.adapter else (4 + width) * shape.vocabulary * shape.hidden
        sizes = {
            "weights": width * ((shape.parameters + shape.adapter + reference) / parts + live),
            "optimizer": moments * shard + (sums if stage in (1, 3) else 0),
            "gradients": width * computed + (0 if stage in (1, 3) else sums),
            "activations": max(self.micro_batch_bytes(mask=dense), 0 if card else 8 * shard),
            "logits": LOGIT_BYTES * learner.logit_chunk * shape.vocabulary + head,
            "context": (self.transfer_gib + (process if card else RANK_GIB)) * GIB,
        }
        return {purpose: size / GIB for purpose, size in sizes.items()}

    def micro_batch_bytes(self, *, mask: bool) -> float:
        """Activations of one full micro-batch, with `mask` also the dense one of rows that share a prompt.

        Each layer keeps about ten vectors of the hidden size, four of the feed-forward size, keys and values,
        and both repeated for all query heads. Gradient checkpointing keeps one vector per layer, and one
        layer in full, whose backward pass adds two of the feed-forward size."""
        shape, rollout, learner = self.shape, self.config.rollout, self.config.learner
        layers, kept = shape.layers, 0
        if learner.gradient_checkpointing:
            layers, kept = 1, shape.layers * shape.hidden + 2 * shape.intermediate
        layer = 10 * shape.hidden + 4 * shape.intermediate + 2 * shape.kv_width + 2 * shape.query_width
        longest, others = self.config.longest, (rollout.group_size - 1) * rollout.max_response_tokens
        tokens = min(learner.tokens_per_microbatch, rollout.batch_size * longest)
        row = min(tokens, longest + others) if mask and others else 0
        return float(tokens * self.width * (kept + layers * layer + row))

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

    @property
    def sampler_gib(self) -> float:
        """Logits of one sequence in an engine."""
        return LOGIT_BYTES * self.shape.vocabulary / GIB

    def generator(self, kv_gib: float | None = None, *, card: bool = True) -> Table:
        """One tensor-parallel rank of a generator replica with `kv_gib` of KV cache; by default the
        configured one, or the least useful one."""
        generator, shape, parallel = self.config.generator, self.shape, self.config.generator.tensor_parallel
        vectors = 6 * shape.hidden + 3 * shape.intermediate / parallel
        captures = card and not generator.enforce_eager
        graphs = captures * GRAPHS_GIB * max(1.0, generator.captured / GRAPHS_TOKENS)
        process = CONTEXT_GIB + NCCL_GIB * (parallel > 1)
        sampler = generator.max_sequences * self.sampler_gib
        return {
            "weights": self.width * (shape.parameters + shape.adapter) / parallel / GIB,
            "KV cache": generator.kv_cache_gib or self.least_kv_gib if kv_gib is None else kv_gib,
            "engine": generator.batched_tokens * self.width * vectors / GIB + sampler + graphs,
            "context": self.transfer_gib + (process if card else REPLICA_GIB),
        }

    @property
    def shared(self) -> bool:
        return shares_a_card(self.config.generator, self.config.learner)

    @property
    def engines(self) -> int:
        """Engines on one card: several if each reserves a part of it."""
        generator = self.config.generator
        return max(1, min(generator.replicas, int(1 / min(1.0, generator.gpus or 1.0))))

    def phases(self) -> list[tuple[float, float]]:
        """(rank, engine) in GiB on a card that they share. With `generator.sleep` a step beside a sleeping
        engine, then generation beside a waiting rank; else one phase."""
        rank, engine = self.rank(), self.generator()
        if self.config.generator.sleep != "step":
            return [(total(rank), total(engine))]
        waiting = rank["weights"] + rank["optimizer"] + rank["context"]
        return [(total(rank), engine["engine"] + engine["context"]), (waiting, total(engine))]

    @property
    def card_gib(self) -> float:
        if not self.shared:
            return max(total(self.rank()), total(self.generator()))
        return max(rank + self.engines * engine for rank, engine in self.phases())

    def host(self, *, cards: bool, trains: bool = True) -> Table:
        """Host memory of a run on one machine. With cards, weights and caches are on them, and the model of a
        generator runs in one process more."""
        learner, generator = self.config.learner, self.config.generator
        replica, rank = REPLICA_GIB + RANK_GIB, RANK_GIB
        if not cards:
            replica = total(self.generator(generator.cpu_kv_cache_gib, card=False))
            rank = total(self.rank(card=False))
        copies = 2 if self.config.weights.transport == "file" else 1
        offloaded = (12 + 4) / self.width * self.published_gib
        return {
            "Ray, Redis, coordinator": BASE_GIB,
            f"generator, {generator.replicas} of": generator.replicas * replica,
            f"learner rank, {learner.workers} of": learner.workers * rank * trains,
            "published weights": copies * self.published_gib * trains,
            "checkpoint's copy": self.checkpoint_gib * trains,
            "offloaded optimizer": offloaded * (trains and cards and learner.offload_optimizer),
            "engine asleep": PINNED * self.weights_gib * (generator.sleep == "step"),
        }
