"""Open files and directories on a host as root where users may have placed links.

Python 3.9, standard library only. A link that other users may have created is followed only to what
is below the first directory on the way that they can change, and belongs to the link's owner.
models/reach.sh does the same for scripts.
"""

import contextlib
import errno
import os
import stat

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_LINKS = 40  # On the way, as in the kernel

# Who can do as root does: also the user who became root.
OURS = {0, os.geteuid(), int(os.environ.get("SUDO_UID", "0"))}


def open_file(path: str) -> int:
    """Return a descriptor of a regular file, for reading. `path`: absolute. Raises OSError."""
    at, name = _walk(path)
    try:
        descriptor = os.open(name, FILE, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def make_directory(path: str) -> int:
    """Return a descriptor of the directory `path` (absolute), creating what is missing. Other
    users' links are never followed. Raises OSError."""
    at, name = _walk(path, make=True)
    if name == ".":
        return at
    os.close(at)
    raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)


def _walk(path: str, *, make: bool = False) -> tuple[int, str]:
    """Return a file's directory and its name in it; for a directory, itself and `.`."""
    rest, links = path.split("/"), 0
    # O_PATH: directories that may be passed, but not listed, as on NFS for a host's root
    flags = DIRECTORY if make else DIRECTORY | os.O_PATH
    at, outermost = os.open("/", flags), ""  # the first directory that others can change
    try:
        while rest:
            name = rest.pop(0)
            if name in ("", "."):
                continue
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=at)
            if not outermost and not _is_fixed(at, name):
                outermost = os.readlink("/proc/self/fd/%d" % at)
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                target = _target(at, name, "" if make else outermost, links)
                rest = target.split("/") + rest
                if not target.startswith("/"):
                    continue
                found, outermost = os.open("/", flags), ""
            elif stat.S_ISDIR(mode) or any(rest):
                found = os.open(name, flags, dir_fd=at)
            else:
                return at, name
            os.close(at)
            at = found
    except BaseException:
        os.close(at)
        raise
    return at, "."


def _is_fixed(directory: int, name: str) -> bool:
    """Whether only root, or the user who became root, can have created `name` in it."""
    around, found = os.fstat(directory), os.stat(name, dir_fd=directory, follow_symlinks=False)
    if around.st_uid not in OURS:
        return False
    if around.st_mode & stat.S_ISVTX:  # such as /tmp, where others can replace what is theirs only
        return found.st_uid in OURS
    return not around.st_mode & 0o022


def _target(directory: int, name: str, outermost: str, links: int) -> str:
    """Return where the link `name` in an open directory leads. Raises OSError if it must not be
    followed. `outermost`: the directory that it must not lead out of if others may have created it.
    """
    if links > MOST_LINKS:
        raise OSError(errno.ELOOP, "too many links are on the way to it", name)
    if _is_fixed(directory, name):
        return os.readlink(name, dir_fd=directory)
    if outermost:
        real = os.path.realpath("/proc/self/fd/%d/%s" % (directory, name))
        ends = [os.stat(each, dir_fd=directory, follow_symlinks=False) for each in (name, real)]
        if real.startswith(outermost + "/") and ends[0].st_uid in (0, ends[1].st_uid):
            return real
    raise OSError(errno.ELOOP, "a link that another user can change is on the way to it", name)
