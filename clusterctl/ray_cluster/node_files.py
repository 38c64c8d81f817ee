"""The files of a node: the supervisor's program, node.json, and the hosts file."""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.engine.step import HostView
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.node import package
from clusterctl.node.documents import NodeDocument, from_json, to_json
from clusterctl.node.files import NodePaths
from clusterctl.ray_cluster.environment import NON_CARRY_OVER_FILE, config_root, non_carry_over
from clusterctl.ray_cluster.hosts_file import HOSTS_FILE, hosts_file
from clusterctl.ray_cluster.nodes import node_document
from clusterctl.ray_cluster.topology import Topology
from clusterctl.steps.directories import DirectoriesPresent, Directory, node_directories
from clusterctl.steps.node_files import FilesPresent, RemoteFile


def directories_present(cluster: str) -> DirectoriesPresent:
    """Return the step for the directories of a node, for this version of clusterctl."""
    version = package.install_dir().rpartition("/")[2]
    own = Directory(config_root(cluster), 0o700)
    return DirectoriesPresent((*node_directories(cluster, version), own))


def files_present(
    inventory: Inventory, topology: Topology, facts: Mapping[str, HostFacts]
) -> FilesPresent:
    """Return the step for node.pyz, node.json, the hosts file of the containers, and the list of
    variables that vLLM must not carry over to other nodes."""
    root, paths = config_root(inventory.cluster), NodePaths(inventory.cluster)
    shared = (
        RemoteFile(package.install_path(), package.build()),
        RemoteFile(f"{root}/{NON_CARRY_OVER_FILE}", non_carry_over(inventory, topology).encode()),
    )

    def of(view: HostView) -> tuple[RemoteFile, ...]:
        document = node_document(inventory, topology, topology.node(view.host.name))
        node_json = RemoteFile(str(paths.node_document), to_json(document).encode())
        if HOSTS_FILE in view.host.mounts.values():
            return (*shared, node_json)  # the user mounts one, maybe the host's: do not write it
        names = hosts_file(topology, facts, view.host.name)
        return (*shared, node_json, RemoteFile(str(paths.declared_hosts), names.encode()))

    return FilesPresent("node files", of, disrupts=_restarts_ray)


def _restarts_ray(file: RemoteFile, now: bytes) -> bool:
    """Whether writing the file makes the supervisor restart Ray: for another command line,
    environment or head. Another list of expected nodes does not."""
    if not now or not file.path.endswith("/node.json"):
        return False
    try:
        old = from_json(NodeDocument, now.decode())
    except ValueError:
        return True
    new = from_json(NodeDocument, file.data.decode())
    return (old.ray_argv, old.env, old.head_ip) != (new.ray_argv, new.env, new.head_ip)
