"""How files on a host are read and written: never through a link, never without a limit.

Node containers write to some directories that root of the host reads, and may put there a link, a
pipe or an endless file, or put one in the place of another between two looks. So a file is opened
once, without following a link and without waiting for a writer, and only what was opened counts.
"""

from __future__ import annotations

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

NO_FILE = 66  # EX_NOINPUT of sysexits.h
# A file that appears or goes between the looks, such as a supervisor's report, is no error.
READ = f"""\
{READ_END}
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
PUT = """\
set -u; umask 077
[ ! -d "$1" ] || { echo "$1 is a directory" >&2; exit 1; }
new=$(mktemp -u "$1.XXXXXX") || exit 1
set -C; exec 3>"$new"; set +C
trap 'rm -f "$new"' EXIT
cat >&3 || exit 1
[ "$(wc -c </proc/self/fd/3)" -eq "$3" ] || { echo "only a part of $1 arrived" >&2; exit 1; }
chmod "$2" /proc/self/fd/3 || exit 1
if [ -n "$4" ]; then
  now=absent; [ ! -e "$1" ] || now=$(sha256sum <"$1" | cut -c1-64)
  [ "$now" = "$4" ] || { echo "someone else changed $1 meanwhile" >&2; exit 1; }
fi
mv -fT "$new" "$1"
"""
# The size is checked because a lost connection looks like the end of the data to `cat`.
