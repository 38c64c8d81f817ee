"""Secrets by the kinds that gitleaks' rules list, in the places where logs and documents have them.

The values are made up here: the right beginning and length, and random letters behind."""

from __future__ import annotations

import base64
import json
import random
import string
from itertools import product
from typing import Any

import pytest

from clusterctl.diagnosis.bundle import host_files
from clusterctl.diagnosis.redaction import document_without_secrets, without_secrets

RANDOM = random.Random(34)  # noqa: S311 - the same ones in each run


def chance(length: int, letters: str = string.ascii_letters + string.digits) -> str:
    return "".join(RANDOM.choice(letters) for _ in range(length))


HEX, CAPITALS = "0123456789abcdef", string.ascii_uppercase + string.digits
BY_FORM = [
    *(f"{begin}{chance(36)}" for begin in (
        "hf_", "api_org_", "sk-", "sk-proj-", "sk-ant-api03-", "sk-or-v1-", "r8_", "gsk_", "xai-",
        "pplx-", "nvapi-", "lsv2_pt_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
        "glpat-", "gldt-", "glrt-", "glptt-", "npm_", "pypi-", "rubygems_", "dckr_pat_",
        "AIza", "ya29.", "GOCSPX-", "xoxb-", "xapp-", "SG.", "xkeysib-", "shpat_", "dckr_oat_",
        "sk_live_", "sk_test_", "rk_live_", "whsec_", "hvs.", "hvb.", "tskey-auth-", "pul-",
        "pscale_tkn_", "dp.pt.", "dop_v1_", "lin_api_", "figd_", "PMAK-", "NRAK-", "glsa_", "glc_",
        "sntrys_", "sqp_", "dt0c01.", "rdme_", "ATATT3", "ops_", "sha256~", "phc_", "eyJ",
    )),
    *(f"{begin}{chance(16, CAPITALS)}" for begin in ("AKIA", "ASIA", "ABIA", "ACCA")),
    f"dapi{chance(32, HEX)}",
    f"1234567890:{chance(35)}",
    "AGE-SECRET-KEY-1" + chance(58, CAPITALS),
]  # fmt: skip
SENTENCES = ["login with {} failed", "x={}", "'{}'", "GET /x?a={}&b=1", "({})", "\t{}\n", "a,{},b"]


@pytest.mark.parametrize("secret", BY_FORM)
def test_a_token_is_known_by_its_beginning(secret: str) -> None:
    for sentence in SENTENCES:
        assert secret[-12:] not in without_secrets(sentence.format(secret)), sentence


WORD = "pl4ntedSecretValue"
PLACES = [
    f"(b'x-api-key', b'{WORD}')",
    f"[(b'host', b'x'), (b'cookie', b'a={WORD}')]",
    f"(b'authorization', b'{WORD}')",
    f"('proxy-authorization', '{WORD}')",
    f'["x-api-key", "{WORD}"]',
    f'{{"name": "HF_TOKEN", "value": "{WORD}"}}',
    f"curl -u admin:{WORD} https://x",
    f"curl -s --user admin:{WORD} https://x",
    f"wget -u me:{WORD}",
    f"docker login -u me -p {WORD} registry",
    f"sshpass -p {WORD} ssh x",
    f"machine example.org login me password {WORD}",
    f"machine example.org\n login me\n password {WORD}\n",
    f"https://hooks.slack.com/services/T0/B0/{WORD}",
    f"https://discord.com/api/webhooks/123/{WORD}",
    f"https://example.webhook.office.com/webhookb2/{WORD}",
    f"https_proxy=http://user:pa/{WORD}@proxy:3128",
    f"http://:{WORD}@proxy:3128",
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{WORD}\n-----END PGP PRIVATE KEY BLOCK-----",
    f"MIIEow\n{WORD}\n{WORD}\n-----END RSA PRIVATE KEY-----",
    f"token\x1b[0m=\x1b[32m{WORD}\x1b[0m",
    f"\x1b[1;31mpassword\x1b[0m: {WORD}",
    f"SENTRY_DSN={WORD}",
    f"SLACK_WEBHOOK_URL={WORD}",
    f"PGPASS={WORD}",
    f"MYSQL_PWD={WORD}",
    f"REDISCLI_AUTH={WORD}",
    f"session_id={WORD}",
    f"jwt: {WORD}",
    f"bearer={WORD}",
    f"basic {base64.b64encode(WORD.encode()).decode()}",
]


@pytest.mark.parametrize("line", PLACES)
def test_a_secret_is_known_by_its_place(line: str) -> None:
    left = without_secrets(f"INFO {line}\n")
    assert WORD not in left


def test_a_header_in_base64_is_removed() -> None:
    for _ in range(50):
        word = base64.b64encode(f"Authorization: Bearer {chance(30)}".encode()).decode()
        assert word[:20] not in without_secrets(f"header {word} sent")


@pytest.mark.parametrize("line", ["password=123456", "DB_PASS: 1234", "pwd=000000"])
def test_a_password_may_be_a_number(line: str) -> None:
    assert not any(digit in without_secrets(line) for digit in "1234560")


def test_long_words_of_chance_are_removed_wherever_they_stand() -> None:
    found = [chance(32) for _ in range(200)]
    left = [word for word in found if word in without_secrets(f"it said {word} and ended")]
    assert len(left) <= 4, left


def test_names_digests_and_paths_stay() -> None:
    for text in (
        "Qwen2.5-Coder-32B-Instruct-GPTQ-Int4 of Meta-Llama-3.1-405B-Instruct-FP8-KV",
        "sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
        "GPU-8f4e2c1a-7b3d-4e5f-9a1b-2c3d4e5f6a7b at 0000:41:00.0",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL in TensorRT_LLM_Executor",
        "/data/models/DeepSeek-R1-Distill-Qwen-1.5B/model-00001-of-000163.safetensors",
        "vllm.v1.executor.multiproc_executor.MultiprocExecutor",
        "max_tokens=16, prompt_tokens: 5, tokens=7",
    ):
        assert without_secrets(text) == text


DOCUMENTS: list[Any] = [
    {"api_key": [WORD]},
    {"token": {"value": WORD}},
    {"token": [{"a": [WORD]}]},
    {"name": "HF_TOKEN", "value": WORD},
    {"env": [{"name": "HF_TOKEN", "value": WORD}]},
    [["x-api-key", WORD]],
    {"headers": [["authorization", WORD]]},
    {"environment": {"ANYTHING": WORD}},
    {"password": 12345678},
    {"secrets": {"one": 12345678, "two": [12345678]}},
    {"auth": {"basic": {"user": "x", "is": WORD}}},
    {"a": {"credentials": [WORD, {"b": WORD}]}},
]


@pytest.mark.parametrize(("document", "own"), list(product(DOCUMENTS, [True, False])))
def test_everything_below_the_name_of_a_secret_is_removed(document: Any, own: bool) -> None:
    left = json.dumps(document_without_secrets(document, own=own))
    assert WORD not in left
    assert "12345678" not in left


def test_counts_stay() -> None:
    document = {"prompt_tokens": 5, "usage": {"completion_tokens": 7}, "has_token": True}
    assert document_without_secrets(document) == document


@pytest.mark.parametrize(
    "name",
    [
        "../../../tmp/x",
        "/etc/x",
        "a\nb",
        "../gpu2/chat.log",
        "a/../b",
        "",
        ".",
        "a/b/c",
        "x" * 300,
        5,
    ],
)
def test_a_host_names_no_file_of_an_archive_but_its_own(name: Any) -> None:
    assert host_files({name: "x", "chat.log": "y"}) == {"chat.log": "y"}
    assert host_files([name]) == {}
    assert host_files({"tiny@2.log.1": "y", "services/tiny@2.json": "z", "b": 5}).keys() == {
        "tiny@2.log.1",
        "services/tiny@2.json",
    }
