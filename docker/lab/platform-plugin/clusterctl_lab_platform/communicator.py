"""Communication of CPU ranks over the network alone."""

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class NetworkCpuCommunicator(CpuCommunicator):
    """Ranks on different hosts give their shared memory the same name, which vLLM takes
    for proof that they share it. They do not: always use torch.distributed, so Gloo, over
    the interface of GLOO_SOCKET_IFNAME."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False
