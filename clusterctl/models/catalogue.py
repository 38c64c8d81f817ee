"""Models that have a short name here: where to find them and which vLLM flags each needs.

Head and layer counts are those of the public config.json files. The flags come from vLLM's
documentation (features/reasoning_outputs, features/tool_calling) and were looked up in the
registries of the releases named at each flag. None of these models runs code of its own, so
none gets --trust-remote-code: vLLM has an implementation of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.models.counts import Shape
from clusterctl.models.version import Version


@dataclass(frozen=True)
class ModelFlag:
    """Arguments of `vllm serve`, and the releases that have them."""

    tokens: tuple[str, ...]
    since: Version = (0, 0, 0)
    until: Version | None = None
    """The first release without them."""

    def known_to(self, version: Version | None) -> bool:
        """Whether that release takes them; an unknown version counts as the newest."""
        if version is None:
            return self.until is None
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue."""

    alias: str
    hub_id: str
    shape: Shape
    other_names: tuple[str, ...] = ()
    """Further aliases; they are also directory names that people give such a model."""
    flags: tuple[ModelFlag, ...] = ()
    note: str = ""

    @property
    def organisation(self) -> str:
        return self.hub_id.partition("/")[0]

    @property
    def directory(self) -> str:
        """What `git clone` or a download by name calls the directory."""
        return self.hub_id.partition("/")[2]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.alias, *self.other_names)

    def tokens(self, version: Version | None) -> tuple[str, ...]:
        """The flags that this vLLM knows, as tokens of a command line."""
        known = (flag.tokens for flag in self.flags if flag.known_to(version))
        return tuple(token for tokens in known for token in tokens)


_HERMES_TOOLS = ModelFlag(("--enable-auto-tool-choice", "--tool-call-parser", "hermes"))

_R1_REASONING = (
    ModelFlag(("--enable-reasoning",), until=(0, 9, 0)),
    ModelFlag(("--reasoning-parser", "deepseek_r1")),
)
"""Below 0.9 a reasoning parser did nothing without --enable-reasoning (vllm#17452)."""

_QWEN3_REASONING = ModelFlag(("--reasoning-parser", "qwen3"), since=(0, 9, 0))

_GEMMA4 = ModelFlag(
    ("--reasoning-parser", "gemma4", "--enable-auto-tool-choice", "--tool-call-parser", "gemma4"),
    since=(0, 19, 0),
)

_GPT_OSS_TOOLS = ModelFlag(
    ("--enable-auto-tool-choice", "--tool-call-parser", "openai"), since=(0, 10, 2)
)
"""The reasoning parser (openai_gptoss) is set by vLLM itself for this architecture."""

_GEMMA4_NOTE = (
    "the model without -it has no chat template of its own: add "
    "-- --chat-template PATH (vLLM has examples/tool_chat_template_gemma4.jinja)"
)

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct",
        Shape(12, (2,), 28, 32768),
        ("qwen2.5-1.5b-instruct",),
        (_HERMES_TOOLS,),
    ),
    Entry(
        "qwen3-8b",
        "Qwen/Qwen3-8B",
        Shape(32, (8,), 36, 40960),
        (),
        (_QWEN3_REASONING, _HERMES_TOOLS),
        "thinks before it answers; a request may turn that off with "
        '"chat_template_kwargs": {"enable_thinking": false}',
    ),
    Entry(
        "deepseek-r1-1.5b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        Shape(12, (2,), 28, 131072),
        ("deepseek-r1-distill-qwen-1.5b",),
        _R1_REASONING,
    ),
    Entry(
        "deepseek-r1-7b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        Shape(28, (4,), 28, 131072),
        ("deepseek-r1-distill-qwen-7b",),
        _R1_REASONING,
        "28 attention heads and 4 key/value heads: --tp 1, 2 or 4",
    ),
    Entry(
        "deepseek-r1-32b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        Shape(40, (8,), 64, 131072),
        ("deepseek-r1-distill-qwen-32b",),
        _R1_REASONING,
        "61 GiB of weights in bfloat16",
    ),
    Entry(
        "deepseek-r1-70b",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        Shape(64, (8,), 80, 131072),
        ("deepseek-r1-distill-llama-70b",),
        _R1_REASONING,
        "131 GiB of weights in bfloat16",
    ),
    Entry(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        Shape(64, (8,), 24, 131072),
        (),
        (_GPT_OSS_TOOLS,),
        "weights are mxfp4: 13.7 GiB",
    ),
    Entry(
        "gemma-4-26b",
        "google/gemma-4-26B-A4B-it",
        Shape(16, (8, 2), 30, 262144, multimodal=True),
        ("gemma-4-26b-a4b-it", "gemma4-26b", "gemma-4-26b-it"),
        (_GEMMA4,),
        "a mixture of experts: 48.5 GiB of weights in bfloat16, 4B active",
    ),
    Entry(
        "gemma-4-26b-base",
        "google/gemma-4-26B-A4B",
        Shape(16, (8, 2), 30, 262144, multimodal=True),
        ("gemma-4-26b-a4b",),
        (_GEMMA4,),
        _GEMMA4_NOTE,
    ),
    Entry(
        "gemma-4-31b",
        "google/gemma-4-31B-it",
        Shape(32, (16, 4), 60, 262144, multimodal=True),
        ("gemma-4-31b-it", "gemma4-31b"),
        (_GEMMA4,),
        "58.9 GiB of weights in bfloat16",
    ),
)


def by_alias(name: str) -> Entry | None:
    """The entry with that alias, whatever its case."""
    folded = name.casefold()
    return next((entry for entry in CATALOGUE if folded in entry.names), None)


def by_hub_id(hub_id: str) -> Entry | None:
    """The entry of that Hub id, whatever its case."""
    folded = hub_id.casefold()
    return next((entry for entry in CATALOGUE if entry.hub_id.casefold() == folded), None)


def by_directory(name: str) -> Entry | None:
    """The entry that a directory of that name holds, judging by the name alone."""
    folded = name.casefold()
    found = (entry for entry in CATALOGUE if entry.directory.casefold() == folded)
    return next(found, None) or by_alias(name)
