"""The common part of transports: run, put and open_channel, given a way to start a process."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

from clusterctl import deadlines
from clusterctl.errors import (
    AuthenticationRejected,
    ClusterctlError,
    CommandFailed,
    CommandTimedOut,
    ConnectionFailed,
    RequirementsNotMet,
)
from clusterctl.inventory.model import Host
from clusterctl.transport.base import Channel, CommandResult, Transport
from clusterctl.transport.command import (
    KILL_AFTER,
    STDERR_TAIL,
    Framed,
    NotStarted,
    RunningCommand,
    Wire,
)
from clusterctl.transport.credentials import SUDO_PASSWORD, Credentials
from clusterctl.transport.host_files import LARGEST_FILE, NO_FILE, PUT, READ, way_to
from clusterctl.transport.target import target_of

# Exit statuses of coreutils' `timeout`: after SIGTERM, after SIGKILL.
_TIMEOUT_STATUSES = (124, 137)

# Seconds that a busy machine may take to notice that a command began, when its clock starts.
_SEEN_LATE = 0.5

# Seconds without a byte after which an ended command's output counts as complete: its background
# processes may hold stdout open for ever.
QUIET = 1.0

# Seconds on top of the limit that the host enforces before this side hangs up.
GRACE = KILL_AFTER + 5.0

LARGEST_OUTPUT = 64 * 2**20  # bytes of stdout; more is an error
LARGEST_STDERR = 4 * 2**20  # bytes of stderr that are kept, the last ones

# What sudo says, and sudo-rs, which Ubuntu has had since 25.10
_PASSWORD_WANTED = (
    "a password is required",
    "a terminal is required to read the password",
    "no password was provided",
    "interactive authentication is required",
)
_NOT_ALLOWED = (
    "is not in the sudoers file",
    "is not allowed to",
    "may not run sudo",
    "I'm afraid I can't do that",
)

# Characters of a command line that are logged; scripts are longer.
_LOGGED = 300

_log = logging.getLogger("clusterctl.transport")


class ShellTransport(Transport):
    """The Transport protocol, given a way to start argv on the host as the login user."""

    def __init__(self, host: Host, credentials: Credentials) -> None:
        self._host = host
        self._credentials = credentials

    @property
    def host(self) -> Host:
        return self._host

    @property
    @abstractmethod
    def user(self) -> str:
        """The user that commands run as without sudo."""

    @abstractmethod
    def _start(self, argv: Sequence[str]) -> tuple[Wire, Callable[[], None]]:
        """Start `argv`; return its wire and a function to call once the command is closed."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        sudo: bool = False,
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        words = shlex.join(argv)[:_LOGGED]  # stdin may contain secrets and is never logged
        with self._command(
            Framed(tuple(argv), timeout), sudo=sudo, keep_stderr=LARGEST_STDERR
        ) as command:
            started = time.monotonic()
            deadline = started + timeout + GRACE
            if stdin:
                # A command may write its answer before it has read all of its input.
                feeding = (command, stdin)
                threading.Thread(target=_feed, args=feeding, name="stdin", daemon=True).start()
            else:
                command.close_stdin()
            command.settimeout(QUIET)
            stdout, ended = bytearray(), False
            while time.monotonic() < deadline:
                try:
                    chunk = command.recv(65536)
                except TimeoutError:
                    if ended:
                        break
                    # What it wrote last may arrive right after this look, or have just arrived.
                    ended = command.poll(0) is not None
                    continue
                if not chunk:
                    break
                stdout += chunk
                if len(stdout) > LARGEST_OUTPUT:
                    raise CommandFailed(
                        f"`{argv[0]}` wrote more than {LARGEST_OUTPUT >> 20} MiB",
                        host=self._host.name,
                        detail=words,
                    )
            status = command.poll(max(0.0, deadline - time.monotonic()))
            if status is None:
                raise self._timed_out(argv, timeout, command.stderr_tail())
            if status == -1:
                raise command.lost()
            seconds = time.monotonic() - started
            stderr = command.whole_stderr(QUIET)
        result = CommandResult(tuple(argv), status, stdout.decode(errors="replace"), stderr)
        _log.debug("%s: %d after %.2f s: %s", self._host.name, status, seconds, words)
        if status in _TIMEOUT_STATUSES and seconds >= timeout - _SEEN_LATE:
            raise self._timed_out(argv, timeout, result.last_lines())
        return result

    def put(
        self,
        data: bytes,
        path: str,
        *,
        mode: int = 0o644,
        sudo: bool = False,
        before: str | None = None,
    ) -> None:
        name, base, below = way_to(path)
        words = (name, f"{mode:o}", str(len(data)), before or "", base, below)
        argv = ("sh", "-c", PUT, "put", *words)
        result = self.run(argv, stdin=data, sudo=sudo, timeout=deadlines.COMMAND + len(data) / 1e6)
        if not result.ok:
            raise self._refused(f"{path} could not be written", path, result)

    def read_file(self, path: str, *, sudo: bool = True) -> bytes | None:
        name, base, below = way_to(path)
        argv = ("sh", "-c", READ, "read", name, str(LARGEST_FILE), base, below)
        result = self.run(argv, sudo=sudo, timeout=deadlines.SMALL_FILE)
        if result.status == NO_FILE:
            return None
        if not result.ok:
            raise self._refused(f"{path} could not be read", path, result)
        return result.stdout.encode()

    def _refused(self, summary: str, path: str, result: CommandResult) -> CommandFailed:
        hint = f"clusterctl exec --limit {self._host.name} -- ls -ld {path}"
        detail = result.last_lines()
        return CommandFailed(summary, host=self._host.name, hint=hint, detail=detail)

    def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> Channel:
        return self._command(Framed(tuple(argv)), sudo=sudo, keep_stderr=STDERR_TAIL)

    def _command(self, frame: Framed, *, sudo: bool, keep_stderr: int) -> RunningCommand:
        if not sudo or self.user == "root":
            try:
                return self._launch(frame, keep_stderr)
            except NotStarted as failure:
                raise self._shell_refused(failure) from None
        self.connect()  # which may accept a new key
        name, password = self._host.name, None
        if not self._credentials.is_unproven(name):
            password = self._credentials.known_sudo_password()
        try:
            return self._launch(frame, keep_stderr, sudo=True, password=password)
        except NotStarted as failure:
            if password is None:
                self._credentials.ensure_proven(name)
                password = self._credentials.ask_sudo_password(self.user, name)
            if password is None or failure.prompts or failure.status == 127:
                raise self._sudo_refused(failure) from None
        try:
            return self._launch(frame, keep_stderr, sudo=True, password=password)
        except NotStarted as failure:
            raise self._sudo_refused(failure) from None

    def _launch(
        self,
        frame: Framed,
        keep_stderr: int,
        *,
        sudo: bool = False,
        password: str | None = None,
    ) -> RunningCommand:
        argv = frame.as_root(password=password is not None) if sudo else frame.plain()
        wire, on_close = self._start(argv)
        return RunningCommand(
            wire,
            frame,
            host=self._host.name,
            password=password,
            keep_stderr=keep_stderr,
            on_close=on_close,
        )

    def _timed_out(self, argv: Sequence[str], timeout: float, detail: str) -> CommandTimedOut:
        return CommandTimedOut(
            f"`{argv[0]}` did not end within {timeout:g} s and was stopped",
            host=self._host.name,
            hint=f"check its load: clusterctl exec --limit {self._host.name} -- uptime",
            detail=detail or None,
        )

    def _shell_refused(self, failure: NotStarted) -> ConnectionFailed:
        """Return the error for a login that succeeds but runs no command: nologin, a forced
        command, `exit` in ~/.bashrc."""
        how = (
            "did not start a command in time"
            if failure.status is None
            else f"ended with status {failure.status} before the command started"
        )
        return ConnectionFailed(
            f"the login shell of {self.user} {how}",
            host=self._host.name,
            hint="check the shell's start-up files; this must print nothing and exit with 0: "
            + target_of(self._host).command_line("true"),
            detail=failure.output or None,
        )

    def _sudo_refused(self, failure: NotStarted) -> ClusterctlError:
        if failure.prompts > 1:
            return AuthenticationRejected(
                f"sudo did not accept the password of {self.user}",
                host=self._host.name,
                hint=f"set {SUDO_PASSWORD} to the right one",
                detail=failure.output or None,
            )
        if failure.status == 127:
            summary = "sudo is not installed"
        elif failure.status is None:
            summary = "sudo did not start the command in time"
        elif any(words in failure.output for words in _PASSWORD_WANTED):
            summary = f"sudo needs a password for {self.user}"
        elif any(words in failure.output for words in _NOT_ALLOWED):
            summary = f"{self.user} may not use sudo"
        else:
            words = failure.output.strip().splitlines() or [f"status {failure.status}"]
            summary = f"sudo failed ({words[-1].removeprefix('sudo: ')})"
        return RequirementsNotMet(
            f"{summary}, and changes need root",
            host=self._host.name,
            hint=f"set `ssh: {{user: root}}` in the inventory, set {SUDO_PASSWORD}, or on the "
            f"host: echo '{self.user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{self.user}",
            detail=failure.output or None,
        )


def _feed(command: RunningCommand, stdin: bytes) -> None:
    with suppress(ConnectionFailed):
        # Some commands close their stdin early, as `head` does; the status says if that was wrong.
        command.send(stdin)
        command.close_stdin()
