"""The types of values in an inventory, and the messages for invalid values.

A pattern is used three times: pydantic checks it, the JSON Schema contains it for editors, and
`PATTERN_MEANS` has the message for a value that does not match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from clusterctl.inventory.unsafe import (
    no_dangerous_variable,
    no_secret_in_url,
    not_of_the_host,
)

NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
NIC = r"^[^\s/:,=^]{1,15}$"
RDMA_DEVICE = r"^[A-Za-z0-9_.-]{1,63}$"
ABSOLUTE_PATH = r"^/[^:\n]*$"
WRITABLE = ":rw"  # Behind the target of a mount that the container may write to
MOUNT_TARGET = r"^/[^:\n]*(:rw)?$"
ADDRESS = r"^[A-Za-z0-9_:][A-Za-z0-9._:%-]*$"
USER = r"^[^\s:-][^\s:]*$"
_JUMP = r"([^\s:@,-][^\s:@,]*@)?([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.%]+\])(:[0-9]{1,5})?"
JUMP = rf"^{_JUMP}(,{_JUMP})*$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
SHA256 = r"^[0-9a-f]{64}$"
PACKAGE_VERSION = r"^[0-9]+(\.[0-9]+)+-[0-9]+$"
INDEX_URL = r"^https?://[^\s@/]+(/\S*)?$"
PROXY_URL = r"^https?://([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?$"
NO_PROXY = r"^(\.|\*\.)?[A-Za-z0-9_:][A-Za-z0-9._:/-]*$"
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
# [registry[:port]/]path[:tag][@digest], the grammar of the OCI distribution project.
IMAGE = (
    rf"^(?:{_REGISTRY}/)?{_PATH_PART}(?:/{_PATH_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$"
)

PATTERN_MEANS = {
    NAME: "must be lower case letters, digits and dashes, at most 63, no dash at either end",
    NIC: "must be a Linux interface name such as eth0: at most 15 characters, "
    "without space, slash, colon, comma, = or ^",
    RDMA_DEVICE: "must be an RDMA device name such as mlx5_0",
    ABSOLUTE_PATH: "must be an absolute path, starting with / and without a colon",
    MOUNT_TARGET: "must be an absolute path, followed by :rw if the container may write to it",
    ADDRESS: "must be a host name or an IP address; user and port belong under ssh",
    USER: "must be a user name, without space, colon or a leading dash",
    JUMP: "must be written as host, user@host or user@host:port, several of them with commas",
    ENV_NAME: "must be a variable name: letters, digits and _, not starting with a digit",
    LABEL: "must be letters, digits, dot, dash, _ and /, at most 63, "
    "beginning and ending with a letter or digit",
    LABEL_VALUE: "must be letters, digits, dot, dash and _, at most 63, "
    "beginning and ending with a letter or digit",
    SHA256: "must be a SHA-256: 64 hexadecimal digits, in lower case",
    PACKAGE_VERSION: "must be a version with its package revision, such as 1.19.1-1",
    INDEX_URL: "must be an http:// or https:// URL without user or password; "
    "what must stay secret belongs in the hosts' own pip.conf or .netrc",
    PROXY_URL: "must be http://HOST:PORT or https://HOST:PORT, without user or password, which "
    "everyone with access to Docker would see: admit the hosts' addresses at the proxy, or run "
    "one inside the network that has the password",
    NO_PROXY: "must be a host name, a domain such as .example.com, an address or a network",
    IMAGE: "must be an image name such as vllm/vllm-openai:v0.33.0: "
    "[registry/]name[:tag][@sha256:digest], the name in lower case",
}

SET_BY_CLUSTERCTL = {
    "RAY_ADDRESS": "clusterctl sets it from the host with `role: head`",
    "RAY_AUTH_": "clusterctl creates and distributes the token; `allow_unauthenticated_ray: "
    "true` does without",
    "VLLM_HOST_IP": "use `node_ip` of the host",
    "NCCL_SOCKET_IFNAME": "use `nics.nccl` of the host",
    "GLOO_SOCKET_IFNAME": "use `nics.gloo` of the host",
    "NCCL_IB_HCA": "use `nics.rdma` of the host",
    "CUDA_VISIBLE_DEVICES": "Ray sets it for each rank; `gpus` says what the host has",
    "NVIDIA_VISIBLE_DEVICES": "clusterctl gives the container its GPUs; use `gpus` of the host",
    "VLLM_CONFIG_ROOT": "clusterctl keeps files in it that every rank must read",
    "VLLM_API_KEY": "clusterctl creates the key on the head and keeps it out of listings",
    "HF_TOKEN": "a secret does not belong here, where every listing of the container shows it; "
    "mount a file and name it with HF_TOKEN_PATH",
}


def _parsed_address(value: str) -> str:
    """Accept a host name or a valid IP address. Raises ValueError otherwise."""
    if re.fullmatch(r"[\d.]+", value) or ":" in value:
        try:
            ip_address(value)
        except ValueError:
            raise ValueError(
                f"{value} is not an IP address"
                + ("; a port belongs under ssh.port" if value.count(":") == 1 else "")
            ) from None
    return value


def _ip(value: str) -> str:
    """Accept an IP address that other hosts can reach. Raises ValueError otherwise."""
    try:
        address = ip_address(value)
    except ValueError:
        raise ValueError(f"{value} is not an IP address") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{value} is not the address of one host")
    return value


def _subnet(value: Any) -> IPv4Network | IPv6Network:
    """Parse a network. Raises ValueError, with the probable network if host bits are set."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be text such as 192.168.1.0/24, not {value}")  # noqa: TRY004
    try:
        return ip_network(value)
    except ValueError:
        try:
            meant = f"; did you mean {ip_network(value, strict=False)}?"
        except ValueError:
            meant = " such as 192.168.1.0/24"
        raise ValueError(f"{value} is not a network{meant}") from None


def _not_reserved(name: str) -> str:
    """Raise ValueError for variables that clusterctl sets, with the key to use instead."""
    for reserved, instead in SET_BY_CLUSTERCTL.items():
        if name == reserved or (reserved.endswith("_") and name.startswith(reserved)):
            raise ValueError(f"{name} cannot be set here: {instead}")
    return name


def _not_role(name: str) -> str:
    if name == "role":
        raise ValueError("a label cannot be named `role`: set the host's `role` key instead")
    return name


def did_you_mean(word: str, known: tuple[str, ...]) -> str:
    """Return `; did you mean X?` for the nearest of `known`, or ""."""
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


_FACTORS = {
    "": 1, "b": 1,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"^\s*(\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]*)\s*$", re.ASCII)
_BITS = re.compile(r"^\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kKmMgGtT])bit(?:/s)?\s*$", re.ASCII)
_POWERS = {"k": 3, "m": 6, "g": 9, "t": 12}
_SMALLEST_MEMORY = 2**20


def parse_bytes(value: object) -> int:
    """Return the bytes in `value`. Raises ValueError with the accepted forms."""
    match = _SIZE.match(str(value))
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a size; write it as 24 GiB, 80 GB or a number of bytes")
    return round(float(match[1]) * factor)


def parse_rate(value: str) -> int:
    """Return the bytes per second in `400mbit` (bits), or in `50 MB` or `50 MiB/s` (bytes). Raises
    ValueError with the accepted forms."""
    bits = _BITS.match(value)
    try:
        if bits:
            rate = int(float(bits[1]) * 10 ** _POWERS[bits[2].lower()] / 8)
        else:
            rate = parse_bytes(value.removesuffix("/s"))
    except ValueError:
        rate = 0
    if rate < 1:
        raise ValueError(f"{value!r} is not a rate; write it as 400mbit, or 50 MB for bytes")
    return rate


def _parse_memory(value: object) -> int:
    """Parse a GPU's memory. Rejects `memory: 80`, which is 80 bytes but was meant as GiB."""
    size = parse_bytes(value)
    if size < _SMALLEST_MEMORY:
        raise ValueError(f"{value} is {size} bytes; write the unit, such as {value} GiB")
    return size


_EXPECTED = {
    "string_type": "text",
    "path_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "dict_type": "a mapping (key: value)",
    "list_type": "a list",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
}


def value_problem(error: Mapping[str, Any], written: str) -> str:
    """Reword pydantic's problem with a value, without the key's name: `must be text, not 22`.
    `written` is the value as `shown` returns it."""
    kind, details, value = str(error["type"]), error.get("ctx", {}), error["input"]
    if expected := _EXPECTED.get(kind):
        advice = ""
        if expected == "text" and isinstance(value, int | float):
            advice = f'; put it in quotes: "{written}"'
        elif expected == "a whole number" and isinstance(value, str) and value.isascii():
            digits = value.strip().lstrip("0")
            advice = f"; write {digits} without quotes" if digits.isdigit() else ""
        return f"must be {expected}, not {written}{advice}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"must be {words} {details[key]:g}, not {written}"
    if kind == "string_pattern_mismatch":
        means = PATTERN_MEANS.get(details["pattern"], "has the wrong format")
        return f"{means}; not {written}"
    if kind == "literal_error":
        choices = tuple(re.findall(r"'([^']*)'", details["expected"]))
        return f"must be {' or '.join(choices)}, not {written}{did_you_mean(str(value), choices)}"
    if kind == "value_error":
        return str(details["error"])
    if kind == "missing":
        return "is missing"
    if kind in {"string_too_short", "too_short"}:
        return "must not be empty"
    return f"is not usable: {written}"


# Also where the scheme was left out, or the password has a slash
_LOGIN_IN_URL = re.compile(r"(?<=://)\S*(?=@)|(?<![^\s/])[^\s:/@]+:(?!//)[^\s:]*(?=@(?!sha256:))")


def shown(value: object, text: str | None = None) -> str:
    """Return a value as the user wrote it, shortened, without the login in a URL. `text`: a
    number's or boolean's own."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        value = _LOGIN_IN_URL.sub("***", value)
        return f'"{value[:60]}..."' if len(value) > 60 else f'"{value}"'
    return text or str(value)


# A host or cluster name: lower case letters, digits and dashes, as in DNS labels.
Name = Annotated[str, Field(pattern=NAME)]

# A Linux interface name: at most 15 bytes (IFNAMSIZ), without characters that are special in
# NCCL_SOCKET_IFNAME.
NicName = Annotated[str, Field(pattern=NIC)]

RdmaDevice = Annotated[str, Field(pattern=RDMA_DEVICE)]
AbsolutePath = Annotated[str, Field(pattern=ABSOLUTE_PATH)]
Address = Annotated[str, Field(pattern=ADDRESS), AfterValidator(_parsed_address)]
UserName = Annotated[str, Field(pattern=USER)]
JumpHost = Annotated[str, Field(pattern=JUMP)]
IpAddress = Annotated[str, AfterValidator(_ip)]
EnvName = Annotated[
    str,
    Field(pattern=ENV_NAME),
    AfterValidator(_not_reserved),
    AfterValidator(no_dangerous_variable),
]
EnvValue = Annotated[str, AfterValidator(no_secret_in_url)]
MountTarget = Annotated[str, Field(pattern=MOUNT_TARGET)]
HostPath = Annotated[AbsolutePath, AfterValidator(not_of_the_host)]
LabelName = Annotated[str, Field(pattern=LABEL), AfterValidator(_not_role)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]
IndexUrl = Annotated[str, Field(pattern=INDEX_URL)]
ProxyUrl = Annotated[str, Field(pattern=PROXY_URL)]
NoProxy = Annotated[str, Field(pattern=NO_PROXY)]
Sha256 = Annotated[str, Field(pattern=SHA256)]
PackageVersion = Annotated[str, Field(pattern=PACKAGE_VERSION)]
ImageReference = Annotated[str, Field(pattern=IMAGE)]

# Above the privileged ports and below 32768, where Linux's ephemeral ports begin
# (net.ipv4.ip_local_port_range).
FixedPort = Annotated[int, Field(ge=1024, le=32767)]

Subnet = Annotated[
    IPv4Network | IPv6Network,
    PlainValidator(_subnet),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["192.168.1.0/24"]}),
]

# Bytes, with or without a unit in the file.
Memory = Annotated[
    int,
    BeforeValidator(_parse_memory),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": _SMALLEST_MEMORY},
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[A-Za-z]*\s*$"},
            ]
        }
    ),
]
