"""Lines of a start that succeeded, which a user would want to know."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.errors import ConnectionFailed
from clusterctl.serving.notices import noticed, notices
from clusterctl.transport.base import CommandResult
from tests.fakes.transport import Call, FakeTransport, starts

LINES = {
    "INFO 02-23 21:55:07 config.py:1401] Defaulting to use mp for distributed inference": "mp",
    "WARNING 04-17 14:03:50 [fused_moe.py:1090] Using default MoE config. Performance might be "
    "sub-optimal! Config file not found at /x.json": "MoE",
    "WARNING 05-16 23:06:29 [custom_all_reduce.py:146] Custom allreduce is disabled because your "
    "platform lacks GPU P2P capability or P2P test failed.": "P2P",
    "WARNING 05-16 23:06:29 [topk_topp_sampler.py:69] FlashInfer is not available. Falling back "
    "to the PyTorch-native implementation of top-p & top-k sampling.": "FlashInfer",
    "WARNING 05-16 23:06:54 [config.py:1239] Default sampling parameters have been overridden by "
    "the model's Hugging Face generation config": "generation_config.json",
    "WARNING 04-17 14:03:51 [model.py:1435] Default vLLM sampling parameters have been overridden "
    "by the model's `generation_config.json`: `{'temperature': 1.0}`.": "--generation-config vllm",
    "(EngineCore pid=10853) WARNING 04-17 14:03:19 [network_utils.py:36] The environment variable "
    "HOST_IP is deprecated and ignored, as it is often used by Docker": "HOST_IP",
}


@pytest.mark.parametrize(("line", "words"), LINES.items())
def test_a_line_that_matters_is_a_sentence(line: str, words: str) -> None:
    (notice,) = notices(f"INFO API server version 0.19.0\n{line}\n{line}\n")
    assert words in notice


def test_an_earlier_start_and_other_lines_are_left_out() -> None:
    log = "\n".join([*LINES, "INFO API server version 0.19.0", "INFO Loading weights took 3 s"])
    assert notices(log) == ()


def test_the_log_is_searched_on_the_head(tmp_path: Path) -> None:
    log = tmp_path / "m.log"
    log.write_text("\n".join(["INFO non-default args: {}", "x" * 9000, *LINES, "INFO other"]))

    def run(call: Call) -> CommandResult:
        argv = [*call.argv[:-2], str(log), call.argv[-1]]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return CommandResult(call.argv, 0, done.stdout, done.stderr)

    head = FakeTransport().on(starts("sh"), answer=run)
    assert len(noticed(head, "demo", "m")) == len(LINES) - 1  # two are of one kind


def test_a_log_that_cannot_be_read_has_none() -> None:
    assert noticed(FakeTransport(down=ConnectionFailed("gone")), "demo", "m") == ()
