"""`packages.ca`: which files are taken, and where the file says why not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory.load import load
from clusterctl.inventory.outside import outside_of
from tests.fakes.private_ca import DAY, private_ca

INVENTORY = """\
cluster: demo
image: registry.corp/vllm:1
packages:
  ca: corp.pem
hosts:
  gpu1: {address: 10.0.0.1}
"""


def problem(directory: Path, text: str | bytes | None) -> str:
    """What is said of the file; the inventory itself loads."""
    (directory / "site.yaml").write_text(INVENTORY)
    if text is not None:
        (directory / "corp.pem").write_bytes(text if isinstance(text, bytes) else text.encode())
    inventory = load(directory / "site.yaml")
    with pytest.raises(InventoryError) as caught:
        outside_of(inventory)
    where, _, said = str(caught.value.detail).partition(" ")
    assert where == f"{directory}/site.yaml:4:7:"
    return said.replace(str(directory), ".")


def test_certificates_are_taken_without_what_is_around_them(tmp_path: Path) -> None:
    first, second = private_ca("One"), private_ca("Two")
    (tmp_path / "site.yaml").write_text(INVENTORY)
    around = f"# of One\r\n{first.pem}\nsubject=Two\n{second.pem}{first.pem}"
    (tmp_path / "corp.pem").write_text(around)
    found = outside_of(load(tmp_path / "site.yaml"))
    assert [one.subject for one in found.certificates] == ["One", "Two"]
    assert found.ca == first.pem + second.pem


def test_without_the_key_nothing_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(INVENTORY.replace("  ca: corp.pem", "  toolkit: 1.19.1-1"))
    assert outside_of(load(tmp_path / "site.yaml")).ca == ""


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert problem(tmp_path, None) == (
        "`packages.ca`: ./corp.pem cannot be read: No such file or directory"
    )


def test_a_file_that_is_not_pem(tmp_path: Path) -> None:
    assert "./corp.pem is not PEM" in problem(tmp_path, b"\x30\x82\x01\x0a\xff")


def test_a_damaged_certificate(tmp_path: Path) -> None:
    lines = private_ca().pem.splitlines()
    assert "has a damaged certificate" in problem(tmp_path, "\n".join([*lines[:3], lines[-1]]))


def test_a_private_key_beside_the_certificate(tmp_path: Path) -> None:
    ca = private_ca()
    said = problem(tmp_path, ca.pem + ca.key_pem)
    assert "holds a private key" in said
    assert ca.key_pem.splitlines()[1] not in said


def test_a_server_s_certificate_in_place_of_its_ca_s(tmp_path: Path) -> None:
    issued = private_ca().issue(tmp_path / "server", "registry.corp").read_text()
    assert "has a certificate that is not a CA's" in problem(tmp_path, issued)


def test_a_ca_that_expired(tmp_path: Path) -> None:
    said = problem(tmp_path, private_ca("Old Root").pem + private_ca(lasts=-2 * DAY).pem)
    assert "has the certificate of Example Corp Root, which expired on 20" in said


def test_a_ca_of_tomorrow(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: 0.0)
        assert "which begins 20" in problem(tmp_path, private_ca(lasts=timedelta(days=2)).pem)
