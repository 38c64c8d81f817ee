"""What an inventory must not contain by accident: secrets in an environment that every user of the
engine can list, switches that open Ray or vLLM, and mounts that give a container control of the
host.

Each check returns its value, or raises ValueError saying what to do instead.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import PurePosixPath

# The last word of a name, as in AWS_SESSION_TOKEN; HF_TOKEN_PATH and PASSWORD_FILE name files.
# MAX_TOKENS is a count.
_SECRET = re.compile(
    r"^(.*_)?(TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|KEYS?|APIKEY|PAT)$"
    r"|^(.*_)?(PWD|PGPASS|AUTH|JWT|DSN|WEBHOOK(_URL)?)$"
    r"|^(.*_)?SECRET_.*(?<!_FILE)(?<!_PATH)$",
    re.IGNORECASE,
)
_IN_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[^/@\s:]*:[^@\s]+|(?:gh[a-z]_|github_pat_|glpat-|hf_)[^/@\s]+)@",
    re.IGNORECASE,
)
# How the tokens begin that engines and hubs ask for
_TOKEN = re.compile(
    r"^(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[a-z]-|AKIA|ASIA|AIza|eyJ)[\w.-]{16,}$"
)

DANGEROUS = {
    "VLLM_SERVER_DEV_MODE": "it opens paths that need no key, such as /collective_rpc, which runs "
    "code on every rank",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "it lets anyone who reaches vLLM's queues run code",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it lets clients load files of the container as adapters; "
    "clusterctl adapter add loads them without it",
    "VLLM_ENABLE_RESPONSES_API_STORE": "it keeps all clients' requests in the API server's "
    "memory, and returns them to anyone who knows their IDs",
    "RAY_DEBUG": "it opens a debugger on the network that needs no token",
    "RAY_DEBUG_POST_MORTEM": "it opens a debugger on the network that needs no token",
    "RAY_DEBUGGER_EXTERNAL": "it opens a debugger on the network that needs no token",
}

# What the system and its users have: it holds their secrets, or makes somebody root of the host. A
# mount of a directory above one of them is refused as well.
_OF_THE_HOST = (
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt/clusterctl",
    "/opt/containerd", "/opt/cni", "/proc", "/root", "/run", "/sbin", "/snap", "/sys", "/usr",
    "/var",
)  # fmt: skip
# Of these, what is there for others to read, or holds nothing of the system's
_USABLE = (
    "/dev/shm", "/dev/hugepages", "/etc/clusterctl-secrets", "/etc/localtime", "/etc/pki/ca-trust",  # noqa: S108
    "/etc/pki/tls/certs", "/etc/ssl/certs", "/root/.cache", "/usr/share", "/usr/local/share",
    "/var/lib/models", "/var/lib/vllm", "/var/local", "/var/opt", "/var/tmp",  # noqa: S108
)  # fmt: skip
_IN_A_HOME = re.compile(r"/home/[^/]+/(?!\.)[^/]+(?:/.*)?|/home/[^/]+/\.cache(?:/.*)?")
_SOCKET = re.compile(r"(docker|containerd|crio|podman)[^/]*\.sock$")


def no_dangerous_variable(name: str) -> str:
    """Refuse developer switches and names of secrets."""
    if why := DANGEROUS.get(name):
        raise ValueError(f"{name} cannot be set here: {why}")
    if _SECRET.search(name):
        raise ValueError(
            f"{name} cannot be set here: a secret does not belong in an environment, which every "
            "listing of the container shows; mount a file (`mounts` of the host) and name that, as "
            "in HF_TOKEN_PATH"
        )
    return name


def no_secret_in_url(value: str) -> str:
    """Refuse a URL with a password, such as that of a proxy. The message does not repeat it."""
    if _IN_URL.search(value):
        raise ValueError(
            "has a password in its URL, which every listing of the container shows; admit the "
            "hosts' addresses at the proxy, or run one on each host that has the password"
        )
    if _TOKEN.match(value):
        raise ValueError(
            "looks like a token, and every listing of the container would show it; mount a file "
            "(`mounts` of the host) and name that, as in HF_TOKEN_PATH"
        )
    return value


def not_of_the_host(path: str) -> str:
    """Refuse a directory that lets a container read the host's secrets or change the host."""
    plain = PurePosixPath(os.path.normpath(path))
    if plain.is_relative_to("//"):  # normpath keeps two slashes at the beginning
        plain = PurePosixPath(str(plain)[1:])
    if plain == PurePosixPath("/home") or {".ssh", ".gnupg"} & {*plain.parts}:
        raise ValueError(f"{path} holds users' keys; mount a directory without them")
    usable = any(plain.is_relative_to(each) for each in _USABLE)
    usable = usable or bool(_IN_A_HOME.fullmatch(str(plain)))
    for own in map(PurePosixPath, () if usable else _OF_THE_HOST):
        if plain.is_relative_to(own) or own.is_relative_to(plain):
            raise ValueError(
                f"{path} is the host's own: with {own} a container reads its secrets or becomes "
                "its root; mount a directory with only what the container needs"
            )
    if _SOCKET.search(str(plain)):
        raise ValueError(f"{path} is an engine's socket: whoever writes to it is root on the host")
    return path


def is_public(ip: str) -> bool:
    """Return whether an IP address is public."""
    return ip_address(ip).is_global
