"""vLLM's CPU platform, as a device that Ray counts."""

from vllm.platforms.cpu import CpuPlatform


class RayCpuPlatform(CpuPlatform):
    """A host started with `ray start --num-gpus=1` offers one such device."""

    # vLLM's Ray executor refuses platforms that leave this empty.
    ray_device_key: str = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "clusterctl_lab_platform.communicator.NetworkCpuCommunicator"
