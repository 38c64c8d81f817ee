"""A vLLM platform plugin: CPUs that Ray may hand out like GPUs, one for each host.

vLLM imports this in every process to ask which platform to use, so it must stay free of
imports of vLLM itself: the answer is a name.
"""


def platform() -> str:
    """The platform that replaces vLLM's own for CPUs."""
    return "clusterctl_lab_platform.cpu.RayCpuPlatform"
