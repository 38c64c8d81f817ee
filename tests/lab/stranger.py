"""What somebody without the token and the key hears from ports: run as a program, with lines of
`ADDRESS PORT` as input, it prints a JSON list of what each port answered.

Greetings of HTTP, gRPC and ZeroMQ, one of torch's store, and bytes that mean nothing; HTTP on the
paths that read or change something in Ray and vLLM.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException

LIMIT = 4.0  # Seconds for one answer

PATHS = (
    "/", "/metrics", "/health", "/version", "/v1/models", "/tokenize", "/server_info", "/docs",
    "/nodes", "/api/version", "/api/jobs/", "/api/job_agent/jobs/", "/api/healthz", "/logs/",
    "/collective_rpc", "/get_or_create_runtime_env", "/v1/load_lora_adapter",
)  # fmt: skip

# The HTTP/2 preface with empty settings, and headers of a call without a token: literal fields of
# RFC 7541, :method POST, :scheme http, :path, content-type application/grpc.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4)

ZMQ = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

# torch's store: a query that proves the protocol, then the question how many keys there are
STORE_VALIDATE, STORE_MAGIC, STORE_COUNT = 0, 0x3C85F7CE, 9

GRPC_CALL = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"


def _heard(address: str, port: int, said: bytes, limit: float = LIMIT) -> bytes:
    with socket.create_connection((address, port), timeout=limit) as connection:
        connection.settimeout(limit)
        try:
            connection.sendall(said)
            return connection.recv(4096)
        except OSError:
            return b""


def _http(address: str, port: int) -> dict[str, str]:
    """Status and size of each path that answers at all; one that breaks off ends the questions."""
    found: dict[str, str] = {}
    for path in PATHS:
        for method in ("GET", "POST"):
            connection = HTTPConnection(address, port, timeout=LIMIT)
            try:
                connection.request(method, path, b"{}" if method == "POST" else None)
                answer = connection.getresponse()
                found[f"{method} {path}"] = f"{answer.status} {len(answer.read(65536))} bytes"
            except (OSError, HTTPException, ValueError):
                return found
            finally:
                connection.close()
    return found


def _grpc(address: str, port: int) -> str:
    def field(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    block = b"".join(
        (
            field(b":method", b"POST"), field(b":scheme", b"http"),
            field(b":path", GRPC_CALL.encode()), field(b":authority", b"x"),
            field(b"content-type", b"application/grpc"), field(b"te", b"trailers"),
        )
    )  # fmt: skip
    headers = struct.pack(">I", len(block))[1:] + b"\x01\x04" + struct.pack(">I", 1) + block
    data = struct.pack(">I", 5)[1:] + b"\x00\x01" + struct.pack(">I", 1) + bytes(5)
    heard = bytearray()
    with socket.create_connection((address, port), timeout=LIMIT) as connection:
        connection.settimeout(LIMIT)
        try:
            connection.sendall(PREFACE + headers + data)
            while len(heard) < 65536 and (part := connection.recv(4096)):
                heard += part
        except TimeoutError:
            answered = heard[3:4] == b"\x04"  # settings, and waiting for more
        else:
            answered = heard[3:4] == b"\x04"
    return f"HTTP/2, {len(heard)} bytes" if answered else ""


def _store(address: str, port: int) -> str:
    said = bytes([STORE_VALIDATE]) + struct.pack("<I", STORE_MAGIC) + bytes([STORE_COUNT])
    heard = _heard(address, port, said)
    return f"{struct.unpack('<q', heard)[0]} keys" if len(heard) == 8 else ""


def ask(address: str, port: int) -> dict[str, object]:
    """Return what the port answers to each greeting; `open` is false where nothing listens."""
    found: dict[str, object] = {"address": address, "port": port, "open": True}
    try:
        socket.create_connection((address, port), timeout=LIMIT).close()
    except OSError:
        return {**found, "open": False}
    try:
        found["http"] = _http(address, port)
        found["grpc"] = _grpc(address, port)
        found["zmq"] = _heard(address, port, ZMQ)[:1] == b"\xff"
        found["store"] = _store(address, port)
        found["silence"] = _heard(address, port, b"\x00\xff\x80hello\r\n\r\n")[:60].hex()
    except OSError as error:
        found["broke"] = str(error)
    return found


if __name__ == "__main__":
    places = [line.split() for line in sys.stdin]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda place: ask(place[0], int(place[1])), places))
    json.dump(answers, sys.stdout)
