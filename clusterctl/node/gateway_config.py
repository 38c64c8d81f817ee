"""The configuration of the gateway, an HAProxy (2.6 or newer), as text. No I/O.

Members and keys change at run time, over HAProxy's socket (`node/gateway.py`); a change of anything
else is a reload, which loses no request. HAProxy's own checks only detect closed ports, within half
a second; the supervisor's proof decides whether a member gets requests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterable, List, Mapping, Sequence, Tuple

from clusterctl.kinds.known import COMMON_PATHS, PATHS

# Bytes of a request that are read before it is sent on: the model's name must be within them, and
# a longer request is not sent again when a replica fails. Memory is used for what arrives.
REQUEST_BUFFER = 2**20
_FULL = REQUEST_BUFFER - 2**16  # Bytes of a body that has filled it: HAProxy keeps some for heads

_ALL_PATHS = (*PATHS, *COMMON_PATHS)

# Requests that only compute may be sent to another replica if the first one fails. Others are sent
# once: /v1/responses stores what was asked.
_ONCE = ("/v1/responses", "/v1/realtime")
_REPEATABLE = tuple(path for path in _ALL_PATHS if path not in _ONCE)

MOST_RETRIES = 3

LOOPBACK = "127.0.0.1"

KEEP_ALIVE = 5.0
"""Seconds that a client's connection may be idle."""

# Header of requests that only prove that a replica answers: they neither wake it nor keep it awake.
CANARY = "X-Clusterctl-Canary"

# Header of the answer to such a request while the replica sleeps
ASLEEP = "X-Clusterctl-Asleep"

# What kinds of models offer, and what lies below it: no empty segment, none that begins with a dot,
# and nothing encoded. `//v1`, `/v1/models/../metrics` and `/v1/models/%2e%2e/metrics` are refused.
_V1 = "|".join(path for path in _ALL_PATHS if path.startswith("/v1/"))
_V1_PATH = f"^({_V1})(/[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*)*/?$"
_OTHER_PATHS = " ".join(path for path in _ALL_PATHS if not path.startswith("/v1/"))

# Bytes of a request, with pictures and sound; more are refused.
LARGEST_REQUEST = 64 * 2**20

# Connections of one address (in IPv6 of a /64) at a time, before and after it has shown a valid key
STRANGERS_CONNECTIONS, CLIENTS_CONNECTIONS = 256, 12288
MOST_CONNECTIONS = 16384  # Of all addresses; each may need two descriptors


@dataclass(frozen=True)
class GatewayServer:
    """A member of a service in the gateway's backend."""

    name: str
    address: str
    port: int
    standby: bool = False  # Gets requests that the one before it could not answer
    spare: bool = False  # Likewise, those that no other could


@dataclass(frozen=True)
class GatewayService:
    """A service behind the gateway."""

    name: str
    models: Tuple[str, ...]  # The `model` of requests that it answers
    servers: Tuple[GatewayServer, ...]
    key: str = field(default="", repr=False)  # That its members ask for
    base: str = ""  # Of an adapter: the service whose members it has

    @property
    def backend(self) -> str:
        return f"service-{self.name}"


@dataclass(frozen=True)
class GatewayPlan:
    """Everything whose change needs a reload. The paths are those of files that it reads."""

    listens: Tuple[Tuple[str, int], ...]
    services: Tuple[GatewayService, ...]
    directory: str
    # Path of certificate and key; empty: no TLS. Clients on the head itself, which come through
    # SSH, use 127.0.0.1, which has none.
    certificate: str = ""
    certificate_version: str = ""  # Differs when the file was replaced
    # User and group that HAProxy becomes; 0: it keeps its own, which may not change them.
    user: int = 0
    threads: int = 1
    connections: int = MOST_CONNECTIONS


@dataclass(frozen=True)
class GatewayMaps:
    """The content of HAProxy's maps of keys and models."""

    names: Dict[str, str] = field(default_factory=dict)  # By the key's SHA-256 in capitals
    requests: Dict[str, str] = field(default_factory=dict)  # By name: requests a minute
    counted: Dict[str, str] = field(default_factory=dict)  # By name: has a limit of tokens
    spent: Dict[str, str] = field(default_factory=dict)  # By name: has none left today
    # By name, and by name/model: is for some models only, and this is one
    models: Dict[str, str] = field(default_factory=dict)
    # By backend: what its kind of model answers, and where
    offers: Dict[str, str] = field(default_factory=dict)

    def files(self) -> Dict[str, Dict[str, str]]:
        """Return the maps by their file's name."""
        return {
            "keys.map": self.names,
            "requests.map": self.requests,
            "counted.map": self.counted,
            "spent.map": self.spent,
            "models-of-keys.map": self.models,
            "offers.map": self.offers,
        }


def map_text(entries: Mapping[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in sorted(entries.items()))


def error_body(message: str, kind: str, code: int) -> str:
    """Return an error in the form that OpenAI's clients expect."""
    return json.dumps(
        {"error": {"message": message, "type": kind, "param": None, "code": code}},
        separators=(",", ":"),
    )


_NO_KEY = "no valid API key: send one as `Authorization: Bearer KEY`"
_TOO_MANY = "this key has used up its requests of the last minute"
_SPENT = "this key has used up its tokens of today (UTC)"
_UNCOUNTED = (
    "this key has a limit of tokens, so a stream must report them: set "
    "stream_options.include_usage to true"
)
_NO_PATH = f"the gateway serves {', '.join(_ALL_PATHS)} and /health"
_NO_METHOD = "the gateway passes on GET, HEAD, POST and DELETE"
_TOO_LARGE = f"the request has more than {LARGEST_REQUEST >> 20} MiB"
_NO_LENGTH = "a request of more than 1 MiB needs a Content-Length"
_NO_UPGRADE = "this key has limits, which a WebSocket would not keep"
_OTHER_MODEL = "this key is for other models: `clusterctl key ls` shows which"
_HIDDEN_MODEL = (
    "this key is for some models only, and the one asked for has adapters: send JSON of at most "
    "960 KiB that names its `model` once"
)
_NO_MODEL = "no service of this cluster serves that model: /v1/models lists them"
_NOT_OFFERED = "this model does not offer that path"
_NAMELESS = (
    "the model of this request is not known: name it in `model` within the first "
    "MiB of a JSON body, before the file of a form, or in the header X-Model"
)
_FAILURES = (
    (400, "the request cannot be read", "BadRequestError"),
    (408, "the request did not arrive in time", "BadRequestError"),
    (502, "the replica that had this request failed", "InternalServerError"),
    (503, "no replica of this model is ready", "ServiceUnavailableError"),
    (504, "the replica that had this request did not answer in time", "InternalServerError"),
)


def gateway_config(plan: GatewayPlan, ready: Iterable[Tuple[str, str]]) -> str:
    """Return HAProxy's configuration. It contains the cluster's key, which members require.

    `ready`: backend and server of the members that get requests from the start.
    """
    return "\n".join(
        [
            *_general(plan),
            *_front(plan),
            *_backends(plan, frozenset(ready)),
            "",
        ]
    )


def _general(plan: GatewayPlan) -> List[str]:
    user = [f"    uid {plan.user}", f"    gid {plan.user}"] if plan.user else []
    failures = [
        f"    http-error status {code} content-type application/json "
        f"string '{error_body(message, kind, code)}'"
        for code, message, kind in _FAILURES
    ]
    return [
        "global",
        f"    stats socket {plan.directory}/admin.sock mode 600 level admin expose-fd listeners",
        # The supervisor reads them; nothing of a request or an answer is logged.
        # A line of each request with a key, and none of others: a flood of these cannot fill the
        # pipe that the lines go through.
        "    log stdout format raw local0 notice",
        f"    lua-load-per-thread {plan.directory}/usage.lua",
        f"    nbthread {plan.threads}",
        f"    maxconn {plan.connections}",
        f"    tune.bufsize {REQUEST_BUFFER}",
        "    hard-stop-after 1h",
        *user,
        "defaults",
        "    mode http",
        # Without it, parts of a stream wait 200 ms for more to come.
        "    option http-no-delay",
        # vLLM closes idle connections after 5 s, maybe just as the next request is sent.
        "    option http-server-close",
        # A reload must not close a client's idle connection just as its next request is sent. Until
        # KEEP_ALIVE has passed, it may get one answer by the previous configuration.
        "    option idle-close-on-response",
        # A host without power closes no connection: without a sign of its kernel, however busy its
        # programs are, its requests count as lost after 14 s, and are sent to another replica.
        "    option srvtcpka",
        "    srvtcpka-idle 5s",
        "    srvtcpka-intvl 3s",
        "    srvtcpka-cnt 3",
        "    timeout connect 2s",
        "    timeout http-request 10s",
        f"    timeout http-keep-alive {KEEP_ALIVE:g}s",
        "    timeout client 1h",
        "    timeout server 1h",
        "    timeout tunnel 1h",
        *failures,
    ]


def _answer(status: int, message: str, kind: str, condition: str, header: str = "") -> str:
    return (
        f"    http-request return status {status} content-type application/json "
        f"string '{error_body(message, kind, status)}' {f'hdr {header} ' * bool(header)}{condition}"
    )


def _refuse(status: int, message: str, kind: str, condition: str, header: str = "") -> List[str]:
    """Answer a request without any member, and count it in a table instead of a log line."""
    return [
        f"    http-request set-log-level silent {condition}",
        f"    http-request sc-inc-gpc0(2) {condition}",
        _answer(status, message, kind, condition, header),
    ]


def _binds(plan: GatewayPlan) -> List[str]:
    """Return the lines that say where to listen. With TLS, also on loopback without it."""
    tls = f" ssl crt {plan.certificate} ssl-min-ver TLSv1.2 alpn h2,http/1.1"
    own = {(LOOPBACK, port) for _, port in plan.listens} if plan.certificate else set()
    return [
        f"    bind {f'[{host}]' if ':' in host else host}:{port}"
        + tls * bool(plan.certificate and host != LOOPBACK)
        for host, port in sorted({*plan.listens, *own})
    ]


def _front(plan: GatewayPlan) -> List[str]:
    in_service = [
        f"    http-request return status 200 content-type text/plain string ok "
        f"if health {{ nbsrv({service.backend}) gt 0 }}"
        for service in plan.services
    ]
    directory = plan.directory
    log = {
        "key": "%[var(txn.key)]",
        "backend": "%b",
        "server": "%s",
        "status": "%ST",
        "retries": "%rc",
        "ended": "%ts",
        "prompt": "%[var(txn.prompt)]",
        "completion": "%[var(txn.completion)]",
    }
    rejected, limited, bad = "AuthenticationError", "RateLimitError", "BadRequestError"
    return [
        "frontend gateway",
        *_binds(plan),
        "    log global",
        f"    log-format {json.dumps(log, separators=(',', ':')).join(chr(39) * 2)}",
        "    filter lua.usage",
        # Silent connections and slow heads of one address must not use up those of all.
        "    tcp-request connection track-sc1 src,ipmask(32,64) table addresses",
        f"    tcp-request connection reject if {{ sc1_conn_cur gt {CLIENTS_CONNECTIONS} }}",
        f"    tcp-request connection reject if {{ sc1_conn_cur gt {STRANGERS_CONNECTIONS} }} "
        "!{ sc1_get_gpc0 gt 0 }",
        "    tcp-request connection track-sc2 int(1) table refused",
        "    acl health path /health",
        f"    acl api path_reg {_V1_PATH}",
        f"    acl api path {_OTHER_PATHS}",
        "    acl passed method GET HEAD POST DELETE",
        *in_service,
        _answer(503, "no replica is ready", "ServiceUnavailableError", "if health"),
        *_refuse(405, _NO_METHOD, bad, "if !passed"),
        *_refuse(404, _NO_PATH, "NotFoundError", "if !api"),
        # Not http_auth_bearer, which ends a key at a comma.
        "    acl bearer req.fhdr(authorization) -m beg -i 'bearer '",
        f"    http-request set-var(txn.key) req.fhdr(authorization),bytes({len('bearer ')}),"
        f"sha2(256),hex,map_str({directory}/keys.map) if bearer",
        *_refuse(401, _NO_KEY, rejected, "unless { var(txn.key) -m found }"),
        "    http-request sc-inc-gpc0(1)",
        "    http-request set-log-level notice",
        "    http-request track-sc0 var(txn.key) table requests",
        f"    http-request set-var(txn.most) var(txn.key),map_str_int({directory}/requests.map,0)",
        f"    acl counted var(txn.key),map_str({directory}/counted.map) -m found",
        "    acl limited var(txn.most) -m int gt 0",
        f"    acl restricted var(txn.key),map_str({directory}/models-of-keys.map) -m found",
        *_refuse(
            429,
            _TOO_MANY,
            limited,
            "if limited { sc0_gpc0_rate,sub(txn.most) -m int ge 0 }",
            # Seconds until one more is allowed, if they came evenly
            header="Retry-After %[int(60),div(txn.most),add(1)]",
        ),
        *_refuse(
            429,
            _SPENT,
            limited,
            f"if {{ var(txn.key),map_str({directory}/spent.map) -m found }}",
            header="Retry-After %[date,mod(86400),neg,add(86400)]",  # Seconds until midnight, UTC
        ),
        *_refuse(400, _NO_UPGRADE, bad, "if { req.hdr(upgrade) -m found } counted"),
        *_refuse(400, _NO_UPGRADE, bad, "if { req.hdr(upgrade) -m found } limited"),
        *_refuse(400, _NO_UPGRADE, bad, "if { req.hdr(upgrade) -m found } restricted"),
        *_refuse(413, _TOO_LARGE, bad, f"if {{ req.body_size gt {LARGEST_REQUEST} }}"),
        # Nothing of a body is kept before this.
        "    http-request wait-for-body time 60s if { method POST }",
        *_refuse(
            413,
            _NO_LENGTH,
            bad,
            f"if !{{ req.hdr(content-length) -m found }} {{ req.body_len gt {_FULL} }}",
        ),
        "    acl streams req.body,json_query('$.stream') -m bool",
        "    acl reports req.body,json_query('$.stream_options.include_usage') -m bool",
        *_refuse(400, _UNCOUNTED, bad, "if counted streams !reports"),
        *_model_of(plan),
        "    http-request sc-inc-gpc0(0)",
        "    http-request set-var(txn.estimate) lua.estimate if counted",
        "    http-request set-var(txn.prompt) var(txn.estimate) if counted",
        "    http-request del-header Accept-Encoding",
        "    http-request del-header X-Model",
        f"    http-request del-header {CANARY}",
        f"    acl repeatable path {' '.join(_REPEATABLE)}",
        "    http-request disable-l7-retry unless repeatable",
        "    http-request set-var(txn.session) req.hdr(x-session-id)",
        "    http-request set-var(txn.session) req.body,json_query('$.prompt_cache_key') "
        "unless { var(txn.session) -m found }",
        f"    default_backend {plan.services[0].backend}"
        if len(plan.services) == 1
        else "    use_backend %[var(txn.backend)]",
    ]


def _literal(text: str) -> str:
    """Return text quoted literally for an argument that HAProxy would search for quotes,
    environment variables and expressions: a user's own key may have any printable character."""
    escaped = text.replace("%", "%%").replace("'", "'\\''")
    return f"'{escaped}'"


def _model_of(plan: GatewayPlan) -> List[str]:
    """Find the backend by the model's name, and refuse those that the key is not for. A single
    service gets everything else, and itself rejects models that it does not have: only it knows
    the adapters that its flags name."""
    directory, listed, backend = plan.directory, [], []
    if len(plan.services) > 1:
        listed = [
            f"    http-request return status 200 content-type application/json "
            f"file {directory}/models.json if {{ path /v1/models }}"
        ]
        backend = [
            *_refuse(400, _NAMELESS, "BadRequestError", "unless { var(txn.model),length gt 0 }"),
            f"    http-request set-var(txn.backend) var(txn.model),map_str({directory}/models.map)",
            *_refuse(404, _NO_MODEL, "NotFoundError", "unless { var(txn.backend) -m found }"),
        ]
    return [
        *listed,
        "    http-request set-var(txn.model) req.body,json_query('$.model')",
        "    http-request set-var(txn.model) req.hdr(x-model) unless { var(txn.model) -m found }",
        "    http-request set-var(txn.model) lua.form_model if !{ var(txn.model) -m found } "
        "{ req.hdr(content-type) -m beg -i multipart/form-data }",
        *backend,
        *_only_models_of_key(plan),
    ]


def _only_models_of_key(plan: GatewayPlan) -> List[str]:
    """Refuse other models than those that the key is for. Services answer no names but their own
    and those of their adapters, so what one with adapters will read as the name has to be certain.
    Adapters of --lora-modules are not known here, and not protected (docs/gateway.md)."""
    bases = dict.fromkeys(service.base for service in plan.services if service.base)
    certain = []
    if bases:
        adapted = " ".join(s.backend for s in plan.services if s.name in bases or s.base)
        certain = [
            f"    acl adapted var(txn.backend) -m str {adapted}",
            "    http-request set-var(txn.model) lua.only_model if restricted adapted",
            *_refuse(
                400,
                _HIDDEN_MODEL,
                "BadRequestError",
                "if restricted adapted !{ var(txn.model),length gt 0 }",
            ),
        ]
    return [
        *certain,
        "    acl own var(txn.key),concat(/,txn.model),"
        f"map_str({plan.directory}/models-of-keys.map) -m found",
        *_refuse(
            403, _OTHER_MODEL, "PermissionDeniedError", "if restricted !{ path /v1/models } !own"
        ),
    ]


def _backends(plan: GatewayPlan, ready: FrozenSet[Tuple[str, str]]) -> List[str]:
    lines = [
        "backend requests",
        "    stick-table type string len 64 size 10k expire 10m store gpc0,gpc0_rate(60s)",
        "backend addresses",
        "    stick-table type ipv6 size 100k expire 1h store conn_cur,gpc0",
        "backend refused",
        "    stick-table type integer size 1 expire 1d store gpc0",
    ]
    for service in plan.services:
        retries = min(len(service.servers) - 1, MOST_RETRIES)
        lines += [
            f"backend {service.backend}",
            f"    http-request set-header Authorization {_literal(f'Bearer {service.key}')}",
            f"    http-request set-var(txn.offers) str({service.backend}),"
            f"map_str({plan.directory}/offers.map)",
            *_balance(service.servers),
            "    option redispatch 1",
            f"    retries {retries}",
            "    retry-on conn-failure empty-response junk-response 500 502 503 504",
            # vLLM says no more than {"detail":"Not Found"}.
            *(
                "    http-response return status 404 content-type application/json lf-string "
                f"'{error_body(_NOT_OFFERED + more, 'NotFoundError', 404)}' "
                f"if {{ status 404 }} {{ res.fhdr(content-length) -m int 22 }} {condition}"
                for more, condition in (
                    (": it answers %[var(txn.offers)]", "{ var(txn.offers) -m found }"),
                    ("", ""),
                )
            ),
            # Until the first token, a stream that fails is a request without an answer.
            "    http-response wait-for-body time 1h at-least 1",
            # The last one: the same 14 s for a host that was sent something.
            "    default-server tcp-ut 14s",
        ]
        for server in service.servers:
            address = f"[{server.address}]" if ":" in server.address else server.address
            disabled = "" if (service.backend, server.name) in ready else " disabled"
            # A port is checked once, however many adapters are behind it.
            checked = (
                f"track service-{service.base}/{server.name}"
                if service.base
                else "check inter 500ms fall 1 rise 1"
            )
            spare = " backup" if server.spare and not _in_order(service.servers) else ""
            line = f"    server {server.name} {address}:{server.port} {checked}{disabled}{spare}"
            lines.append(line)
    return lines


def _in_order(servers: Sequence[GatewayServer]) -> bool:
    """Return whether all requests go to the first server that works: the others are a standby, or
    spare. A `backup` server would get none before HAProxy has noticed that the first one is down,
    and what fails until then would be lost."""
    spare = sum(server.spare for server in servers)
    return any(server.standby for server in servers) or spare >= len(servers) - 1 > 0


def _balance(servers: Sequence[GatewayServer]) -> List[str]:
    """Return how a server is chosen."""
    if _in_order(servers):
        return ["    balance first"]
    return [
        "    balance leastconn",
        "    stick-table type string len 64 size 100k expire 1h",
        "    stick on var(txn.session) if { var(txn.session) -m found }",
    ]


def models_document(services: Iterable[GatewayService]) -> str:
    """Return the answer to /v1/models of several services."""
    data = [
        {"id": model, "object": "model", "created": 0, "owned_by": "vllm"}
        for service in services
        for model in service.models
    ]
    return json.dumps({"object": "list", "data": data})


def models_map(services: Iterable[GatewayService]) -> Dict[str, str]:
    """Return the backend by model name; a name with white space cannot be in a map."""
    return {
        model: service.backend
        for service in services
        for model in service.models
        if model and not any(char.isspace() for char in model)
    }
