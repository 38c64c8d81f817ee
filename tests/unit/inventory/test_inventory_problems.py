"""Every problem of a file is named at its place, in words a user knows, all at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory.model import Inventory
from tests.unit.inventory.conftest import HOST, Problems


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("imag: b", "1: unknown key `imag`; did you mean image?"),
        ("source: b", "1: unknown key `source`"),
        ("zzz: 1", "1: unknown key `zzz`; known keys: cluster, image, "),
        (
            "ssh: {password: x}",
            "7: `ssh.password` does not belong in a file: set CLUSTERCTL_SSH_",
        ),
        ("ssh: {sudo_password: x}", "7: `ssh.sudo_password` does not belong in a file: set CLUST"),
        ("accelerator: nvidea", '14: `accelerator` must be nvidia or cpu, not "nvidea"; did you'),
        ("models: data", "9: `models` must be an absolute path, starting with / and without"),
        (
            "network: {subnet: 10.0.0.7/24}",
            "19: `network.subnet` 10.0.0.7/24 is not a network; did you mean 10.0.0.0/24?",
        ),
        ("network: {subnet: eth0}", "19: `network.subnet` eth0 is not a network such as 192"),
        ("network: {subnet: 7}", "19: `network.subnet` must be text such as 192.168.1.0/24, not"),
        ("ray_ports: {gcs: 80}", "18: `ray_ports.gcs` must be at least 1024, not 80"),
        ("ray_ports: {gcs: 6380}", "12: `ray_ports` gcs and node_manager are both 6380"),
        ("ray_ports: {gcs: 11001}", "12: `ray_ports` gcs 11001 lies between min_worker and max"),
        ("packages: {pip_index: 'http://u:p@h/'}", "23: `packages.pip_index` must be an http://"),
        ("env: {RAY_AUTH_TOKEN: x}", "7: `env.RAY_AUTH_TOKEN`: RAY_AUTH_TOKEN cannot be set her"),
        ("env: {HF_TOKEN: x}", "7: `env.HF_TOKEN`: HF_TOKEN cannot be set here: a secret does n"),
        ("env: {AWS_SECRET_ACCESS_KEY: x}", "7: `env.AWS_SECRET_ACCESS_KEY`: AWS_SECRET_ACCESS_K"),
        (
            "env: {WANDB_API_KEY: x}",
            "7: `env.WANDB_API_KEY`: WANDB_API_KEY cannot be set here: a s",
        ),
        ("env: {Registry_Password: x}", "7: `env.Registry_Password`: Registry_Password cannot be"),
        ("env: {CLIENT_SECRET_ID: x}", "7: `env.CLIENT_SECRET_ID`: CLIENT_SECRET_ID cannot be se"),
        ("env: {VLLM_SERVER_DEV_MODE: 1}", "7: `env.VLLM_SERVER_DEV_MODE`: VLLM_SERVER_DEV_MODE "),
        ("env: {RAY_DEBUG_POST_MORTEM: 1}", "7: `env.RAY_DEBUG_POST_MORTEM`: RAY_DEBUG_POST_MORT"),
        (
            "env: {HTTPS_PROXY: 'http://me:hidden@proxy:3128'}",
            "20: `env.HTTPS_PROXY` has a password in its URL, which every listing of the contai",
        ),
        *(
            (f"env: {{{name}: x}}", f"7: `env.{name}`: {name} cannot be set here: a ")
            for name in ("SENTRY_DSN", "SLACK_WEBHOOK_URL", "PGPASS", "MYSQL_PWD", "REDISCLI_AUTH")
        ),
        ("env: {JWT: x}", "7: `env.JWT`: JWT cannot be set here: a "),
        ("env: {VLLM_ENABLE_RESPONSES_API_STORE: 1}", "7: `env.VLLM_ENABLE_RESPONSES_API_STORE`: "),
        ("env: {X: sk-proj-0123456789abcdef}", "10: `env.X` looks like a token"),
        ("env: {X: hf_0123456789abcdefghij}", "10: `env.X` looks like a token"),
        ("env: {X: 'https://ghp_0123@h/'}", "10: `env.X` has a password in its URL"),
        ("gateway: {hosts: [gpu2]}", "18: `gateway.hosts`: no host is named gpu2"),
        ("models: /", "9: `models` / is the host's own: with /bin a container reads its secrets"),
        ("models: /root", "9: `models` /root is the host's own: with /root a container"),
        ("env: {1A: x}", "7: `env.1A`: must be a variable name: letters, digits and _, not"),
        ("cluster: b", "1: `cluster` is given twice, first on line 1"),
    ],
)
def test_a_problem_of_the_cluster_is_named_at_its_place(
    problems: Problems, line: str, expected: str
) -> None:
    (found,) = problems(HOST + f"{line}\n")
    assert found.startswith(f"6:{expected}")


@pytest.mark.parametrize(
    "source",
    [
        "/", "//", "/etc", "/etc/", "/etc/ssh/ssh_host_rsa_key", "/data/../etc", "/root", "/proc",
        "/proc/1/root", "/sys/fs/cgroup", "/dev", "/dev/mem", "/var", "/var/run/docker.sock",
        "/run/containerd/containerd.sock", "/opt/docker.sock", "/home", "/home/me/.ssh", "/usr",
        "/etc/clusterctl/demo", "/var/lib/docker/volumes/x", "/home/alice", "/etc/cron.daily",
        "/etc/cron.hourly", "/etc/init.d", "/etc/profile.d", "/etc/apt", "/etc/docker", "/etc/cdi",
        "/etc/kubernetes", "/var/lib/kubelet", "/etc/udev/rules.d", "/etc/ld.so.conf.d",
        "/usr/libexec",
        "/etc/gshadow", "/etc/ssl/private", "/root/.aws", "/home/me/.config/gcloud", "/var/spool/x",
        "/data/.ssh", "/home/me/x/../.kube",
    ],
)  # fmt: skip
def test_a_mount_that_gives_the_container_its_host_is_refused_at_its_place(
    problems: Problems, source: str
) -> None:
    (found,) = problems(HOST + f"    mounts: {{{source}: /x}}\n")
    assert found.startswith(f"6:14: `hosts.gpu1.mounts.{source}`: {source} ")


def test_what_containers_need_is_mounted_and_set(loaded: Callable[[str], Inventory]) -> None:
    sources = ("/data", "/home/me/models", "/etc/clusterctl-secrets", "/root/.cache/huggingface",
               "/etc/ssl/certs", "/dev/shm/x", "/run2", "/usr/share/models")  # fmt: skip
    env = {"HF_TOKEN_PATH": "/s/token", "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "8",
           "NCCL_IB_PKEY": "1", "HTTP_PROXY": "http://proxy:3128", "CLIENT_SECRET_FILE": "/s/c",
           "NO_PROXY": "10.0.0.0/8"}  # fmt: skip
    mounts = "".join(f"\n      {source}: {source}" for source in sources)
    variables = "".join(f"\n  {name}: {value!r}" for name, value in env.items())
    inventory = loaded(f"{HOST}    mounts:{mounts}\nenv:{variables}\n")
    assert inventory.env == env
    assert tuple(inventory.hosts[0].mounts) == sources


def test_a_secret_is_not_repeated_by_the_problem(problems: Problems) -> None:
    text = "env: {HF_TOKEN: hidden, PROXY: 'http://me:hidden@proxy', A_KEY: hidden}\n"
    assert "hidden" not in "".join(problems(HOST + text))


def test_a_later_alias_does_not_repeat_a_problem(problems: Problems) -> None:
    text = """
cluster: demo
image: a
x-nics: &nics {nccl: not a nic}
hosts:
  gpu1: {address: a, role: head, nics: *nics}
  gpu2: {address: b, nics: {<<: *nics, gloo: eth0}}
"""
    found = problems(text)
    assert {line.partition(" ")[0] for line in found} == {"4:22:"}


def test_all_problems_come_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    found = problems("""\
imag: a
image: Not An Image
network: {subnet: nowhere}
hosts:
  gpu1: {address: a, gpus: many}
  gpu2: {adress: b, ssh: {port: "22"}}
  gpu1: {address: c}
""")
    places = [tuple(int(n) for n in line.split(":")[:2]) for line in found]
    assert places == sorted(places)
    assert len(places) == 10


@pytest.mark.parametrize(
    ("image", "valid"),
    [
        ("vllm/vllm-openai:v0.33.0", True),
        ("vllm", True),
        ("registry.example.org:5000/team/vllm-openai", True),
        ("localhost/a__b.c-d:X", True),
        ("a@sha256:" + "0" * 64, True),
        ("a:v1@sha256:" + "0" * 64, True),
        ("vLLM/vllm", True),  # Docker reads the part before the slash as a registry
        ("vllm/vLLM", False),
        ("https://registry/vllm", False),
        ("vllm:", False),
        ("vllm latest", False),
        ("vllm@sha256:123", False),
        ("/vllm", False),
        ("-v", False),
        ("vllm:" + "x" * 129, False),
    ],
)
def test_image_names_follow_dockers_grammar(
    loaded: Callable[[str], Inventory], image: str, valid: bool
) -> None:
    text = f"cluster: demo\nimage: '{image}'\nhosts: {{gpu1: {{address: a}}}}\n"
    if valid:
        assert loaded(text).image == image
    else:
        with pytest.raises(InventoryError) as caught:
            loaded(text)
        assert ":2:8: `image` must be an image name such as" in str(caught.value.detail)


def test_one_problem_and_several_are_counted(loaded: Callable[[str], Inventory]) -> None:
    with pytest.raises(InventoryError, match=r"inventory\.yaml has a problem$"):
        loaded(HOST + "x: 1")
    with pytest.raises(InventoryError, match=r"inventory\.yaml has 2 problems$"):
        loaded(HOST + "x: 1\ny: 2")
