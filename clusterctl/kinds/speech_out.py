"""Models that speak. vLLM to 0.33 has no /v1/audio/speech; of omni models it serves the part that
answers in text."""

from __future__ import annotations

from clusterctl.kinds.kind import Ask, ModelKind


def _nothing(_: object) -> str:
    raise ValueError("vLLM speaks nothing")


SPEECH_OUT = ModelKind(
    name="speech-out",
    result="sounds",
    paths=("/v1/audio/speech",),
    ask=lambda text, _: Ask("/v1/audio/speech", {"input": text}),
    read=_nothing,
    architectures=("*TTS*", "*TextToSpeech*", "*Tts*"),
    refused="vLLM (to 0.33) has no /v1/audio/speech, so models that speak are not served",
)
