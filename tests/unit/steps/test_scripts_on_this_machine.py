"""The steps that only need a shell, on this machine's own file system.

What the fake host answers to their scripts is thereby held against what a shell does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.step import Change, HostView, Step
from clusterctl.errors import CommandFailed
from clusterctl.inventory.model import Host
from clusterctl.node.documents import UnreadableDocument
from clusterctl.node.secret_files import read_secret
from clusterctl.packages.target import TOOLKIT
from clusterctl.steps import (
    container_engine,
    files,
    gpu_access,
    nvidia_driver,
    nvidia_toolkit,
    service_documents,
)
from clusterctl.steps.files import (
    DirectoriesPresent,
    Directory,
    FilesPresent,
    PathsAbsent,
    RemoteFile,
)
from clusterctl.steps.secrets import HeadSecret, SecretCopied, SecretsMade
from clusterctl.steps.service_documents import ServiceDocumentsReadable
from clusterctl.transport.local import LocalTransport
from tests.fakes.host import FakeHost, fake_view
from tests.unit.steps.stage import facts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of root's")


@pytest.fixture(params=["this machine", pytest.param("in memory")])
def view(request: pytest.FixtureRequest, tmp_path: Path) -> HostView:
    state = FakeHost("gpu1")
    state.directories[str(tmp_path)] = 0o700
    in_memory = fake_view(state, facts())
    return in_memory if request.param == "in memory" else on_this_machine()


def on_this_machine() -> HostView:
    transport = LocalTransport(Host(name="gpu1", address="localhost"))
    return replace(fake_view(FakeHost("gpu1"), facts()), transport=transport)


def do(step: Step, view: HostView) -> Change | None:
    """Check, apply if there is something to do, and check that it took effect."""
    change = step.check(view)
    assert change is None or isinstance(change, Change)
    if change is not None:
        step.apply(view, change)
        assert step.check(view) is None
    return change


@needs_root
def test_directories(view: HostView, tmp_path: Path) -> None:
    inner = f"{tmp_path}/a/it's $HOME; b"
    step = DirectoriesPresent([Directory(f"{tmp_path}/a"), Directory(inner, 0o700)])
    planned = step.check(view)
    # As the lock's directory is made between a plan and the bootstrap that was given it
    do(DirectoriesPresent([Directory(f"{tmp_path}/a")]), view)
    assert do(step, view) == planned == Change(f"create {inner}")
    assert do(step, view) is None
    do(DirectoriesPresent([Directory(f"{tmp_path}/a", 0o700)]), view)
    assert do(step, view) == Change(f"create {tmp_path}/a")


def test_files_by_content_and_mode(view: HostView, tmp_path: Path) -> None:
    paths = f"{tmp_path}/node.json", f"{tmp_path}/it's; one"

    def files(text: bytes, mode: int) -> FilesPresent:
        wanted = [RemoteFile(paths[0], text, mode), RemoteFile(paths[1], b"\0\xff")]
        return FilesPresent("node files", lambda _: wanted)

    assert do(files(b"{}", 0o644), view) == Change("write node.json, it's; one")
    assert do(files(b"{}", 0o644), view) is None
    assert do(files(b"{1}", 0o644), view) == Change("write node.json")
    assert do(files(b"{1}", 0o600), view) == Change("write node.json")


@needs_root
def test_secrets_are_made_once_and_copied(view: HostView, tmp_path: Path) -> None:
    path = f"{tmp_path}/ray.token"
    secret = HeadSecret(view, path)
    assert secret.value() is None
    do(SecretsMade([path]), view)
    value = secret.value()
    assert value is not None
    assert len(value) == 64
    assert int(value, 16)
    do(SecretsMade([path]), view)
    assert HeadSecret(view, path).value() == value
    assert value.decode() not in repr(secret)

    worker = fake_view(FakeHost("gpu2", directories={str(tmp_path): 0o700}), facts())
    assert do(SecretCopied(secret), worker) == Change(f"copy {path} from gpu1")
    assert HeadSecret(worker, path).value() == value


@needs_root
def test_a_secret_that_others_may_read_is_closed_and_kept(view: HostView, tmp_path: Path) -> None:
    path = f"{tmp_path}/api.key"
    view.transport.put(b"users-own-key", path, mode=0o644)
    do(SecretsMade([path]), view)
    assert HeadSecret(view, path).value() == b"users-own-key"


@needs_root
def test_bootstrap_repairs_what_the_supervisor_refuses(tmp_path: Path) -> None:
    """A link, a file with white space alone, and one of another user."""
    view = on_this_machine()
    link, blank, foreign = (f"{tmp_path}/{name}" for name in ("link", "blank", "foreign"))
    Path(f"{tmp_path}/elsewhere").write_bytes(b"the-key")
    Path(link).symlink_to(tmp_path / "elsewhere")
    for path, content in ((blank, b" \n"), (foreign, b"the-key")):
        view.transport.put(content, path, mode=0o600)
    os.chown(foreign, 1000, 1000)
    paths = [link, blank, foreign]
    assert do(SecretsMade(paths), view) == Change(f"create {', '.join(paths)}")
    assert do(SecretsMade(paths), view) is None
    assert read_secret(Path(link)) == read_secret(Path(foreign)) == "the-key"
    assert len(read_secret(Path(blank))) == 64


@needs_root
def test_a_copied_secret_is_a_file_of_root(tmp_path: Path) -> None:
    view = on_this_machine()
    head = fake_view(FakeHost("gpu1", files={f"{tmp_path}/ray.token": (b"1", 0o600)}), facts())
    step, path = SecretCopied(HeadSecret(head, f"{tmp_path}/ray.token")), tmp_path / "ray.token"
    path.write_bytes(b"1")
    path.chmod(0o600)
    assert do(step, view) is None
    os.chown(path, 1000, 1000)
    assert do(step, view)
    assert do(step, view) is None
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert do(step, view)
    assert read_secret(path) == "1"


def test_the_directory_of_services_outlives_its_last_document(
    view: HostView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"{tmp_path}/clusterctl/demo"
    do(DirectoriesPresent([Directory(f"{own}/services", 0o700)]), view)
    view.transport.put(b"#", f"{own}/services/tiny.json")
    monkeypatch.setattr(service_documents, "config_dir", lambda _: own)
    broken = [UnreadableDocument("services/tiny.json", "not JSON")]
    assert do(ServiceDocumentsReadable("demo", {"gpu2": broken}), view) is None
    assert do(ServiceDocumentsReadable("demo", {"gpu1": broken}), view)
    assert DirectoriesPresent([Directory(f"{own}/services", 0o700)]).check(view) is None


def test_paths_are_removed_with_all_below_and_nothing_else(view: HostView, tmp_path: Path) -> None:
    view.transport.put(b"x", f"{tmp_path}/keep")
    view.transport.put(b"x", f"{tmp_path}/go")
    step = PathsAbsent("files", [f"{tmp_path}/go", f"{tmp_path}/never"], within=[str(tmp_path)])
    assert do(step, view) == Change(f"remove {tmp_path}/go")
    kept = RemoteFile(f"{tmp_path}/keep", b"x")
    assert FilesPresent("", lambda _: [kept]).check(view) is None


@needs_root
def test_what_clusters_share_stays_for_the_other(view: HostView, tmp_path: Path) -> None:
    etc, cache = f"{tmp_path}/etc", f"{tmp_path}/cache"
    do(DirectoriesPresent([Directory(p, 0o700) for p in (etc, f"{etc}/other", cache)]), view)
    within = [str(tmp_path)]
    step = PathsAbsent("caches", [cache], last_of=f"{etc}/demo", within=within)
    assert do(step, view) is None
    do(PathsAbsent("other", [f"{etc}/other"], within=within), view)
    do(DirectoriesPresent([Directory(f"{etc}/demo", 0o700)]), view)
    view.transport.put(b"x", f"{etc}/a-file")  # Is no cluster
    assert do(step, view) == Change(f"remove {cache}")


@needs_root
def test_a_mark_of_an_image_goes_and_leaves_the_others(view: HostView, tmp_path: Path) -> None:
    marker = f"{tmp_path}/marks/images"
    for reference in ("a/b:1", "a/b:10"):
        files.record_installed(view, [reference], marker)
    files.forget_installed(view, "a/b:1", marker)
    assert "a/b:1" not in files.installed_by_us(view, marker)
    assert "a/b:10" in files.installed_by_us(view, marker)
    files.forget_installed(view, "a/b:10", marker)
    files.forget_installed(view, "a/b:10", marker)
    assert not (tmp_path / "marks").exists()


@pytest.mark.parametrize("path", ["/etc", "/", "/etc/clusterctl/../passwd", "/var/lib/docker"])
def test_only_clusterctls_own_paths_can_be_named_for_removal(path: str) -> None:
    with pytest.raises(ValueError, match="does not belong to clusterctl"):
        PathsAbsent("files", [path])


@needs_root
def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    local = LocalTransport(Host(name="gpu1", address="localhost"))
    view = HostView(local.host, facts(), local)
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandFailed, match=r"gpu1: making directories failed: .*file"):
        DirectoriesPresent([Directory(f"{tmp_path}/file/x")]).apply(view, Change(""))


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (container_engine.LOOK, ()),
        (nvidia_toolkit.LOOK, TOOLKIT),
        (nvidia_driver.LOOK, ()),
        (gpu_access.LOOK, (gpu_access.RULE_PATH, "1")),
    ],
    ids=("engine", "toolkit", "driver", "GPU access"),
)
@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_looks_run_on_any_machine_and_in_any_shell(
    script: str, arguments: tuple[str, ...], shell: str
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not here")
    argv = [shell, *(("ash",) if shell == "busybox" else ()), "-c", script, "clusterctl"]
    done = subprocess.run([*argv, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@needs_root
def test_purge_leaves_of_cdi_and_links_what_was_there_before(tmp_path: Path) -> None:
    """The scripts' own paths are moved below `tmp_path`; nvidia-ctk is a stand-in."""
    kept, cdi, char = tmp_path / "kept", tmp_path / "cdi", tmp_path / "char"
    programs = tmp_path / "bin"
    for directory in (char, programs):
        directory.mkdir()
    (char / "195:255").symlink_to("../nvidiactl")
    (char / "1:3").symlink_to("../null")
    ctk = f"""#!/bin/sh
    [ "$1" != cdi ] || echo "kind: nvidia.com/gpu" >{cdi}/nvidia.yaml
    [ "$1" != system ] || ln -sfn ../nvidia0 {char}/195:0
    """
    for name, text in (("nvidia-ctk", ctk), ("nvidia-modprobe", ""), ("systemctl", "exit 1")):
        (programs / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def run(script: str, argument: str) -> str:
        for ours, moved in (("/etc/cdi", cdi), ("/dev/char", char)):
            script = script.replace(ours, str(moved))
        script = re.sub("/etc/(udev|apt|yum|pki|docker)", f"{tmp_path}/etc", script)
        argv = ["sh", "-c", script, "clusterctl", argument]
        path = f"{programs}:{os.environ['PATH']}"
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    marker = f"{kept}/toolkit-packages"
    for _ in range(2):  # the second one finds what the first one made
        run(gpu_access.SPECIFY, str(kept))
        run(gpu_access.LINK, str(kept))
    assert (cdi / "nvidia.yaml").exists()
    assert run(nvidia_toolkit.LEFT, marker).splitlines() == [
        f"{cdi}/nvidia.yaml",
        f"links to GPUs in {char}",
    ]
    run(nvidia_toolkit.RESTORE, str(kept))
    assert not cdi.exists()
    assert sorted(link.name for link in char.iterdir()) == ["195:255", "1:3"]
    assert not kept.exists()
    assert run(nvidia_toolkit.LEFT, marker) == ""


@pytest.mark.parametrize(
    ("listed", "nodes", "declared", "fresh"),
    [
        ("01", "01", 2, True),
        ("01", "012", 2, True),  # a third one that the driver lost, or that is not declared
        ("0", "01", 2, False),  # one was added since
        ("01", "0", 1, False),  # one is gone, and its node would keep a container from starting
        ("", "0", 1, False),
    ],
)
def test_a_cdi_specification_has_the_gpus_that_are_declared(
    tmp_path: Path, listed: str, nodes: str, declared: int, *, fresh: bool
) -> None:
    version, cdi = tmp_path / "version", tmp_path / "cdi"
    version.write_text("580.1\n")
    cdi.mkdir()
    devices = "".join(f"path: {tmp_path}/dev/nvidia{number}\n" for number in listed)
    (cdi / "nvidia.yaml").write_text(f"kind: nvidia.com/gpu\nlib.so.580.1\n{devices}")
    (tmp_path / "dev").mkdir()
    for number in nodes:
        (tmp_path / "dev" / f"nvidia{number}").touch()
    script = gpu_access.LOOK
    moves = {"/sys/module/nvidia/version": version, "/etc/cdi": cdi, "/dev/": f"{tmp_path}/dev/"}
    for ours, moved in moves.items():
        script = script.replace(ours, str(moved)).replace(f">{tmp_path}/dev/null", ">/dev/null")
    argv = ["sh", "-c", script, "clusterctl", str(tmp_path / "rule"), str(declared)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert (f"fresh={cdi}/nvidia.yaml" in done.stdout.splitlines()) is fresh, done.stdout
    assert (f"other={cdi}/nvidia.yaml" in done.stdout.splitlines()) is not fresh, done.stdout


@pytest.mark.parametrize(
    ("major", "uvm", "lines"),
    [
        (1, 510, {"fresh"}),
        (99, 510, {"renumbered"}),  # /dev/null stands for a device node: its number is 1
        (1, 511, {"renumbered"}),  # the kernel gave nvidia-uvm another number at this boot
    ],
)
@pytest.mark.parametrize("json", [False, True])
def test_a_cdi_specification_has_the_kernels_device_numbers(
    tmp_path: Path, major: int, uvm: int, lines: set[str], *, json: bool
) -> None:
    """nvidia-container-toolkit #1934."""
    (tmp_path / "version").write_text("580.1\n")
    (tmp_path / "devices").write_text("Character devices:\n  1 mem\n510 nvidia-uvm\n")
    (tmp_path / "nvidia0").touch()
    nodes = [("/dev/null", major), ("/dev/nvidia-uvm", uvm)]
    if json:
        text = ",".join(f'{{"path":"{node}","major":{number},"minor":0}}' for node, number in nodes)
    else:
        text = "".join(f"  - path: {node}\n    major: {number}\n" for node, number in nodes)
    (tmp_path / "nvidia.spec").write_text(
        f"kind: nvidia.com/gpu\nlib.so.580.1\npath: {tmp_path}/nvidia0\n{text}"
    )

    script = gpu_access.LOOK
    for ours, moved in {
        "/sys/module/nvidia/version": f"{tmp_path}/version",
        "/etc/cdi/*": f"{tmp_path}/nvidia.spec",
        "/proc/devices": f"{tmp_path}/devices",
        "/dev/nvidia[0-9][0-9]*": f"{tmp_path}/nvidia[0-9][0-9]*",
    }.items():
        script = script.replace(ours, moved)
    argv = ["sh", "-c", script, "clusterctl", str(tmp_path / "rule"), "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    found = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert found & {"fresh", "renumbered", "other"} == lines


@pytest.mark.parametrize("gnu", [False, True])
def test_a_driver_file_that_uutils_dd_breaks(tmp_path: Path, *, gnu: bool) -> None:
    """makeself #357: the archive reads itself with dd."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, says in {
        "dd": "dd (uutils coreutils) 0.2.2",
        **({"gnudd": "dd (GNU)"} if gnu else {}),
    }.items():
        (programs / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (programs / name).chmod(0o755)
    file = tmp_path / "NVIDIA.run"
    file.write_text(
        "case $(dd) in *GNU*) exit 0;; esac\necho 'Error in MD5 checksums' >&2\nexit 2\n"
    )
    done = subprocess.run(
        ["sh", "-c", nvidia_driver.INSTALL, "clusterctl", str(file)],
        env={"PATH": f"{programs}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode == 0) is gnu
    wanted = [] if gnu else [
        "Error in MD5 checksums", "dd here is uutils', which breaks the check of NVIDIA's archive",
    ]  # fmt: skip
    assert done.stderr.splitlines() == wanted
