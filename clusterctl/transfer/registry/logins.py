"""Registry logins, from where `docker login` and `podman login` keep them: files or credential
helpers. Never from argv.

docker.auth, of Docker's own client, is not used: it waits for a helper without a deadline, leaves
its stderr on the terminal, and knows only one wording of "no login".
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl import deadlines
from clusterctl.containers.reference import DOCKER_HUB
from clusterctl.errors import RequirementsNotMet
from clusterctl.transport.credentials import Ask, nobody

_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # noqa: S105 - what helpers answer for a user name


@dataclass(frozen=True)
class Login:
    """A login for a registry, with a password or an identity token."""

    user: str
    password: str = field(repr=False)

    @property
    def is_token(self) -> bool:
        return self.user == _TOKEN_USER


class Logins:
    """Finds logins in the files that `environment` points to, or asks the user through `ask`."""

    def __init__(self, environment: Mapping[str, str] | None = None, ask: Ask = nobody) -> None:
        self._environment = os.environ if environment is None else environment
        self._ask = ask

    def find(self, registry: str) -> Login | None:
        """Return the first login in a file or helper. Raises RequirementsNotMet for a file that
        cannot be read, and for a helper that fails."""
        for path in self._files():
            try:
                config = json.loads(path.read_text())
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                raise RequirementsNotMet(
                    f"the registry logins in {path} cannot be read: {error}", hint=f"ls -l {path}"
                ) from error
            if isinstance(config, dict) and (
                found := _helped(config, registry, self._environment)
                or _written(config, registry, path)
            ):
                return found
        return None

    def ask(self, registry: str) -> Login | None:
        """Prompt the user for a login; None without an answer."""
        user = self._ask(f"user name for {registry}: ")
        password = self._ask(f"password or access token of {user} for {registry}: ") if user else ""
        return Login(user, password) if user and password else None

    def _files(self) -> Iterator[Path]:
        """Yield Docker's configuration file, then podman's."""
        known = self._environment
        home = Path(known.get("HOME") or Path.home())
        yield Path(known.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
        if named := known.get("REGISTRY_AUTH_FILE"):
            yield Path(named)
        if runtime := known.get("XDG_RUNTIME_DIR"):
            yield Path(runtime) / "containers" / "auth.json"
        yield Path(known.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"


def _keys(registry: str) -> tuple[str, ...]:
    """Return the keys under which login files may list the registry."""
    if registry == DOCKER_HUB:
        return (_HUB_KEY, "index.docker.io", "docker.io", "registry-1.docker.io")
    bare = (registry, f"https://{registry}", f"http://{registry}")
    return (*bare, *(f"{name}/v1/" for name in bare[1:]), *(f"{name}/v2/" for name in bare[1:]))


def _written(config: dict[str, Any], registry: str, path: Path) -> Login | None:
    """Return the login in the file itself. Raises RequirementsNotMet if it is damaged."""
    entries = config.get("auths")
    for key in _keys(registry):
        entry = entries.get(key) if isinstance(entries, dict) else None
        if not isinstance(entry, dict):
            continue
        if entry.get("identitytoken"):
            return Login(_TOKEN_USER, str(entry["identitytoken"]))
        if entry.get("auth"):
            user, colon, password = "", "", ""
            with suppress(ValueError):  # of base64 (also for text beyond ASCII) or UTF-8
                pair = base64.b64decode(str(entry["auth"]), validate=True).decode()
                user, colon, password = pair.partition(":")
            if not colon:
                raise RequirementsNotMet(
                    f"the login for {key} in {path} is damaged", hint=f"docker login {key}"
                )
            return Login(user, password)
        if entry.get("username") and entry.get("password"):
            return Login(str(entry["username"]), str(entry["password"]))
    return None


def _helped(config: dict[str, Any], registry: str, environment: Mapping[str, str]) -> Login | None:
    """Get the login from the registry's own credential helper, or from the default one."""
    helpers = config.get("credHelpers")
    own = helpers if isinstance(helpers, dict) else {}
    for key in _keys(registry):
        name = own.get(key) or config.get("credsStore")
        if name and (found := _asked(str(name), key, environment)):
            return found
    return None


def _asked(name: str, key: str, environment: Mapping[str, str]) -> Login | None:
    """Ask a credential helper for the login. Raises RequirementsNotMet if the helper fails."""
    program = f"docker-credential-{name}"
    try:
        done = subprocess.run(
            [program, "get"],
            input=key,
            capture_output=True,
            text=True,
            timeout=deadlines.LOGIN_HELPER,
            env=dict(environment),
        )
        if done.returncode != 0:
            # A helper without the login reports that in words; any other output is a failure.
            words = f"{done.stdout}{done.stderr}"
            if "not found" in words.lower() or "no credentials" in words.lower():
                return None
            raise RequirementsNotMet(
                f"the credential helper {program} fails: {words.strip()[:200]}",
                hint=f"try it: {program} list",
            )
        said = json.loads(done.stdout)
        return Login(str(said["Username"]), str(said["Secret"]))
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            why = f"no answer within {deadlines.LOGIN_HELPER} s"
        elif isinstance(error, OSError):
            why = f"it cannot be run: {error.strerror}"
        else:
            why = "its answer is not a login"
        raise RequirementsNotMet(
            f"the credential helper {program} does not work: {why}",
            hint=f"try it: echo {key} | {program} list",
        ) from error
