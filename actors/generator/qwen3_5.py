"""vLLM's text-only classes of Qwen3.5, for an environment without torchvision, such as the CPU set.

vLLM keeps them in one module with the classes for images, and for those transformers imports functions of
torchvision. Text calls none of these, so an empty module stands for them during the import.
"""

import sys
from types import ModuleType

_functions = ModuleType("torchvision.transforms.v2")
_functions.functional = None  # type: ignore[attr-defined]
sys.modules[_functions.__name__] = _functions
try:
    from vllm.model_executor.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM
finally:
    del sys.modules[_functions.__name__]

__all__ = ["Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"]
