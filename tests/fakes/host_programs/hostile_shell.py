"""The login shell of a host that somebody else owns (sshd's ForceCommand): it runs nothing, and
answers each command with the poison of the file beside it, framed as clusterctl expects."""

import json
import os
import re
import shlex
import sys
from io import TextIOWrapper
from pathlib import Path

POISON = "\x1b]52;c;cm0=\x07\x1b[2J\x1b[8m\x9b2K\r\u202eX\u2066"
TEXT = f"{POISON}\nerror: gpu9: forged {POISON}\n  fix: {POISON}\n"


def _command() -> list[str]:
    """What clusterctl asked for, without the escapes for login shells."""
    asked = os.environ["SSH_ORIGINAL_COMMAND"]
    escapes = re.findall(r"'([^']*)'", asked)[-1]
    plain = re.sub(r"\\0([0-7]{3})", lambda octal: chr(int(octal[1], 8)), escapes)
    return shlex.split(plain)


def _facts(marker: str, capture: Path) -> str:
    """A real host's answer, with poison in every value."""
    lines = []
    for line in capture.read_text().splitlines():
        if line.startswith("MARK "):
            lines.append(f"{marker} {line[5:]}")
        else:  # names and numbers at the start of a line stay: it must get as far as a view
            lines.append(re.sub(r"([A-Za-z]{4,})(?=[\"',]?$)", rf"\1{POISON.strip()}", line))
    return "\n".join(lines) + "\n"


def main() -> None:
    folder = Path(__file__).parent
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(encoding="utf-8")
    kind = (folder / "kind").read_text()
    words = _command()
    at = words.index("clusterctl")
    mark, argv = words[at + 1] + words[at + 2] + "\n", words[at + 4 :]
    sys.stdout.write(mark)
    sys.stderr.write(mark)
    if argv[:2] == ["sh", "-s"] and kind in ("facts", "json"):
        answer = _facts(argv[2], folder / "capture")
    elif kind == "json":
        names = ("State", "name", "Name", "path", "text", "message", "Id", "RepoTags", "stage")
        answer = json.dumps(dict.fromkeys(names, POISON), ensure_ascii=False) + "\n"
    elif kind == "deep":
        answer = "[" * 100_000 + "\n" + '{"a":' * 100_000
    elif kind == "long":
        answer = POISON * 300_000  # 10 MB in one line
    else:
        answer = TEXT
    sys.stdout.write(answer)
    sys.stdout.flush()
    sys.stderr.write(TEXT)
    sys.stderr.flush()
    os._exit(len(answer) % 2)


if __name__ == "__main__":
    main()
