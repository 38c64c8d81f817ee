"""What deployment notes do by hand, done by commands on one cluster: a server with a chat template,
its log and its figures, a benchmark, the versions for the record, a script with the LLM class.

The figures of published logs are in tests/unit/planning. The tests build on each other.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.lab.cluster import Operator, prefix_cache_tokens, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
    pytest.mark.usefixtures("inventory"),
]

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"

# One's own script for offline inference, thoughts and answer printed apart
INFERENCE = """\
import argparse

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", action="append", required=True)
    asked = parser.parse_args()
    llm = LLM(
        model=asked.model,
        tensor_parallel_size=2,
        distributed_executor_backend="ray",
        max_model_len=512,
        max_num_seqs=8,
        enforce_eager=True,
    )
    sampling = SamplingParams(temperature=0.6, max_tokens=8, ignore_eos=True)
    for answer in llm.generate(asked.prompt, sampling):
        thoughts, _, text = answer.outputs[0].text.rpartition("</think>")
        print(f"Prompt: {answer.prompt!r}, Think: {thoughts!r}, Answer: {text!r}", flush=True)
    raise SystemExit(3)
"""

# Takes the GPUs of both hosts, and keeps them
HOLDS = """\
import time

import ray
from ray.util.placement_group import placement_group

ray.init(log_to_driver=False)
group = placement_group([{"GPU": 1}] * 2, strategy="STRICT_SPREAD")
ray.get(group.ready())


@ray.remote(num_cpus=0, num_gpus=1)
class Holder:
    def here(self):
        return ray.util.get_node_ip_address()


holders = [Holder.options(placement_group=group).remote() for _ in range(2)]
print("holding on", *sorted(ray.get([one.here.remote() for one in holders])), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scripts")
    (directory / "inference.py").write_text(INFERENCE)
    (directory / "holds.py").write_text(HOLDS)
    (directory / "template.jinja").write_text(TEMPLATE)
    return directory


def test_ray_says_in_its_own_words_what_was_made(operator: Operator, inventory: str) -> None:
    command = "clusterctl exec --limit gpu1 --node -- ray status"
    assert command in operator.ok("bootstrap", inventory, timeout=1000).stdout
    checked = operator.ok("check", inventory).stdout
    assert "ray: gpu2 10.77.0.12: 0 of 1 CPU devices in use" in checked
    assert command in checked
    said = operator.ok(*command.split()[1:]).stdout
    assert "2.0 GPU" in said
    assert said.count(" 1 node_") == 2


def test_a_chat_template_of_this_machine_is_brought_to_where_vllm_reads_it(
    operator: Operator, on_host: OnHost, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scripts)
    serve = ("serve", "/data/models/tiny", "--tp", "2", "--name", "tiny", "--chat-template")
    missing = operator.run(*serve, "./no.jinja")
    assert missing.status == 2, missing.text
    assert "--chat-template no.jinja (command line): no such file" in missing.stderr

    operator.ok(*serve, "./template.jinja")
    for host in ("gpu1", "gpu2"):
        brought = on_host(host, "cd /etc/clusterctl/lab/files; stat -c %a *; cat *").stdout
        assert brought == f"600\n{TEMPLATE}"
    again = operator.run(*serve, "./template.jinja", "--dry-run")
    assert again.status == 0, again.text


def test_the_lines_of_the_start_are_in_its_log(operator: Operator) -> None:
    log = operator.ok("logs", "tiny", "--lines", "5000").stdout
    for line in ("Maximum concurrency for", "Application startup complete"):
        assert line in log


def test_the_benchmark_measures_and_keeps_its_result(operator: Operator, on_host: OnHost) -> None:
    words = ("bench", "--rate", "5", "--in", "32", "--out", "8", "--requests", "10", "--json")
    (found,) = operator.ok(*words).json
    figures = found["figures"]
    assert (figures["completed"], figures["failed"]) == (10, 0)
    assert 0 < figures["ttft_ms"]["p50"] <= figures["ttft_ms"]["p99"]
    kept = on_host("gpu1", "cat /var/log/clusterctl/lab/bench.jsonl").stdout
    assert f'"tokens_per_s": {figures["tokens_per_s"]}' in kept


def test_the_prefix_cache_has_no_prompts_of_another_benchmark(operator: Operator) -> None:
    """Three blocks of vLLM on CPUs are 384 tokens."""
    server = "10.77.0.11:8000"
    words = ("bench", "--rate", "2", "--in", "400", "--out", "2", "--requests", "4")
    operator.ok(*words)
    before = prefix_cache_tokens(server)
    operator.ok(*words)
    spent = {name: value - before[name] for name, value in prefix_cache_tokens(server).items()}
    assert spent["queries"] >= 4 * 400
    # vLLM's benchmark tries one of its prompts before it measures.
    assert spent["hits"] < spent["queries"] / 2, spent


def test_the_wide_view_has_loads_and_latencies(operator: Operator) -> None:
    found = operator.run("status", "--wide", "--json").json
    assert all(host["load"]["cpus"] > 0 for host in found["hosts"])
    (service,) = found["services"]
    assert service["load"]["request"]["p95"] > 0
    assert service["load"]["failed"] == 0


def test_the_record_of_versions_names_all_that_runs(operator: Operator) -> None:
    found = operator.ok("version", "--cluster", "--json").json
    assert found["hosts"].keys() == {"gpu1", "gpu2"}
    for versions in found["hosts"].values():
        assert {"vllm", "ray", "python", "torch", "kernel", "engine", "image"} <= versions.keys()
    assert found["services"]["tiny"]["model"] == "/data/models/tiny"
    assert found["services"]["tiny"]["revision"]
    assert "--tensor-parallel-size 2" in found["services"]["tiny"]["flags"]


def test_a_script_waits_for_no_gpu_that_a_service_holds(operator: Operator, scripts: Path) -> None:
    refused = operator.run("run", "--gpus", "2", str(scripts / "holds.py"))
    assert refused.status == 11, refused.text
    assert "service tiny (ready) holds 2 GPUs on gpu1, gpu2" in refused.stderr
    operator.ok("stop", "tiny")


def test_a_script_with_the_llm_class_runs_over_both_hosts(
    operator: Operator, scripts: Path
) -> None:
    words = ("--model", "/data/models/tiny", "--prompt", "hello", "--prompt", "5!")
    ran = operator.run("run", "--gpus", "2", str(scripts / "inference.py"), "--", *words)
    assert ran.status == 3, ran.text
    answers = [line for line in ran.stdout.splitlines() if line.startswith("Prompt: ")]
    assert len(answers) == 2, ran.text
    assert "ip=10.77.0.12" in ran.stdout + ran.stderr  # a rank there, in Ray's words


@pytest.mark.parametrize("fault", [signal.SIGINT, signal.SIGKILL])
def test_a_script_that_is_ended_leaves_nothing_on_any_host(
    operator: Operator, on_host: OnHost, scripts: Path, fault: signal.Signals
) -> None:
    def used() -> list[float]:
        hosts = operator.run("status", "--json").json["hosts"]
        return [host["gpus_used"] for host in hosts]

    until(lambda: used() == [0, 0], within=60, what="Ray has its GPUs back")
    process = operator.start("run", "--gpus", "2", str(scripts / "holds.py"))
    assert process.stdout is not None
    assert process.stdout.readline() == "holding on 10.77.0.11 10.77.0.12\n"
    process.send_signal(fault)
    _, told = process.communicate(timeout=60)
    assert process.returncode == (130 if fault == signal.SIGINT else -fault), told
    until(lambda: used() == [0, 0], within=60, what="its GPUs are free again")
    for host in ("gpu1", "gpu2"):
        left = on_host(
            host,
            "grep -l CLUSTERCTL_JOB /proc/[0-9]*/environ 2>/dev/null;"
            " docker exec clusterctl-lab sh -c 'ls -d /tmp/*clusterctl-job* 2>/dev/null'",
        )
        assert left.stdout == "", left.stdout
