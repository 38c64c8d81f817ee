"""Packages that the lab serves to bare hosts, by a stand-in for apt."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.lab.base import AptSource
from clusterctl.lab.mirror import CLIENT_PACKAGE, MIRRORED_PACKAGES, build_apt_repository

# Refuses to install the client where $CLIENT is not set, as a release without that package does.
APT_GET = """\
#!/bin/sh
case " $* " in
*" --simulate "*) [ -n "$CLIENT" ] || exit 100 ;;
*" install "*) echo "${*##* install }" >>"$LOG" ;;
esac
"""


def source(suite: str) -> AptSource:
    return AptSource("http://deb.example/debian", suite, ("main",))


@pytest.mark.parametrize("client", [(), (CLIENT_PACKAGE,)])
def test_the_client_is_downloaded_where_it_is_a_package_of_its_own(
    client: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Debian 13, hosts otherwise got an engine that nobody could ask anything."""
    asked = downloaded("noble", client, tmp_path, monkeypatch)
    assert asked == [*MIRRORED_PACKAGES, *client]


def test_an_engine_without_cdi_is_replaced_by_the_next_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that release, nothing else: its libraries do not fit the host's."""
    asked = downloaded("bookworm", (CLIENT_PACKAGE,), tmp_path, monkeypatch)
    newer = {name for name in asked if name.endswith("/trixie")}
    assert newer == {"docker.io/trixie", "containerd/trixie", f"{CLIENT_PACKAGE}/trixie"}
    assert {*asked} - newer == {*MIRRORED_PACKAGES} - {"docker.io"}


def downloaded(
    suite: str, client: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The packages that apt-get is asked to download for hosts of the release `suite`."""
    commands, log = tmp_path / "commands", tmp_path / "log"
    commands.mkdir()
    for name, script in (("apt-get", APT_GET), ("apt-ftparchive", "#!/bin/sh\n")):
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("CLIENT", " ".join(client))
    build_apt_repository(tmp_path / "packages", tmp_path / "base", source(suite))
    (asked,) = log.read_text().splitlines()
    first, *packages = asked.split()
    assert first == "--download-only"
    return packages
