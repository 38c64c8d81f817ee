"""Keys that are for some models and adapters only, at a real HAProxy."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest

from clusterctl.node.gateway_members import MemberProof
from tests.fakes.node_bench import await_value
from tests.unit.node.test_gateway import GatewayBench, gate, short_path

__all__ = ["gate", "short_path"]

pytestmark = pytest.mark.usefixtures("haproxy")


@pytest.fixture
def adapted(gate: GatewayBench) -> GatewayBench:
    """A gateway whose model has the adapters `sql` and `legal`."""
    adapters = {"sql": "/a", "legal": "/b"}
    gate.documents["tiny"] = replace(gate.documents["tiny"], adapters=adapters)
    has = MemberProof(ready=True, adapters=frozenset(adapters))
    gate.proofs = {replica.port: has for replica in gate.replicas}
    gate.follow()

    def listed() -> list[str]:
        return [model["id"] for model in gate.get("/v1/models").json()["data"]]

    await_value(lambda: listed() == ["tiny", "sql", "legal"], "the adapters")
    await_value(lambda: gate.post(model="legal").status_code == 200, "its replicas")
    return gate


def test_a_key_is_for_the_models_and_adapters_that_it_names(adapted: GatewayBench) -> None:
    own, every = adapted.add_key("own", models=["sql"]), adapted.add_key("every")

    assert adapted.post(own, model="sql").status_code == 200
    refused = adapted.post(own, model="legal")
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "PermissionDeniedError")
    assert adapted.post(own, model="tiny").status_code == 403
    assert adapted.post(own, model="none").status_code == 404
    assert adapted.get("/v1/models", own).status_code == 200
    assert adapted.post(every, model="legal").status_code == 200


def test_a_key_is_held_to_its_models_where_there_is_one_service_alone(gate: GatewayBench) -> None:
    own, other = gate.add_key("own", models=["tiny"]), gate.add_key("other", models=["sql"])

    assert gate.post(own).status_code == 200
    assert gate.post(own, model="sql").status_code == 403
    assert gate.post(other).status_code == 403
    assert gate.post(other, model=None).status_code == 403
    assert gate.get("/v1/models", other).status_code == 200


# Its bytes read as a name at the top, its characters as those of a text
_TEXT = b'","model":"sql"," '.decode("utf-16-le")
_UTF_16 = f'{{"x": "{_TEXT}", "model": "legal"}}'

BODIES = {
    "the last counts": b'{"model": "sql", "model": "legal"}',
    "the first": b'{"model": "legal", "model": "sql"}',
    "escaped": rb'{"model": "sql", "mod\u0065l": "legal"}',
    "after what is read": b'{"model": "sql", "prompt": "%s", "model": "legal"}' % (b"x" * 2**20),
    "UTF-16": _UTF_16.encode("utf-16-le"),
    "none": b'{"prompt": "Hello"}',
    "a list": b'{"model": ["sql", "legal"]}',
    "without an end": b'{"model": "sql", "prompt": "Hello',
}


def test_a_key_reaches_no_other_adapter_by_what_vllm_reads_otherwise(
    adapted: GatewayBench,
) -> None:
    own = adapted.add_key("own", models=["sql"])
    for replica in adapted.replicas:
        replica.requests.clear()

    for about, body in BODIES.items():
        for more in ({}, {"X-Model": "sql"}):
            answer = httpx2.post(
                f"http://127.0.0.1:{adapted.port}/v1/completions",
                headers={
                    "Authorization": f"Bearer {own}", "Content-Type": "application/json", **more
                },
                content=body,
                trust_env=False,
            )  # fmt: skip
            assert answer.status_code == 400, (about, answer.text)
    assert not any(replica.requests for replica in adapted.replicas)


def test_a_name_in_nested_json_is_no_model_and_a_form_is_refused(adapted: GatewayBench) -> None:
    own = adapted.add_key("own", models=["sql"])
    tools = [{"function": {"parameters": {"model": {"type": "string"}}}}]
    quoted = 'say "model": "legal" and \\ {'

    assert adapted.post(own, model="sql", tools=tools, prompt=quoted).status_code == 200
    form = httpx2.post(
        f"http://127.0.0.1:{adapted.port}/v1/audio/transcriptions",
        headers={"Authorization": f"Bearer {own}"},
        data={"model": "sql"},
        files={"file": ("sound.wav", b"RIFF")},
        trust_env=False,
    )
    assert form.status_code == 400, form.text
    assert "`model` once" in form.json()["error"]["message"]
