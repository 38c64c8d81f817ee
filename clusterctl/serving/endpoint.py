"""The API from a client's view: one real request as proof, and a command to paste.

`/health` and `/v1/models` answer 200 while the engine is stuck or dead (vllm#53157), so only a real
answer proves a service: a completion, or whatever its kind of model answers.
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed, StepFailed
from clusterctl.kinds.kind import Ask, ModelKind
from clusterctl.kinds.text import CHAT, TEXT
from clusterctl.transport.http_answer import beginning

if TYPE_CHECKING:
    import httpx2

PROMPT = "Say hello."

KEY_VARIABLE = "CLUSTERCTL_API_KEY"

LARGEST_ANSWER = 64 * 2**20  # bytes; a long text with the probabilities of its tokens has some MiB


@dataclass(frozen=True)
class ServiceAnswer:
    """The answer to one request."""

    kind: str  # Of the model: `text`, `embed`, ..
    # The completion, or a reasoning model's thoughts if it has produced nothing else yet; for other
    # kinds a summary: `1024 numbers`
    text: str
    tokens: int  # generated; 0 if the model generates none
    seconds: float  # from the request to the last byte
    task: str = ""  # What the kind answers: `completions`, `embeddings`, ..


@dataclass(frozen=True)
class ServiceEndpoint:
    """The URL of a service, and the kind of request that it answers."""

    url: str  # `http://10.0.0.1:8000`, without /v1
    model: str
    chat: bool  # the tokenizer has a chat template; otherwise plain completions are requested
    kind: ModelKind = TEXT  # of the model
    trust: str = ""  # the client's file with the certificate to trust; empty: its own authorities

    @property
    def asked(self) -> ModelKind:
        """How clients call it."""
        return CHAT if self.chat and self.kind is TEXT else self.kind

    def request(self, prompt: str, max_tokens: int) -> Ask:
        return self.asked.ask(prompt, max_tokens)


REFUSALS = {
    401: (
        "refused the API key: vLLM started with another one than the head's file contains",
        "stop the service, then serve it again, so that vLLM reads the file: clusterctl stop NAME",
    ),
    404: ("serves no model named {model}", "clusterctl status shows the models"),
    503: ("is up, but its engine is not", "clusterctl logs"),
}


def post(client: httpx2.Client, url: str, body: dict[str, Any]) -> httpx2.Response:
    """Send a request in JSON, like `send`."""
    # Not `json=`, which refuses NaN and halves of surrogate pairs: that is the service's to do.
    return send(client, url, ("application/json", json.dumps(body).encode()))


def send(client: httpx2.Client, url: str, body: tuple[str, bytes]) -> httpx2.Response:
    """Send a request (content type, content) and read its answer. Raises StepFailed if that is
    longer than LARGEST_ANSWER, since whatever listens on the port may send endlessly; otherwise
    what httpx2 raises."""
    import httpx2

    headers = {"Content-Type": body[0]}
    with client.stream("POST", url, content=body[1], headers=headers) as answer:
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
    kind = endpoint.asked
    request, read = kind.first(prompt, max_tokens)
    url, body = endpoint.url + request.path, request.encoded(endpoint.model)
    try:
        # The operator's proxy settings are meant for the Internet, not for the cluster.
        with httpx2.Client(timeout=timeout, trust_env=False, headers=headers) as client:
            response = send(client, url, body)
    except httpx2.ConnectError as error:
        raise ConnectionFailed(
            f"nothing answers at {endpoint.url}", hint="clusterctl status", detail=str(error)
        ) from error
    except httpx2.TimeoutException as error:
        raise StepFailed(
            f"no {kind.result} from {endpoint.url} within {deadline:g} s",
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
    try:
        text = kind.answer(answer, read)
        tokens = int(answer["usage"]["completion_tokens"]) if kind.name == TEXT.name else 0
    except (KeyError, TypeError, ValueError) as error:
        raise StepFailed(
            f"{endpoint.url} returned no {kind.result}",
            hint=f"is another program on that port? curl {shlex.quote(endpoint.url)}/version",
            detail=str(answer)[:2000],
        ) from error
    return ServiceAnswer(kind.name, text, tokens, seconds, kind.result)


def key_line(host: str, key_path: str, *, sudo: bool) -> str:
    """Return a shell command that puts the service's key into a variable, without showing it.

    The key does not appear on the screen, in the shell's history or in log files. With `sudo` the
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


def curl_line(endpoint: ServiceEndpoint, *, prompt: str = PROMPT) -> str:
    """Return a curl command to paste into a shell after `key_line`."""
    request = endpoint.request(prompt, 64)
    body = {"model": endpoint.model, **request.body}
    if request.sound:
        fields = [shlex.quote(f"{name}={value}") for name, value in body.items()]
        sent = " ".join(f"-F {field}" for field in [*fields, "file=@sound.wav"])
    else:
        text = shlex.quote(json.dumps(body, ensure_ascii=False))
        sent = f"-H 'Content-Type: application/json' -d {text}"
    return f"{_curl(endpoint, request.path)} {sent}"


def models_line(endpoint: ServiceEndpoint) -> str:
    """Return a curl command that lists the service's models, to paste after `key_line`."""
    return _curl(endpoint, "/v1/models")


def _curl(endpoint: ServiceEndpoint, path: str) -> str:
    # By curl's stdin: every user of the machine sees its arguments. printf is the shell's own.
    header = f'printf "Authorization: Bearer %s" "${KEY_VARIABLE}"'
    trust = f"--cacert {shlex.quote(endpoint.trust)} " * bool(endpoint.trust)
    return f"{header} | curl -sS {trust}{shlex.quote(endpoint.url + path)} -H @-"


def python_client(endpoint: ServiceEndpoint) -> str:
    """Return the expression that creates a client of OpenAI's Python package."""
    trust = ""
    if endpoint.trust:
        context = f"ssl.create_default_context(cafile={endpoint.trust!r})"
        trust = f", http_client=openai.DefaultHttpxClient(verify={context})"
    return f'OpenAI(base_url="{endpoint.url}/v1", api_key=os.environ["{KEY_VARIABLE}"]{trust})'
