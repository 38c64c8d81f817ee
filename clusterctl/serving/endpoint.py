"""The API from a client's side: one real answer as proof, and a line to paste.

`/health` and `/v1/models` answer 200 while the engine is stuck or dead (vllm#53157), so only an
answer that came back proves a service: a completion, or what else its model serves.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed, StepFailed
from clusterctl.node.endpoint import COMPLETIONS, Task

if TYPE_CHECKING:
    import httpx

PROMPT = "Say hello."

KEY_VARIABLE = "CLUSTERCTL_API_KEY"


@dataclass(frozen=True)
class ServiceAnswer:
    """What came back."""

    task: str  # `completions`, `embeddings`, ..
    # The completion, a reasoning model's thoughts where it gave nothing else yet; of another task
    # what came, in words: `1024 numbers`.
    text: str
    tokens: int  # Generated; 0 where the model generates none
    seconds: float  # From the request to the last byte


@dataclass(frozen=True)
class ServiceEndpoint:
    """Where a service answers, and how it is asked."""

    url: str  # `http://10.0.0.1:8000`, without /v1
    model: str
    chat: bool  # Chat requests work: the tokenizer has a chat template. Else plain completions.
    task: Task = COMPLETIONS  # What the model serves

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self._chats else self.task.path

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """The JSON of a request."""
        if not self._chats:
            return {"model": self.model, **self.task.body(prompt, max_tokens)}
        messages = [{"role": "user", "content": prompt}]
        return {"model": self.model, "messages": messages, "max_tokens": max_tokens}

    @property
    def _chats(self) -> bool:
        return self.chat and self.task is COMPLETIONS


def ask(
    endpoint: ServiceEndpoint,
    api_key: str,
    *,
    deadline: float,
    prompt: str = PROMPT,
    max_tokens: int = 16,
) -> ServiceAnswer:
    """Ask for one answer and wait for it, at most `deadline` seconds.

    Raises ConnectionFailed when nothing answers, and StepFailed when what comes is none: late,
    refused, or something else than what was asked for.
    """
    started = time.monotonic()
    answer = _post(endpoint, api_key, endpoint.body(prompt, max_tokens), deadline)
    return _read(endpoint, answer, time.monotonic() - started)


def _post(endpoint: ServiceEndpoint, api_key: str, body: Mapping[str, Any], deadline: float) -> Any:
    import httpx

    timeout = httpx.Timeout(deadline, connect=min(deadlines.API_CONNECT, deadline))
    headers = {"Authorization": f"Bearer {api_key}"}
    url = endpoint.url + endpoint.path
    try:
        # The operator's proxy settings are for the world outside, not for the cluster.
        with httpx.Client(timeout=timeout, trust_env=False) as client:
            return _answer(endpoint, client.post(url, json=body, headers=headers))
    except httpx.ConnectError as error:
        raise ConnectionFailed(
            f"nothing answers at {endpoint.url}", hint="clusterctl status", detail=str(error)
        ) from error
    except httpx.TimeoutException as error:
        raise StepFailed(
            f"no {endpoint.task.name} from {endpoint.url} within {deadline:g} s",
            hint="clusterctl status shows whether the engine is busy or stuck",
        ) from error
    except httpx.HTTPError as error:
        raise StepFailed(
            f"{endpoint.url} broke off the request", hint="clusterctl logs", detail=str(error)
        ) from error


_REFUSALS = {
    401: ("refused the API key", "clusterctl bootstrap copies the head's key to where it belongs"),
    404: ("serves no model called {model}", "clusterctl status names what it serves"),
    503: ("is up and its engine is not", "clusterctl logs"),
}


def _answer(endpoint: ServiceEndpoint, response: httpx.Response) -> Any:
    if response.is_success:
        try:
            return response.json()
        except ValueError:
            return response.text
    code = response.status_code
    reason, hint = _REFUSALS.get(code, (f"answered with HTTP status {code}", "clusterctl logs"))
    raise StepFailed(
        f"{endpoint.url} {reason.format(model=endpoint.model)}",
        hint=hint,
        detail=response.text[:2000],
    )


def _read(endpoint: ServiceEndpoint, answer: Any, seconds: float) -> ServiceAnswer:
    task = endpoint.task
    try:
        if task is not COMPLETIONS:
            return ServiceAnswer(task.name, task.answer(answer), 0, seconds)
        tokens = int(answer["usage"]["completion_tokens"])
        return ServiceAnswer(task.name, _text_of(answer["choices"][0]), tokens, seconds)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StepFailed(
            f"{endpoint.url} answered with something that holds no {task.name}",
            hint=f"is another program on that port? curl {shlex.quote(endpoint.url)}/version",
            detail=str(answer)[:2000],
        ) from error


def _text_of(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    if message is None:
        return str(choice["text"])
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    return str(message.get("content") or thoughts or "")


def key_line(ssh: Sequence[str], key_path: str, *, sudo: bool) -> str:
    """A shell line that puts the service's key into a variable, without showing it.

    The key stays out of the screen, of the shell's history and of log files; it is fetched over
    the same SSH that clusterctl uses. `ssh` is the command up to the host, as argv.
    """
    remote = shlex.join([*(["sudo"] if sudo else []), "cat", key_path])
    return f'export {KEY_VARIABLE}="$({shlex.join([*ssh, remote])})"'


def curl_line(endpoint: ServiceEndpoint, *, prompt: str = PROMPT, max_tokens: int = 64) -> str:
    """A request to paste into a shell, once `key_line` was."""
    body = json.dumps(endpoint.body(prompt, max_tokens), ensure_ascii=False)
    url = shlex.quote(endpoint.url + endpoint.path)
    return (
        f'curl -s {url} -H "Authorization: Bearer ${KEY_VARIABLE}" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )
