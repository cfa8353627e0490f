"""A harness of `verifiers`: the chat loop in this process. The library's chat harness instead starts a
program for each turn and installs it from the package index.

Runs in the Python that has `verifiers`, and imports nothing else of this project.
"""

from functools import cached_property
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire


class ChatHarnessConfig(vf.HarnessConfig):
    """No additional settings."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Requests one turn. The model has no tools, and its text is never executed."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        """Shared by all turns: each new client would load the machine's certificates."""
        return httpx.AsyncClient(timeout=None, verify=False, limits=httpx.Limits(max_connections=None))

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """One turn from `endpoint`, which records the trace. A refusal at a limit is no error."""
        system, prompt = self.resolve_prompt(data)
        opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        messages = [m if isinstance(m, dict) else message_to_wire(m) for m in opening]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        answer = await self._http.post(
            f"{endpoint.rstrip('/')}/chat/completions",
            json={"model": ctx.model, "messages": messages},
            headers={"Authorization": f"Bearer {secret}"},
        )
        if trace.stop_condition is None:
            answer.raise_for_status()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["ChatHarness"]
