"""A head and a worker in memory, and every step over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

from clusterctl.containers.spec import CLUSTER_LABEL, ContainerSpec
from clusterctl.engine.step import Change, HostView, Step
from clusterctl.facts.model import Address, EngineFacts, GpuReport, HostFacts, NicFacts, Os
from clusterctl.inventory.model import GatewayAccess
from clusterctl.inventory.outside import Certificate
from clusterctl.node.documents import (
    DELETED,
    KeysDocument,
    ServiceDocument,
    UnreadableDocument,
    to_json,
)
from clusterctl.steps.container_engine import ContainerEngine, EngineAbsent
from clusterctl.steps.engine_restart import NoUnitsBesideEngine, UnitsBesideEngine, units
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import (
    ENGINE_PACKAGES,
    IMAGES,
    DirectoriesPresent,
    FilesPresent,
    PathsAbsent,
    RemoteFile,
    node_directories,
)
from clusterctl.steps.firewall import Admission, Firewall, FirewallAbsent
from clusterctl.steps.gateway_certificate import GatewayCertificate
from clusterctl.steps.host_proxy import HostProxy
from clusterctl.steps.node_container import ContainersAbsent, NodeContainer
from clusterctl.steps.node_image import (
    BASE_LABEL,
    GATEWAY,
    GATEWAY_LABEL,
    RAY_LABEL,
    REFERENCE_LABEL,
    ImagePulled,
    ImagesAbsent,
    NodeImage,
    RayInImage,
    content,
)
from clusterctl.steps.secrets import RAY_TOKEN, HeadSecret, SecretCopied, SecretsMade, secret_path
from clusterctl.steps.service_documents import ServiceDocumentsReadable
from clusterctl.steps.trusted_ca import TrustedCa
from clusterctl.steps.virtual_address import KEEPALIVED, VirtualAddress, VirtualAddressAbsent
from clusterctl.transfer.transfer import Transfer
from tests.fakes.chain import RELAY, FakeChains
from tests.fakes.container_engine import foreign, image
from tests.fakes.host import DOCKER_PACKAGES, FakeHost, fake_driver, fake_view
from tests.fakes.made_image import MadeImage
from tests.unit.steps.shipping import (
    IMAGE,
    NEWER,
    REFERENCE,
    from_archive,
    from_registry,
    give_image,
    ship,
)

TOKEN = secret_path("demo", RAY_TOKEN)
ETC = "/etc/clusterctl/demo"


def facts(*, architecture: str = "x86_64", rootless: bool = False) -> HostFacts:
    engine = EngineFacts(True, True, "20.10.24", "/var/lib/docker",
                         (), ("runc",), rootless, None)  # fmt: skip
    debian = Os("debian", (), "12", "bookworm", "Debian GNU/Linux 12", architecture, "6.1.0")
    return HostFacts(
        hostname="gpu1",
        hostname_addresses=("192.168.1.1",),
        machine_id="m",
        boot_id="b",
        os=debian,
        cpus=2,
        memory=1,
        shm=1,
        disks=(),
        nics=(),
        default_nic=None,
        gpus=GpuReport((), None),
        engine=engine,
        cgroup_version=2,
        nofile_hard=20000,
        clock=0.0,
        clock_offset=0.0,
        user="root",
        root=True,
        sudo_error=None,
        python3="/usr/bin/python3",
        listening_ports=(),
    )


@dataclass
class Cluster:
    """gpu1 is the head, gpu2 a worker. What is done to one step is done on `view`."""

    head: FakeHost
    worker: FakeHost
    head_view: HostView
    worker_view: HostView
    engines: Engines

    @property
    def node_image(self) -> NodeImage:
        return NodeImage(REFERENCE, self.engines, self.head_view)


def cluster() -> Cluster:
    """Both with a running engine and nothing else."""
    head, worker = FakeHost("gpu1"), FakeHost("gpu2")
    views = fake_view(head, facts()), fake_view(worker, facts())
    return Cluster(head, worker, *views, Engines(fake_driver))


def transfer(made: Cluster, wanted: MadeImage, *, known: bool = False) -> Transfer:
    """To the head, out of an archive; `known`: out of a registry, which has a digest of it."""
    chains = FakeChains({"gpu1": made.head.engine})
    find = (from_registry if known else from_archive)(wanted)
    return ship(find, {"gpu1": made.head_view}, chains)


def spec(cluster: Cluster, *, command: str = "node") -> ContainerSpec:
    return ContainerSpec(
        name="clusterctl-demo",
        image="sha256:x",
        command=(command,),
        env={"A": "1"},
        labels={CLUSTER_LABEL: "demo"},
    )


def give_base(host: FakeHost) -> None:
    host.engine.images["base"] = image("base", REFERENCE)


def give_node_image(host: FakeHost, *, layer: str = "ray") -> None:
    base = image("base", REFERENCE)
    labels = {
        BASE_LABEL: content(base),
        RAY_LABEL: "2.60.0",
        GATEWAY_LABEL: GATEWAY,
        REFERENCE_LABEL: REFERENCE,
    }
    tag = "clusterctl/vllm-openai:v0.33.0-ray2.60.0"
    node = replace(image("node", tag, layers=(*base.layers, layer)), labels=labels)
    host.engine.images |= {"node": node}


@dataclass(frozen=True)
class Case:
    """A step with work to do on one host. `made` gets a fresh cluster each time."""

    name: str
    prepare: Callable[[Cluster], None]
    make: Callable[[Cluster], Step]
    on_head: bool = True

    def set_up(self) -> tuple[Cluster, Step, HostView, FakeHost]:
        made = cluster()
        self.prepare(made)
        view, host = (
            (made.head_view, made.head) if self.on_head else (made.worker_view, made.worker)
        )
        return made, self.make(made), view, host


def _bare(made: Cluster) -> None:
    made.head.packages.clear()
    made.head.engine.running = False


def _engine_stopped(made: Cluster) -> None:
    made.head.engine.running = False


def _etc(made: Cluster) -> None:
    made.head.directories[ETC] = made.worker.directories[ETC] = 0o700


SERVICE = ServiceDocument(
    name="tiny", model="tiny", served_name="tiny", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.1", port=8000, tensor_parallel=1, pipeline_parallel=1, gpus=1, fingerprint="f",
)  # fmt: skip
UNREADABLE = (
    UnreadableDocument("services/tiny.json", "cut short", to_json(SERVICE)),
    UnreadableDocument("services/other.json", "not JSON"),
    UnreadableDocument("keys.json", "not JSON", to_json(KeysDocument())),
)


GONE = [UnreadableDocument("services/tiny.json", DELETED, to_json(SERVICE))]


def _emptied(made: Cluster) -> None:
    made.head.directories |= {ETC: 0o700, f"{ETC}/services": 0o700}


def _cut_short(made: Cluster) -> None:
    made.head.directories |= {ETC: 0o700, f"{ETC}/services": 0o700}
    made.head.files[f"{ETC}/services/tiny.json"] = (to_json(SERVICE).encode()[:40], 0o600)
    made.head.files[f"{ETC}/services/other.json"] = (b"#", 0o600)
    made.head.files[f"{ETC}/keys.json"] = (b"#", 0o600)


def _token_on_head(made: Cluster) -> None:
    _etc(made)
    made.head.files[TOKEN] = (b"0123", 0o600)


def _other_container(made: Cluster) -> None:
    NodeContainer("demo", lambda _: spec(made, command="old"), made.engines, settle=0).apply(
        made.head_view,
        None,  # type: ignore[arg-type]
    )


def _surplus_container(made: Cluster) -> None:
    surplus = foreign("clusterctl-demo-2", cluster="demo")
    made.head.engine.containers[surplus.id] = surplus


def _image_in_registry(made: Cluster) -> None:
    made.head.engine.registry[REFERENCE] = image("base", REFERENCE)


def _nameless(made: Cluster) -> None:
    give_image(made.head, IMAGE, f"{RELAY}/image:1")


def _older_image(made: Cluster) -> None:
    give_image(made.head, IMAGE, REFERENCE)


def _image_on_head(made: Cluster) -> None:
    give_base(made.head)


def _node_image_on_head(made: Cluster) -> None:
    give_base(made.head)
    give_node_image(made.head)


def _all_of_it(made: Cluster) -> None:
    _node_image_on_head(made)
    made.head.directories |= {ETC: 0o700, f"{ETC}/services": 0o700}
    made.head.files |= {TOKEN: (b"1", 0o600), f"{ETC}/node.json": (b"{}", 0o644)}
    made.head.files[IMAGES] = (f"{REFERENCE}\n".encode(), 0o644)
    made.head.files[ENGINE_PACKAGES] = ("\n".join(DOCKER_PACKAGES).encode(), 0o644)


def _shared(made: Cluster) -> None:
    made.head.directories["/var/lib/clusterctl/caches"] = 0o755


def _files(_: HostView) -> tuple[RemoteFile, ...]:
    return RemoteFile(f"{ETC}/node.json", b"{}"), RemoteFile(f"{ETC}/node.pyz", b"PK", 0o755)


def _node_container(made: Cluster) -> Step:
    return NodeContainer("demo", lambda _: spec(made), made.engines, settle=0)


def _engine(_: Cluster) -> Step:
    return ContainerEngine(pause=lambda _: None)


ADMITTED = Admission(("10.0.0.1", "10.0.0.2"), ("6379", "11000-11999"))


def _systemd(made: Cluster) -> None:
    made.head.directories |= {ETC: 0o700, "/etc/systemd/system": 0o755}


def _other_firewall(made: Cluster) -> None:
    _systemd(made)
    Firewall("demo", Admission(("10.0.0.9",), ("6379",))).apply(made.head_view, Change("close"))


def _flushed(made: Cluster) -> None:
    _systemd(made)
    Firewall("demo", ADMITTED).apply(made.head_view, Change("close"))
    made.head.tables.loaded.clear()


CAS = tuple(Certificate(f"-----\n{name}\n-----\n", 0.0, name) for name in ("Root", "Old"))


def _other_ca(made: Cluster) -> None:
    TrustedCa("demo", CAS[1:], "old.corp/vllm:1").apply(made.head_view, Change("trust"))


PROXY = {"https_proxy": "http://proxy.corp:3128", "no_proxy": "localhost,gpu1"}


def _proxy(variables: dict[str, str]) -> HostProxy:
    return HostProxy("demo", variables, pause=lambda _: None)


def _other_proxy(made: Cluster) -> None:
    _proxy({"http_proxy": "http://old.corp", "no_proxy": "gpu1"}).apply(
        made.head_view, Change("use")
    )


def _other_unit(made: Cluster) -> None:
    for path in units("demo"):
        made.head.files[path] = (b"an older one", 0o644)


def _started_after_engine(made: Cluster) -> None:
    _after_engine().apply(made.head_view, Change("start"))


def _after_engine() -> UnitsBesideEngine:
    return UnitsBesideEngine("demo", lambda _: True)


def _on_network(view: HostView, ip: str) -> HostFacts:
    nic = NicFacts("eth0", f"02:00:00:00:00:{ip[-2:]}", 1500, "up", 10_000, "physical", None,
                   (Address("127.0.0.1", 8, "host"), Address(ip, 24, "global")))  # fmt: skip
    return replace(view.facts, nics=(nic,))


def shared_address(made: Cluster) -> VirtualAddress:
    seen = {"gpu1": "10.0.0.11", "gpu2": "10.0.0.12"}
    of = {"gpu1": made.head_view, "gpu2": made.worker_view}
    facts_of = {name: _on_network(of[name], ip) for name, ip in seen.items()}
    return VirtualAddress("demo", IPv4Address("10.0.0.100"), facts_of, pause=lambda _: None)


def _with_directory(made: Cluster) -> None:
    made.head.directories[ETC] = 0o700


def _keepalived(made: Cluster) -> None:
    _with_directory(made)
    made.head.packages |= {KEEPALIVED}


def _shared_address(made: Cluster) -> None:
    _with_directory(made)
    shared_address(made).apply(made.head_view, Change("share"))


def _shared_with_others(made: Cluster) -> None:
    _shared_address(made)
    made.head.files[f"{ETC}/keepalived.conf"] = (b"other peers", 0o600)


CASES = (
    Case("shared address, no keepalived there", _with_directory, shared_address),
    Case("shared address, keepalived there", _keepalived, shared_address),
    Case("shared address, other peers", _shared_with_others, shared_address),
    Case("shared address gone", _shared_address, lambda _: VirtualAddressAbsent("demo")),
    Case("unit after Docker, none there", lambda _: None, lambda _: _after_engine()),
    Case("unit after Docker, another there", _other_unit, lambda _: _after_engine()),
    Case("unit gone", _started_after_engine, lambda _: NoUnitsBesideEngine("demo")),
    Case(
        "unit gone that systemd does not know", _other_unit, lambda _: NoUnitsBesideEngine("demo")
    ),
    Case(
        "CA, none there", lambda _: None, lambda _: TrustedCa("demo", CAS, "registry.corp/vllm:1")
    ),
    Case("CA in place of another", _other_ca, lambda _: TrustedCa("demo", CAS[:1], "vllm:1")),
    Case("proxy, Docker runs", lambda _: None, lambda _: _proxy(PROXY)),
    Case("proxy, no Docker there", _bare, lambda _: _proxy(PROXY)),
    Case("proxy in place of another", _other_proxy, lambda _: _proxy(PROXY)),
    Case("proxy gone", _other_proxy, lambda _: _proxy({})),
    Case("CA gone", _other_ca, lambda _: TrustedCa("demo", (), "vllm:1")),
    Case("engine on a bare host", _bare, _engine),
    Case("engine that is stopped", _engine_stopped, _engine),
    Case(
        "directories",
        lambda _: None,
        lambda _: DirectoriesPresent(node_directories("demo", "0.1")),
    ),
    Case("node files", _etc, lambda _: FilesPresent("node files", _files)),
    Case(
        "services that cannot be read",
        _cut_short,
        lambda _: ServiceDocumentsReadable("demo", {"gpu1": UNREADABLE}),
    ),
    Case(
        "services that were deleted",
        _emptied,
        lambda _: ServiceDocumentsReadable("demo", {"gpu1": GONE}),
    ),
    Case("secrets on the head", _etc, lambda _: SecretsMade([TOKEN, f"{ETC}/api.key"])),
    Case(
        "certificate made for the gateway",
        _etc,
        lambda _: GatewayCertificate("demo", GatewayAccess(tls=True), ["10.0.0.1", "gpu1"]),
    ),
    Case(
        "secret on a worker",
        _token_on_head,
        lambda made: SecretCopied(HeadSecret(made.head_view, TOKEN)),
        on_head=False,
    ),
    Case("container, none there", lambda _: None, _node_container),
    Case("container from another spec", _other_container, _node_container),
    Case("container beside a surplus one", _surplus_container, _node_container),
    Case("image, none there", lambda _: None, lambda made: transfer(made, IMAGE)),
    Case("image from a registry", lambda _: None, lambda made: transfer(made, IMAGE, known=True)),
    Case(
        "image that a registry has, too",
        _older_image,
        lambda made: transfer(made, IMAGE, known=True),
    ),
    Case("image in place of another", _image_on_head, lambda made: transfer(made, IMAGE)),
    Case("image without its name", _nameless, lambda made: transfer(made, IMAGE)),
    Case("top layer of an image", _older_image, lambda made: transfer(made, NEWER)),
    Case(
        "image that only the host can pull",
        _image_in_registry,
        lambda made: ImagePulled(REFERENCE, made.engines, "no way to it", marked=True),
    ),
    Case(
        "node image made",
        _image_on_head,
        lambda made: RayInImage(made.node_image, made.engines),
    ),
    Case("containers gone", _other_container, lambda made: ContainersAbsent("demo", made.engines)),
    Case("images gone", _all_of_it, lambda made: ImagesAbsent(REFERENCE, made.engines, ETC)),
    Case(
        "shared paths gone",
        _shared,
        lambda _: PathsAbsent("caches", ["/var/lib/clusterctl/caches"], last_of=ETC),
    ),
    Case("paths gone", _all_of_it, lambda _: PathsAbsent("node files", [ETC])),
    Case("firewall, no nft there", _systemd, lambda _: Firewall("demo", ADMITTED)),
    Case("firewall in place of another", _other_firewall, lambda _: Firewall("demo", ADMITTED)),
    Case("firewall that was flushed", _flushed, lambda _: Firewall("demo", ADMITTED)),
    Case("firewall gone", _other_firewall, lambda _: FirewallAbsent("demo")),
    Case("engine gone", _all_of_it, lambda _: EngineAbsent("demo")),
)
