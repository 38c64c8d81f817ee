"""Models that generate text, by a plain prompt or by a chat template; reasoning ones included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterctl.kinds.kind import Ask, Bench, ModelKind


def _read(content: Any) -> str:
    """Read a completion, or the thoughts of a reasoning model that has said nothing else yet."""
    choice = content["choices"][0]
    message = choice.get("message")
    if message is None:
        return str(choice["text"])  # Any text will do: the weights may be random
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    return str(message.get("content") or thoughts or "")


TEXT = ModelKind(
    name="text",
    result="completions",
    paths=("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    ask=lambda text, tokens: Ask(
        "/v1/completions", {"prompt": text, "max_tokens": tokens, "temperature": 0}
    ),
    read=_read,
    generates=True,
    unit="tokens",
    bench=Bench("openai", "/v1/completions"),
)

CHAT = replace(
    TEXT,
    ask=lambda text, tokens: Ask(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": text}], "max_tokens": tokens},
    ),
)
"""The same for clients, where the tokenizer has a chat template."""
