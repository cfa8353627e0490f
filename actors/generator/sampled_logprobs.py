"""The log-probs of a sequence as plain numbers.

vLLM keeps a rank, a token and a text beside every log-prob. Training reads one number a token; keeping only
that saves a replica a tenth and more of its processor time.
"""

from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.logprobs import LogprobsProcessor


class SampledLogprobs(LogprobsProcessor):
    """`logprobs` of a completion is the list of its sampled tokens' log-probs."""

    def __init__(self) -> None:
        super().__init__(
            tokenizer=None,
            logprobs=[],
            prompt_logprobs=None,
            cumulative_logprob=None,
            num_logprobs=0,
            num_prompt_logprobs=None,
        )

    def update_from_output(self, output: EngineCoreOutput) -> None:
        if output.new_logprobs is not None:
            # (new tokens, 1): vLLM puts the sampled token first, and `logprobs=0` asks for no other.
            self.logprobs.extend(output.new_logprobs.logprobs[:, 0].tolist())
