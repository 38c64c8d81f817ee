"""Which certificates the gateway gets, and which are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.inventory.model import GatewayAccess
from clusterctl.steps import gateway_certificate
from clusterctl.steps.gateway_certificate import GatewayCertificate, made, problem_of
from tests.fakes.host import FakeHost, fake_view
from tests.unit.steps.stage import ETC, facts

NOW = datetime.now(UTC)
PEM, PUBLIC = f"{ETC}/gateway.pem", f"{ETC}/gateway.crt"


@pytest.fixture
def given(tmp_path: Path) -> GatewayAccess:
    """A certificate for gate.example, with its key."""
    chain, pem = made("demo", ["gate.example"])
    certificate, key = tmp_path / "gate.crt", tmp_path / "gate.key"
    certificate.write_bytes(chain)
    key.write_bytes(pem.removeprefix(chain))
    return GatewayAccess(tls=True, certificate=certificate, key=key)


def bare() -> FakeHost:
    return FakeHost("gpu1", directories={ETC: 0o700})


def step(wanted: GatewayAccess, *names: str) -> GatewayCertificate:
    return GatewayCertificate("demo", wanted, names or ("10.0.0.1",))


def test_a_given_one_is_written_with_a_warning_about_its_names(given: GatewayAccess) -> None:
    host = bare()
    view = fake_view(host, facts())
    change = step(given).check(view)
    assert change
    assert "warning: not for 10.0.0.1" in change.summary
    assert "for gate.example" in change.summary
    fits = step(given, "gpu1", "gate.example").check(view)
    assert fits
    assert "warning" not in fits.summary

    step(given).apply(view, change)
    assert host.files[PEM][1] == host.files[PUBLIC][1] == 0o600
    assert b"PRIVATE KEY" in host.files[PEM][0]
    assert b"PRIVATE" not in host.files[PUBLIC][0]
    assert step(given).check(view) is None


def test_the_public_part_of_one_file_with_both_has_no_key(given: GatewayAccess) -> None:
    assert given.certificate
    assert given.key
    both = given.certificate.read_bytes() + given.key.read_bytes()
    given.certificate.write_bytes(both)
    given.key.write_bytes(both)
    host = bare()
    view = fake_view(host, facts())
    change = step(given).check(view)
    assert change
    step(given).apply(view, change)
    assert b"PRIVATE" not in host.files[PUBLIC][0]
    assert host.files[PEM][0].count(b"BEGIN") == 2
    assert step(given).check(view) is None


def test_a_certificate_for_all_names_of_a_domain_is_for_each(given: GatewayAccess) -> None:
    chain, pem = made("demo", ["*.example.org"])
    assert given.certificate
    assert given.key
    given.certificate.write_bytes(chain)
    given.key.write_bytes(pem)
    change = step(given, "gate.example.org").check(fake_view(bare(), facts()))
    assert change
    assert "warning" not in change.summary


def test_the_spelling_of_an_address_does_not_matter() -> None:
    host = bare()
    view = fake_view(host, facts())
    wanted = step(GatewayAccess(tls=True), "FD00:0::1")
    change = wanted.check(view)
    assert change
    wanted.apply(view, change)
    assert wanted.check(view) is None


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("key", made("demo", ["other"])[1], "its key belongs to a different certificate"),
        ("key", b"none", "its key is not a private key"),
        ("certificate", b"none", "no certificate in PEM format"),
        ("certificate", None, "No such file"),
    ],
)
def test_what_the_gateway_cannot_use_is_refused(
    given: GatewayAccess, file: str, content: bytes | None, why: str
) -> None:
    path: Path = getattr(given, file)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(RequirementsNotMet, match=why) as refused:
        step(given).check(fake_view(bare(), facts()))
    assert "remove both" in str(refused.value.hint)


def test_a_certificate_is_valid_from_one_day_to_another() -> None:
    chain, pem = made("demo", ["a"])
    assert problem_of(chain, pem, NOW) == ""
    assert "expired on" in problem_of(chain, pem, NOW + timedelta(days=3651))
    assert "not valid before" in problem_of(chain, pem, NOW - timedelta(days=2))


def test_one_that_was_made_is_made_again_for_other_names_and_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, given: GatewayAccess
) -> None:
    host, wanted = bare(), GatewayAccess(tls=True)
    view = fake_view(host, facts())
    change = step(wanted).check(view)
    assert change
    step(wanted).apply(view, change)
    first = host.files[PEM][0]
    assert step(wanted).check(view) is None

    other = step(wanted, "10.0.0.1", "gate.example").check(view)
    assert other
    assert other.summary.endswith("it lacks gate.example")
    with monkeypatch.context() as late:
        late.setattr(gateway_certificate, "RENEWED_BEFORE", timedelta(days=3651))
        soon = step(wanted).check(view)
        assert soon
        assert "expires within" in soon.summary
    step(wanted, "gate.example").apply(view, other)
    assert host.files[PEM][0] != first
