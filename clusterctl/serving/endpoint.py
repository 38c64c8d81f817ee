"""The API from a client's view: one real request as proof, and a command to paste.

`/health` and `/v1/models` answer 200 while the engine is stuck or dead (vllm#53157), so only a real
answer proves a service: a completion, or the task that its model serves.
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed, StepFailed
from clusterctl.node.endpoint import COMPLETIONS, Task
from clusterctl.transport.http_answer import beginning

if TYPE_CHECKING:
    import httpx2

PROMPT = "Say hello."

KEY_VARIABLE = "CLUSTERCTL_API_KEY"

LARGEST_ANSWER = 64 * 2**20  # bytes; a long text with the probabilities of its tokens has some MiB


@dataclass(frozen=True)
class ServiceAnswer:
    """The answer to one request."""

    task: str  # `completions`, `embeddings`, ..
    # The completion, or a reasoning model's thoughts if it has produced nothing else yet; for other
    # tasks a summary: `1024 numbers`
    text: str
    tokens: int  # generated; 0 if the model generates none
    seconds: float  # from the request to the last byte


@dataclass(frozen=True)
class ServiceEndpoint:
    """The URL of a service, and the kind of request that it answers."""

    url: str  # `http://10.0.0.1:8000`, without /v1
    model: str
    chat: bool  # the tokenizer has a chat template; otherwise plain completions are requested
    task: Task = COMPLETIONS  # what the model serves
    trust: str = ""  # the client's file with the certificate to trust; empty: its own authorities

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self._chats else self.task.path

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """Return the JSON body of a request."""
        if not self._chats:
            return {"model": self.model, **self.task.body(prompt, max_tokens)}
        messages = [{"role": "user", "content": prompt}]
        return {"model": self.model, "messages": messages, "max_tokens": max_tokens}

    @property
    def _chats(self) -> bool:
        return self.chat and self.task is COMPLETIONS


REFUSALS = {
    401: (
        "refused the API key: vLLM started with another one than the head's file contains",
        "stop the service, then serve it again, so that vLLM reads the file: clusterctl stop NAME",
    ),
    404: ("serves no model named {model}", "clusterctl status shows the models"),
    503: ("is up, but its engine is not", "clusterctl logs"),
}


def post(client: httpx2.Client, url: str, body: dict[str, Any]) -> httpx2.Response:
    """Send a request and read its answer. Raises StepFailed if that is longer than LARGEST_ANSWER,
    since whatever listens on the port may send without end; otherwise as httpx2."""
    import httpx2

    # Not `json=`, which refuses NaN and halves of surrogate pairs: that is the service's to do.
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    with client.stream("POST", url, content=content, headers=headers) as answer:
        read = beginning(answer, LARGEST_ANSWER + 1)
    if len(read) > LARGEST_ANSWER:
        raise StepFailed(
            f"{url} sent more than {LARGEST_ANSWER >> 20} MiB",
            hint="clusterctl status; is another program on that port?",
        )
    names = {"x-request-id", "content-type"}  # The length and the encoding are not those of `read`
    kept = {name: value for name, value in answer.headers.items() if name in names}
    return httpx2.Response(answer.status_code, headers=kept, content=read)


def ask(
    endpoint: ServiceEndpoint,
    api_key: str,
    *,
    deadline: float,
    prompt: str = PROMPT,
    max_tokens: int = 16,
) -> ServiceAnswer:
    """Send one request and wait for its answer, at most `deadline` seconds.

    Raises ConnectionFailed if nothing answers, and StepFailed if the answer is late, an error
    status, or not a valid answer.
    """
    import httpx2

    started = time.monotonic()
    timeout = httpx2.Timeout(deadline, connect=min(deadlines.API_CONNECT, deadline))
    headers = {"Authorization": f"Bearer {api_key}"}
    url, body = endpoint.url + endpoint.path, endpoint.body(prompt, max_tokens)
    try:
        # The operator's proxy settings are meant for the Internet, not for the cluster.
        with httpx2.Client(timeout=timeout, trust_env=False, headers=headers) as client:
            response = post(client, url, body)
    except httpx2.ConnectError as error:
        raise ConnectionFailed(
            f"nothing answers at {endpoint.url}", hint="clusterctl status", detail=str(error)
        ) from error
    except httpx2.TimeoutException as error:
        raise StepFailed(
            f"no {endpoint.task.name} from {endpoint.url} within {deadline:g} s",
            hint="clusterctl status shows whether the engine is busy or stuck",
        ) from error
    except httpx2.HTTPError as error:
        raise StepFailed(
            f"{endpoint.url} closed the connection before it answered",
            hint="clusterctl logs",
            detail=str(error),
        ) from error
    code = response.status_code
    if not response.is_success:
        reason, hint = REFUSALS.get(code, (f"answered with HTTP status {code}", "clusterctl logs"))
        raise StepFailed(
            f"{endpoint.url} {reason.format(model=endpoint.model)}",
            hint=hint,
            detail=response.text[:2000],
        )
    try:
        answer = response.json()
    except ValueError:
        answer = response.text
    seconds = time.monotonic() - started
    task = endpoint.task
    try:
        if task is not COMPLETIONS:
            return ServiceAnswer(task.name, task.answer(answer), 0, seconds)
        tokens, choice = int(answer["usage"]["completion_tokens"]), answer["choices"][0]
        message = choice.get("message")
        if message is None:
            text = str(choice["text"])
        else:
            thoughts = message.get("reasoning") or message.get("reasoning_content")
            text = str(message.get("content") or thoughts or "")
        return ServiceAnswer(task.name, text, tokens, seconds)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StepFailed(
            f"{endpoint.url} returned no {task.name}",
            hint=f"is another program on that port? curl {shlex.quote(endpoint.url)}/version",
            detail=str(answer)[:2000],
        ) from error


def key_line(host: str, key_path: str, *, sudo: bool) -> str:
    """Return a shell command that puts the service's key into a variable, without showing it.

    The key stays out of the screen, of the shell's history and of log files. With `sudo` the
    command uses `clusterctl exec`, which can ask for sudo's password, and puts the host's name
    before each line.
    """
    return f'export {KEY_VARIABLE}="$({_cat(host, key_path, sudo=sudo)})"'


def certificate_line(host: str, path: str, file: str, *, sudo: bool) -> str:
    """Return a shell command that fetches the gateway's certificate into a file, for clients."""
    return f"{_cat(host, path, sudo=sudo)} > {shlex.quote(file)}"


def _cat(host: str, path: str, *, sudo: bool) -> str:
    name, path = shlex.quote(host), shlex.quote(path)
    if sudo:  # Without the name of the host before each line, and the blank after it
        prefix = "awk '{sub(/^[^ ]+ +/, \"\"); print}'"
        return f"clusterctl exec --limit {name} --sudo -- cat {path} | {prefix}"
    return f"clusterctl ssh {name} cat {path}"


def curl_line(endpoint: ServiceEndpoint, *, prompt: str = PROMPT, max_tokens: int = 64) -> str:
    """Return a curl command to paste into a shell after `key_line`."""
    body = json.dumps(endpoint.body(prompt, max_tokens), ensure_ascii=False)
    json_body = f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    return f"{_curl(endpoint, endpoint.path)} {json_body}"


def models_line(endpoint: ServiceEndpoint) -> str:
    """Return a curl command that lists the service's models, to paste after `key_line`."""
    return _curl(endpoint, "/v1/models")


def _curl(endpoint: ServiceEndpoint, path: str) -> str:
    # By curl's stdin: every user of the machine sees its arguments. printf is the shell's own.
    header = f'printf "Authorization: Bearer %s" "${KEY_VARIABLE}"'
    trust = f"--cacert {shlex.quote(endpoint.trust)} " * bool(endpoint.trust)
    return f"{header} | curl -sS {trust}{shlex.quote(endpoint.url + path)} -H @-"


def python_client(endpoint: ServiceEndpoint) -> str:
    """Return the expression that makes a client of OpenAI's Python package."""
    trust = ""
    if endpoint.trust:
        context = f"ssl.create_default_context(cafile={endpoint.trust!r})"
        trust = f", http_client=openai.DefaultHttpxClient(verify={context})"
    return f'OpenAI(base_url="{endpoint.url}/v1", api_key=os.environ["{KEY_VARIABLE}"]{trust})'
