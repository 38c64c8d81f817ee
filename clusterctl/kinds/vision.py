"""Models that answer about pictures. The proof is a red square drawn here."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any, Callable, Sequence

from clusterctl.kinds.kind import Ask, ModelKind
from clusterctl.kinds.text import TEXT

_SIDE = 56  # Pixels; smaller ones are refused by some processors

RED, WHITE, BLACK = b"\xff\x00\x00", b"\xff\xff\xff", b"\x00\x00\x00"


def png(rows: Sequence[bytes]) -> bytes:
    """Return a picture whose rows have three bytes (red, green, blue) for each pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def about_picture(text: str, picture: bytes, tokens: int) -> Ask:
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": text},
    ]
    messages = [{"role": "user", "content": content}]
    return Ask(
        "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "temperature": 0}
    )


def says(word: str, what: str) -> Callable[[Any], str]:
    """Return what judges whether an answer has the word."""

    def judge(content: Any) -> str:
        answer = TEXT.read(content)
        return what if word in answer.lower() else f"NOT: {what} (it says {answer[:40]!r})"

    return judge


def _red_square() -> Ask:
    square = png([RED * _SIDE] * _SIDE)
    return about_picture("Which colour is this picture? One word.", square, 16)


VISION = ModelKind(
    name="vision",
    result="answers about pictures",
    paths=TEXT.paths,
    ask=lambda text, tokens: about_picture(text, png([RED * _SIDE] * _SIDE), tokens),
    read=TEXT.read,
    proof=_red_square,
    judge=says("red", "it sees that a picture is red"),
    generates=True,
    unit="tokens",
    bench=TEXT.bench,  # Of its text: vLLM makes no pictures of a known kind
)
