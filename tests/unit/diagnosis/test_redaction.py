"""The bundle holds no secret and no prompt, wherever they stand."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.diagnosis.bundle import write_bundle
from clusterctl.diagnosis.redaction import records_without_secrets, without_secrets
from clusterctl.errors import UsageError

PLANTED = "pl4nted-Secret_value"

IN_LOGS = [
    f"HF_TOKEN={PLANTED}",
    f"export AWS_SECRET_ACCESS_KEY='{PLANTED}'",
    f"{{'HF_TOKEN': '{PLANTED}', 'PATH': '/bin'}}",
    f'"db_password": "{PLANTED}", "port": 5432',
    f"password: {PLANTED}",
    f"vllm serve m --api-key {PLANTED} --port 8000",
    f"vllm serve m --api-key={PLANTED}",
    f"non-default args: {{'model': 'm', 'api_key': ['{PLANTED}'], 'port': 8000}}",
    f"Authorization: Bearer {PLANTED}",
    f"GET https://user:{PLANTED}@registry.example.org/v2/",
    f"https_proxy=http://{PLANTED}@proxy:3128",
    f"GET /v1/models?api_key={PLANTED}&x=1",
    f"token hf_{PLANTED} is not valid",
    f"key sk-{PLANTED} refused",
    f"-----BEGIN PRIVATE KEY-----\n{PLANTED}\n-----END PRIVATE KEY-----",
    f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}",
    f"Received request cmpl-1: prompt: 'tell me {PLANTED}', params: SamplingParams(n=1)",
    f'Received request cmpl-1: prompt: "it\'s {PLANTED}", params: SamplingParams(n=1)',
    f"Received request chatcmpl-1: prompt: 'cut {PLANTED}",
    f"Generated response cmpl-1: output: '{PLANTED} it is', output_token_ids: [1, 2]",
    f'{{"messages": [{{"role": "user", "content": "{PLANTED} \\" and more {PLANTED}"}}]}}',
    f'{{"choices": [{{"text": "{PLANTED}"}}]}}',
    f"'input': ['one', '{PLANTED}'], 'model': 'm'",
    f"input_value={{'messages': ['{PLANTED}']}}, input_type=dict",
    f"documents=['{PLANTED}', \"{PLANTED}\"]",
    f"GET https://user:pa@{PLANTED}@host/x",
    f"HTTP_PROXY=user:{PLANTED}@proxy:3128",
    f"argv ['vllm', 'serve', '--api-key', '{PLANTED}', '--port', '1']",
    f"vllm serve m --api-key one {PLANTED} --port 1",
    f'"accessToken": "{PLANTED}"',
    f"clientSecret={PLANTED}",
    f"DB_PASS={PLANTED}",
    f"GET /blob?X-Amz-Signature={PLANTED}&x=1",
    f"GET /blob?sig={PLANTED}",
    f"Authorization: Token {PLANTED}",
    f"Set-Cookie: a={PLANTED}; Path=/",
    f"os.environ['HF_TOKEN'] = '{PLANTED}'",
    f"api_key=SecretStr('{PLANTED}')",
    f'\\"api_key\\": \\"{PLANTED}\\"',
    f'\\"content\\": \\"{PLANTED}\\"',
    f"'system': '{PLANTED}'",
    f"prompts=['{PLANTED}']",
    f'"input": [\n  "one",\n  "{PLANTED}"\n]',
    f"prompt: 'he said \\'it\\' {PLANTED}' \"and {PLANTED}\"",
]


@pytest.mark.parametrize("line", IN_LOGS)
def test_a_secret_in_a_log_is_removed(line: str) -> None:
    assert PLANTED not in without_secrets(f"INFO 11-22 03:12:07 [x.py:1] {line}\nnext line\n")


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-22 [core.py:1] --max-num-batched-tokens 2048, max_tokens=16, num_tokens: 5",
        "ValueError: Total number of attention heads (12) must be divisible by parallel size",
        "generation_tokens_total 12.0; api_key=None",
        "RuntimeError: the token is missing; HF_TOKEN_PATH=/etc/hf",
        "NVRM: Xid (PCI:0000:41:00): 79, pid=4242, GPU has fallen off the bus.",
        "2026-11-22T03:12:07Z host link-lost eth1 lost its link",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert without_secrets(line) == line


def test_prompts_as_numbers_are_removed() -> None:
    assert "4711" not in without_secrets("prompt_token_ids: [1, 4711, 3], lora_request: None")
    assert "4711" not in without_secrets("NewRequestData(prompt_token_ids=[1, 4711")


def test_documents_keep_their_shape_and_lose_their_secrets() -> None:
    service = {
        "name": "chat",
        "argv": ["vllm", "serve", "m", "--api-key", PLANTED, "--port", "8000"],
        "env": {
            "HF_TOKEN": PLANTED,
            "http_proxy": f"http://u:{PLANTED}@p:1",
            "NCCL_DEBUG": "b",
            "ODD": PLANTED,
        },
        "last_error": [f"ValueError: HF_TOKEN={PLANTED} is not valid"],
    }
    text = records_without_secrets(json.dumps(service))
    assert PLANTED not in text
    found = json.loads(text)
    assert (found["name"], found["env"]["NCCL_DEBUG"], found["argv"][-1]) == ("chat", "b", "8000")


def test_a_journal_keeps_its_sentences() -> None:
    line = {"time": 1.0, "subject": "chat", "event": "failed", "text": f"ended; TOKEN={PLANTED}"}
    kept = json.loads(records_without_secrets(json.dumps(line) + f"\nno JSON {PLANTED}\n"))
    assert kept == {**line, "text": "ended; TOKEN=[removed]"}


@given(st.text(), st.sampled_from(IN_LOGS), st.text())
def test_nothing_around_a_line_brings_its_secret_back(before: str, line: str, after: str) -> None:
    assert PLANTED not in without_secrets(f"{before}\n{line}\n{after}")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part", ["a-", "x_", "a:", "key", "token ", "://", "prompt: 'a', ", "eyJ", "--", "'", "\\"]
)
def test_a_line_of_a_hundred_thousand_characters_takes_no_minutes(part: str) -> None:
    assert without_secrets(part * 100_000)


def test_several_keys_of_a_flag_are_removed_from_its_argv() -> None:
    text = records_without_secrets(json.dumps({"argv": ["--api-key", "one-key", PLANTED, "--x"]}))
    assert json.loads(text) == {"argv": ["--api-key", "[removed]", "[removed]", "--x"]}


@pytest.mark.parametrize("name", ["DB_PASSWORD", "keys"])
def test_a_secret_that_a_document_names_is_removed_from_every_log(
    tmp_path: Path, name: str
) -> None:
    write_bundle(tmp_path / "a.tar.gz", {
        "gpu1/chat.json": json.dumps({"env": {name: PLANTED}}),
        "gpu2/chat.log": f"connected to db as {PLANTED}\n",
    })  # fmt: skip
    packed = (tmp_path / "a.tar.gz").read_bytes()
    assert PLANTED.encode() not in gzip.decompress(packed)


@pytest.mark.parametrize(("name", "argv"), [("a.tar.zst", "zstd"), ("a.tar.gz", "gzip")])
def test_the_archive_has_all_files_and_no_secret(tmp_path: Path, name: str, argv: str) -> None:
    path = tmp_path / name
    written = write_bundle(path, {
        "gpu1/chat.log": "\n".join(IN_LOGS),
        "gpu1/journal.jsonl": json.dumps({"text": f"a password={PLANTED}"}),
        "gpu1/node.json": json.dumps({"env": {"MY_TOKEN": PLANTED}}),
    })  # fmt: skip
    unpacked = subprocess.run([argv, "-dc", path], capture_output=True, check=True).stdout
    assert PLANTED.encode() not in unpacked
    with tarfile.open(fileobj=BytesIO(unpacked)) as archive:
        assert [file.name for file in archive] == [
            "report/gpu1/chat.log", "report/gpu1/journal.jsonl", "report/gpu1/node.json",
        ]  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
    assert written == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "why"),
    [("report.zip", "is no name of an archive"), ("missing/a.tar.gz", "cannot be written")],
)
def test_a_name_that_cannot_be_written_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        write_bundle(tmp_path / name, {})


def test_nothing_is_left_where_a_directory_has_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write_bundle(tmp_path / "a.tar.gz", {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
