"""What a served model may be asked, and what its answer must hold. Pure.

Whether a model generates is decided by vLLM as it loads (`--runner auto`, files beside the
weights), so the running server is asked, completions first: a model that generates is asked
nothing else. vLLM 0.32 has the paths only that its model serves, and answers 404 for others; before
0.12 it had them all, and answered 400; 501 is said of a task that another setting would bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict

# Statuses that a server has for a task which is none of its own.
NOT_SERVED = frozenset({400, 404, 405, 501})

PROMPT_TOKENS = "vllm:prompt_tokens_total"

# A request without `model`, from a text and the most tokens to generate.
Body = Callable[[str, int], Dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """A kind of request. `read` says in words what came, if there is more to say than that, and
    raises what dictionaries, lists and numbers raise when it is no answer."""

    name: str  # What the server answers: `embeddings`
    path: str
    body: Body
    read: Callable[[Any], str]
    # What moves in the metrics while it works: a pooling model generates no token.
    counter: str = PROMPT_TOKENS

    def answer(self, content: Any) -> str:
        """As `read`, for whatever came. Raises ValueError."""
        try:
            return self.read(content)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no {self.name} in {str(content)[:200]} ({error!r})") from error


def _completion(text: str, tokens: int) -> Dict[str, Any]:
    return {"prompt": text, "max_tokens": tokens, "temperature": 0}


def _input(text: str, _tokens: int) -> Dict[str, Any]:
    return {"input": text}


def _pair(text: str, _tokens: int) -> Dict[str, Any]:
    return {"query": text, "documents": [text]}


def _read_completion(content: Any) -> str:
    """Whatever the text: random weights answer with anything."""
    str(content["choices"][0]["text"])
    return ""


def _read_embedding(content: Any) -> str:
    return _numbers(content["data"][0]["embedding"])


def _read_score(content: Any) -> str:
    return f"{float(content['results'][0]['relevance_score']):.3g} for a text and itself"


def _read_classes(content: Any) -> str:
    probabilities = content["data"][0]["probs"]
    _numbers(probabilities)
    return f"{len(probabilities)} of them"


def _read_pooled(content: Any) -> str:
    """A vector of the whole text, or one of each token."""
    found = content["data"][0]["data"]
    if isinstance(found[0], list):
        return f"{len(found)} x {_numbers(found[0])}"
    return _numbers(found)


def _numbers(vector: Any) -> str:
    if not vector or not all(isinstance(number, (int, float)) for number in vector):
        raise ValueError("no vector of numbers")
    return f"{len(vector)} numbers"


COMPLETIONS = Task(
    "completions",
    "/v1/completions",
    _completion,
    _read_completion,
    counter="vllm:generation_tokens_total",
)

# In the order in which they are tried, the most telling first: what embeds can score as well, and
# what scores can classify.
TASKS = (
    COMPLETIONS,
    Task("embeddings", "/v1/embeddings", _input, _read_embedding),
    Task("scores", "/rerank", _pair, _read_score),
    Task("classes", "/classify", _input, _read_classes),
    Task("pooling", "/pooling", _input, _read_pooled),
)


def task_of(name: str) -> Task:
    """The task of that name; completions for none, as a supervisor of an older version has it."""
    return next((task for task in TASKS if task.name == name), COMPLETIONS)
