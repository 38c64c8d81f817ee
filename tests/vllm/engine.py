"""One `vllm serve` at a time, on loopback, asked as the supervisor asks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from clusterctl.node.adapters import Adapters, takes_adapters
from clusterctl.node.endpoint import EndpointError, LocalApi
from clusterctl.node.timing import Timing
from tests.fakes.ports import port_of, reserved

START_LIMIT = 1000.0  # Seconds, on a busy machine; 20 to 60 on a quiet one
KEY = "k" * 64


@dataclass
class Served:
    """A model that runs."""

    api: LocalApi
    url: str
    log: Path
    adapters: Adapters
    seconds: float  # From the start of the process to its first answer

    def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx2.post(
            self.url + path, json=body, headers=headers, timeout=120, trust_env=False
        )


@dataclass(frozen=True)
class Engine:
    """An environment with vLLM for CPUs."""

    place: Path

    @property
    def python(self) -> Path:
        return self.place / "bin" / "python"

    @property
    def env(self) -> dict[str, str]:
        own = {
            "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}",
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_PLUGINS": "",
            "HF_HUB_OFFLINE": "1",
            "VLLM_API_KEY": KEY,
        }
        return {**os.environ, **own}

    def run(self, script: str, *arguments: str, given: object) -> Any:
        """Run a script of this directory, with JSON in and out."""
        argv = [str(self.python), str(Path(__file__).with_name(script)), *arguments]
        ran = subprocess.run(
            argv, input=json.dumps(given), env=self.env, capture_output=True, text=True, check=True
        )
        return json.loads(ran.stdout.splitlines()[-1])

    @contextmanager
    def serve(
        self, model: Path, log: Path, flags: Sequence[str] = (), planned: str = "", **env: str
    ) -> Iterator[Served]:
        """Serve the model until the end of the block, once it is proven as the supervisor does."""
        with reserved() as held:
            port = port_of(held)
        argv = ["vllm", "serve", str(model), "--port", str(port), "--host", "127.0.0.1"]
        argv += ["--served-model-name", "m", "--enforce-eager", "--max-num-seqs", "8", *flags]
        api = LocalApi("127.0.0.1", port, "m", KEY, planned)
        adapters = Adapters(api, Timing())
        if takes_adapters(flags):
            argv += adapters.argv
            env = {
                **env,
                **adapters.env,
                **adapters.secrets,
                "PYTHONPATH": str(Path(__file__).parents[2]),
            }
        started = time.monotonic()
        with log.open("wb") as opened:
            process = subprocess.Popen(
                argv, env={**self.env, **env}, stdout=opened, stderr=opened, start_new_session=True
            )
        try:
            self._await(process, api, log, started)
            api.send_request(120)
            seconds = time.monotonic() - started
            yield Served(api, f"http://127.0.0.1:{port}", log, adapters, seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @staticmethod
    def _await(process: subprocess.Popen[bytes], api: LocalApi, log: Path, started: float) -> None:
        while True:
            try:
                api.check_model(5)
            except EndpointError:
                said = log.read_text(errors="replace").splitlines()
                end = "\n".join([*(line for line in said if "Error" in line), *said[-20:]])
                assert process.poll() is None, end
                assert time.monotonic() - started < START_LIMIT, end
                time.sleep(0.5)
            else:
                return
