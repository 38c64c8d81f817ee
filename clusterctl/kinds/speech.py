"""Models that write down what is said, in its language or translated. The proof is a second of
sound made here: tones without words, so that any text, or none, is an answer."""

from __future__ import annotations

import functools
import io
import math
import wave
from array import array
from typing import Any

from clusterctl.kinds.kind import Ask, Bench, ModelKind

_RATE = 16_000  # Samples per second
_MEASURED = 30  # Seconds of each sound in `bench`: what Whisper hears at once


@functools.lru_cache
def tones(seconds: int = 1) -> bytes:
    """Return a WAV file with two tones."""
    samples = array("h")
    for number in range(_RATE):
        time = number / _RATE
        high, low = (math.sin(2 * math.pi * pitch * time) for pitch in (880, 220))
        samples.append(int(6000 * (high + low)))
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, _RATE, 0, "NONE", ""))
        sound.writeframes(samples.tobytes() * seconds)
    return file.getvalue()


def _measured(number: int, tokens: int) -> Ask:
    """Ask for a sound that vLLM has not cached: its last samples are the number."""
    sound = tones(_MEASURED)[:-8] + number.to_bytes(8, "little")
    return Ask(
        "/v1/audio/transcriptions", {"temperature": 0, "max_completion_tokens": tokens}, sound
    )


def _read(content: Any) -> str:
    text = content["text"]
    if not isinstance(text, str):
        raise TypeError("no text")
    return f"{len(text.split())} words for a second of tones"


SPEECH = ModelKind(
    name="speech",
    result="transcriptions",
    paths=("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"),
    # Without a limit, a model that hears words in tones writes until its context is full.
    ask=lambda _, tokens: Ask(
        "/v1/audio/transcriptions", {"temperature": 0, "max_completion_tokens": tokens}, tones()
    ),
    read=_read,
    generates=True,
    unit="audio seconds",
    bench=Bench(
        ask=_measured,
        units=_MEASURED,
        sent=f"{_MEASURED} s of tones in each request; speech has more words, and may take longer",
    ),
    # Those that vLLM 0.32 lists as transcribing and nothing else, and those made for it
    architectures=("Whisper*", "*ASR*", "*Asr*", "*Transcri*", "FunASR*"),
)
