"""An image straight from one host to another over TCP, past the operator's machine.

On the source `docker save` feeds a sender that listens on the source's own address, for one
receiver that knows a random token; on the receiver the stream goes into `docker load`. The
token travels by stdin. The sender is Python from the host, or else from the image itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from clusterctl.containers.driver import ContainerDriver, Image
from clusterctl.containers.failures import engine_error
from clusterctl.containers.image_stream import loaded, silence_limit
from clusterctl.containers.meter import Meter
from clusterctl.errors import CommandTimedOut, StepFailed
from clusterctl.transport.base import Channel, lines

ACCEPT_LIMIT = 20
"""Seconds that the sender waits for its receiver."""

NO_CONNECTION = "clusterctl: no direct connection"

SENDER = f"""\
import hmac, socket, sys, time
source, address = sys.stdin.buffer, sys.argv[1]
token = source.readline().strip()
family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
listener = socket.socket(family, socket.SOCK_STREAM)
listener.bind((address, 0))
listener.listen(4)
print("port", listener.getsockname()[1], flush=True)
end = time.monotonic() + {ACCEPT_LIMIT}
while True:
    listener.settimeout(max(0.01, end - time.monotonic()))
    try:
        peer, _ = listener.accept()
        peer.settimeout(5)
        said = b""
        while not said.endswith(b"\\n") and len(said) < 200:
            said += peer.recv(1) or b"\\n"
    except socket.timeout:
        if time.monotonic() > end:
            sys.exit("{NO_CONNECTION}")
        continue
    except OSError:
        continue
    if hmac.compare_digest(said.strip(), token):
        break
    peer.close()
listener.close()
peer.settimeout(900)
sent = 0
told = time.monotonic()
for chunk in iter(lambda: source.read(1 << 20), b""):
    peer.sendall(chunk)
    sent += len(chunk)
    if time.monotonic() - told > 1:
        told = time.monotonic()
        print("sent", sent, flush=True)
peer.close()
print("sent", sent, flush=True)
"""

# "$1" image, "$2" sender, "$3" address. The pipe fills while the receiver is not there yet.
SEND = """\
IFS= read -r token
image=$1 program=$2 address=$3
# Debian's python3-minimal has no hmac.
if python3 -c 'import hmac, socket' >/dev/null 2>&1
then set -- python3
else set -- docker run -i --rm --network host --entrypoint python3 "$image"
fi
{ printf '%s\\n' "$token"; docker save "$image"; } | "$@" -c "$program" "$address"
"""

RECEIVER = f"""\
import shutil, socket, sys
token = sys.stdin.buffer.readline()
try:
    peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
except OSError as error:
    sys.exit("{NO_CONNECTION}: %s" % error)
peer.settimeout(900)
peer.sendall(token)
shutil.copyfileobj(peer.makefile("rb"), sys.stdout.buffer, 1 << 20)
"""

# "$1" address, "$2" port, "$3" receiver. Without Python, bash can make a TCP connection too.
RECEIVE = f"""\
IFS= read -r token
fetch() {{
  if python3 -c 'import shutil, socket' >/dev/null 2>&1
  then printf '%s\\n' "$token" | python3 -c "$3" "$1" "$2"
  else printf '%s\\n' "$token" | bash -c '
    exec 3<>"/dev/tcp/$1/$2" || {{ echo "{NO_CONNECTION}" >&2; exit 1; }}
    IFS= read -r token; printf "%s\\n" "$token" >&3; exec cat <&3' bash "$1" "$2"
  fi
}}
fetch "$@" | docker load
"""


class NoDirectConnection(StepFailed):
    """The receiver cannot reach the sender."""


def transfer(
    source: ContainerDriver, receiver: ContainerDriver, image: Image, address: str, meter: Meter
) -> str:
    """Send `image`, of which `source` knows, from `address` of its host; what was loaded.

    Raises NoDirectConnection, StepFailed with the engines' words, CommandTimedOut.
    """
    token = f"{secrets.token_hex(32)}\n".encode()
    with source.open(["sh", "-c", SEND, "send", image.id, SENDER, address]) as sender:
        sender.settimeout(120.0)
        sender.send(token)
        sender.close_stdin()
        told = _told(sender, source.host)
        port = _port(next(told, ""), sender, source.host)
        argv = ["sh", "-c", RECEIVE, "receive", address, str(port), RECEIVER]
        with receiver.open(argv) as load:
            load.send(token)
            load.close_stdin()
            sender.settimeout(silence_limit(image.size))
            for line in told:
                meter.reached(int(line.split()[1]))
            return _finish(source, sender, receiver, load, image)


def _told(sender: Channel, host: str) -> Iterator[str]:
    """Lines of the sender."""
    try:
        yield from lines(sender)
    except TimeoutError as error:
        raise CommandTimedOut("the image's sender came to a stop", host=host) from error


def _port(line: str, sender: Channel, host: str) -> int:
    if line.startswith("port "):
        return int(line.split()[1])
    sender.wait(timeout=30)
    raise NoDirectConnection(
        "the image's sender did not start", host=host, detail=sender.stderr_tail().strip() or None
    )


def _finish(
    source: ContainerDriver,
    sender: Channel,
    receiver: ContainerDriver,
    load: Channel,
    image: Image,
) -> str:
    sent = sender.wait(timeout=60)
    if NO_CONNECTION in sender.stderr_tail():
        raise NoDirectConnection(f"{receiver.host} cannot reach {source.host} directly")
    try:
        return loaded(receiver.host, load, image.size)
    except StepFailed:
        if NO_CONNECTION in load.stderr_tail():
            raise NoDirectConnection(
                f"{receiver.host} cannot reach {source.host} directly"
            ) from None
        # A sender that ended well with words on stderr sent what a failing `docker save` gave.
        if sent == 0 and (words := sender.stderr_tail().strip()):
            raise engine_error(words, source.host) from None
        raise
