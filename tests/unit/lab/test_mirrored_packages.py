"""Packages that the lab serves to bare hosts, by a stand-in for apt."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.lab.mirror import CLIENT_PACKAGE, MIRRORED_PACKAGES, build_apt_repository

# Refuses to install the client where $CLIENT is not set, as a release without that package does.
APT_GET = """\
#!/bin/sh
case " $* " in
*" --simulate "*) [ -n "$CLIENT" ] || exit 100 ;;
*" install "*) echo "${*##* install }" >>"$LOG" ;;
esac
"""


@pytest.mark.parametrize("client", [(), (CLIENT_PACKAGE,)])
def test_the_client_is_downloaded_where_it_is_a_package_of_its_own(
    client: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Debian 13, hosts otherwise got an engine that nobody could ask anything."""
    commands, log = tmp_path / "commands", tmp_path / "log"
    commands.mkdir()
    for name, script in (("apt-get", APT_GET), ("apt-ftparchive", "#!/bin/sh\n")):
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("CLIENT", " ".join(client))
    build_apt_repository(tmp_path / "packages", tmp_path / "base")
    (asked,) = log.read_text().splitlines()
    assert asked.split() == ["--download-only", *MIRRORED_PACKAGES, *client]
