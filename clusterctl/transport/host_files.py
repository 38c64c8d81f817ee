"""How files on a host are read and written: never through a link, never without a limit.

Node containers write to some directories that root on the host reads, and may create a link, a pipe
or an endless file in them, or swap files between two accesses. So a file is opened once, without
following links or waiting for a writer, and only what was opened counts. The same holds for the
directories above it, up to clusterctl's own.
"""

from __future__ import annotations

from pathlib import PurePosixPath

# Directories that may themselves be links of root's, such as to a larger disk. Below them
# clusterctl makes no links, and containers write to some.
_OURS = ("/etc/clusterctl", "/run/clusterctl", "/var/lib/clusterctl", "/var/log/clusterctl")

# Bytes of a file that is read whole: documents, records, keys; more is an error.
LARGEST_FILE = 16 * 2**20

# Shell function: the last $2 bytes of the regular file $1. Wants dd of GNU coreutils, or uutils.
READ_END = """\
read_end() {
  size=$(stat -c %s -- "$1") || return
  skip=$((size > $2 ? size - $2 : 0))
  dd if="$1" iflag=nofollow,nonblock,fullblock,skip_bytes,count_bytes bs=65536 \\
    skip="$skip" count="$2" status=none
}
"""

# Shell function: go to the directory $2 below $1. Where a link was followed below $1, the kernel's
# name of the directory is another one, and stays so whatever happens to the links afterwards.
ENTER = """\
enter() {
  cd -P -- "$1" && below=$(pwd -P) && cd -P -- "$2" && { [ "$2" = . ] || below=${below%/}/$2; } ||
    return 1
  [ "$(pwd -P)" = "$below" ] || { echo "a link is on the way, below $1" >&2; return 1; }
}
"""

NO_FILE = 66  # EX_NOINPUT of sysexits.h
# A file that appears or goes between the looks, such as a supervisor's report, is no error.
READ = f"""\
{READ_END}{ENTER}
[ -d "$3/$4" ] || exit {NO_FILE}
enter "$3" "$4" || exit 1
there() {{ [ -e "$1" ] || [ -L "$1" ]; }}
there "$1" || exit {NO_FILE}
[ ! -f "$1" ] || [ "$(stat -c %s -- "$1")" -le "$2" ] ||
  {{ echo "$1 is larger than $2 bytes" >&2; exit 1; }}
read_end "$1" "$2" && exit
there "$1" && exit 1
exit {NO_FILE}
"""

# The shell makes the file itself (set -C), and from then on only its descriptor is used: a name
# could be another file by then.
PUT = f"""\
{ENTER}
set -u; umask 077
enter "$5" "$6" || exit 1
[ ! -d "$1" ] || {{ echo "$1 is a directory" >&2; exit 1; }}
new=$(mktemp -u "$1.XXXXXX") || exit 1
set -C; exec 3>"$new"; set +C
trap 'rm -f "$new"' EXIT
cat >&3 || exit 1
[ "$(wc -c </proc/self/fd/3)" -eq "$3" ] || {{ echo "only part of $1 arrived" >&2; exit 1; }}
chmod "$2" /proc/self/fd/3 || exit 1
if [ -n "$4" ]; then
  now=absent; [ ! -e "$1" ] || now=$(sha256sum <"$1" | cut -c1-64)
  [ "$now" = "$4" ] || {{ echo "someone else changed $1 meanwhile" >&2; exit 1; }}
fi
mv -fT "$new" "$1"
"""
# The size is checked because a lost connection looks like the end of the data to `cat`.


def way_to(path: str) -> tuple[str, str, str]:
    """Return the name of a file for READ and PUT, the directory to start from, and the path below
    it, in which no link is followed.

    Raises ValueError for a path that is not absolute, or has `..` in it.
    """
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"{path} is not an absolute path without ..")
    for base in _OURS:
        if pure.parent.is_relative_to(base):
            return f"./{pure.name}", base, str(pure.parent.relative_to(base))
    return f"./{pure.name}", str(pure.parent), "."
