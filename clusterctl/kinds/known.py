"""All kinds of models. A new one is a module beside this one, and a line here."""

from __future__ import annotations

from typing import Tuple

from clusterctl.kinds.classify import CLASSIFY
from clusterctl.kinds.embed import EMBED
from clusterctl.kinds.kind import ModelKind
from clusterctl.kinds.ocr import OCR
from clusterctl.kinds.rerank import RERANK
from clusterctl.kinds.speech import SPEECH
from clusterctl.kinds.speech_out import SPEECH_OUT
from clusterctl.kinds.text import TEXT
from clusterctl.kinds.tokens import TOKENS
from clusterctl.kinds.vision import VISION

# In the order in which an unknown model is asked, the most specific first: one that embeds can
# score as well, and one that scores can classify. What reads pictures and pages is known by its
# config.json.
ASKED: Tuple[ModelKind, ...] = (TEXT, EMBED, RERANK, CLASSIFY, TOKENS, SPEECH)

KINDS: Tuple[ModelKind, ...] = (*ASKED, OCR, VISION, SPEECH_OUT)

# Of every model; vLLM's other paths are for administration.
COMMON_PATHS = ("/tokenize", "/detokenize", "/v1/models")

PATHS: Tuple[str, ...] = tuple(
    dict.fromkeys(path for kind in KINDS if not kind.refused for path in kind.paths)
)


def kind_named(name: str) -> ModelKind:
    """Return the kind of that name. Supervisors of older versions name none, or its answers."""
    return next((kind for kind in KINDS if name in (kind.name, kind.result)), TEXT)


def planned_kind(architecture: str, *, pictures: bool = False) -> str:
    """Return the name of the kind that config.json shows; empty where vLLM has to be asked.

    `architecture`: the first of `architectures`; `pictures`: it has a part that reads them.
    """
    found = next((kind.name for kind in KINDS if kind.has(architecture)), "")
    return found or (VISION.name if pictures else "")
