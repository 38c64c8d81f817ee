"""GPUs by name, with the memory that PyTorch reports for them, and `--gpus 2xH200`.

`memory_gib` is `torch.cuda.mem_get_info()[1]`, the figure that vLLM multiplies by
--gpu-memory-utilization; it is less than the marketing size and less than nvidia-smi's. Each comes
from a public log or issue, named in `source`. Bandwidth (GB/s) and dense bf16 TFLOP/s (fp16 before
Ampere) are from the vendor's data sheets; they are only used to rank layouts by speed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

from clusterctl.errors import UsageError

# PyTorch's total divided by nvidia-smi's, for GPUs outside the catalogue. For those in it the ratio
# is between 0.972 (T4) and 0.993 (H100).
REPORTED_SHARE = 0.985


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A model of GPU."""

    name: str
    memory_gib: float
    capability: int  # Compute capability x 10
    bandwidth: float
    tflops: float
    multiprocessors: int  # SMs
    source: str = ""
    assumed: bool = False  # The memory is an estimate, not a reading

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU: no graphs, other defaults, and a KV cache of a configured size."""
        return self.name == "CPU"

    @property
    def has_bfloat16(self) -> bool:
        """Whether it supports bf16: compute capability 8.0 and newer (vllm/platforms/cuda.py)."""
        return self.capability >= 80

    @property
    def is_hopper(self) -> bool:
        """Whether it is an H100, H200 or H20 (capability 9.0)."""
        return self.capability == 90

    @property
    def pcie(self) -> float:
        """The data rate of its PCIe link in GB/s: 16 lanes of generation 3 before Ampere, of 5 from
        Hopper on, else of 4, as in the vendor's data sheets. GB10 and GH200 have faster links."""
        lanes_of_3 = 15.75
        return lanes_of_3 * (1 if self.capability < 80 else 4 if self.capability >= 90 else 2)

    @property
    def has_native_fp8(self) -> bool:
        """Whether it computes in fp8 (from 8.9 on); else vLLM decompresses weights with Marlin."""
        return self.capability >= 89


SHARES_MEMORY = "GB10"  # A GPU whose memory is the host's

_CATALOGUE: tuple[GpuModel, ...] = (
    GpuModel("T4", 14.58, 75, 320, 65, 40, "datawhalechina/self-llm#162"),
    GpuModel(
        "V100-16GB", 15.77, 70, 900, 125, 80, "16 GB card, scaled from the 32 GB", assumed=True
    ),
    GpuModel("V100-32GB", 31.74, 70, 900, 125, 80, "a log of vLLM 0.7.1 (worker.py)"),
    GpuModel("A10", 22.09, 86, 600, 125, 72, "public out-of-memory reports"),
    GpuModel("A10G", 22.06, 86, 600, 70, 80, "public out-of-memory reports"),
    GpuModel("A30", 23.50, 80, 933, 165, 56, "RB-Modulation#5", assumed=True),
    GpuModel("A40", 44.40, 86, 696, 150, 84, "as L40: same 46068 MiB", assumed=True),
    GpuModel("A100-40GB", 39.50, 80, 1555, 312, 108, "TianheWu/CoSeR#10"),
    GpuModel("A100-80GB", 79.25, 80, 1935, 312, 108, "levihsu/OOTDiffusion#235"),
    GpuModel("A800-80GB", 79.33, 80, 2039, 312, 108, "hahnyuan/PB-LLM#3"),
    GpuModel("H100", 79.19, 90, 3350, 989, 132, "llm-d-planner, accuracy/results/v0.19.0"),
    GpuModel("H100-NVL", 93.00, 90, 3900, 835, 132, "ali-vilab/VACE#56"),
    GpuModel("H800", 79.19, 90, 3350, 989, 132, "as H100", assumed=True),
    GpuModel("H20", 95.00, 90, 4000, 148, 78, "public out-of-memory reports"),
    GpuModel("H200", 139.80, 90, 4800, 989, 132, "public out-of-memory reports"),
    GpuModel("B200", 178.35, 100, 8000, 2250, 148, "public out-of-memory reports"),
    GpuModel("L4", 22.03, 89, 300, 121, 58, "public out-of-memory reports"),
    GpuModel("L40", 44.40, 89, 864, 181, 142, "QwenLM/Qwen3-VL#2097"),
    GpuModel("L40S", 44.40, 89, 864, 362, 142, "as L40: same 46068 MiB", assumed=True),
    GpuModel("L20", 44.40, 89, 864, 120, 92, "as L40: same 46068 MiB", assumed=True),
    GpuModel("GH200-96GB", 94.50, 90, 4000, 989, 132, "96 GB card, scaled", assumed=True),
    GpuModel("GB10", 121.69, 121, 273, 62, 48, "GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47"),
    GpuModel("RTX 2080 Ti", 10.75, 75, 616, 54, 68, "11264 MiB card, scaled", assumed=True),
    GpuModel("RTX 3060", 11.76, 86, 360, 51, 28, "12288 MiB card, scaled", assumed=True),
    GpuModel("RTX 3080 10GB", 9.77, 86, 760, 119, 68, "10240 MiB card, scaled", assumed=True),
    GpuModel("RTX 3080 20GB", 19.58, 86, 760, 119, 68, "public out-of-memory reports"),
    GpuModel("RTX 3090", 23.69, 86, 936, 142, 82, "OpenBMB/MiniCPM-V#612"),
    GpuModel("RTX 3090 Ti", 23.69, 86, 1008, 160, 84, "as RTX 3090", assumed=True),
    GpuModel("RTX 4060 Ti 16GB", 15.70, 89, 288, 44, 34, "16380 MiB card, scaled", assumed=True),
    GpuModel("RTX 4080", 15.70, 89, 717, 97, 76, "16376 MiB card, scaled", assumed=True),
    GpuModel("RTX 4090", 23.64, 89, 1008, 165, 128, "TMElyralab/MuseTalk#76"),
    GpuModel("RTX 5070 Ti", 15.48, 120, 896, 88, 70, "as RTX 5080", assumed=True),
    GpuModel("RTX 5080", 15.48, 120, 960, 113, 84, "vllm-project/vllm#14452"),
    GpuModel("RTX 5090", 31.36, 120, 1792, 210, 170, "public out-of-memory reports"),
    GpuModel("RTX A5000", 23.68, 86, 768, 111, 64, "zai-org/GLM-4#730"),
    GpuModel("RTX 6000 Ada", 47.40, 89, 960, 182, 142, "as RTX A6000", assumed=True),
    GpuModel("RTX PRO 6000", 94.97, 120, 1792, 252, 188, "antirez/ds4#431"),
    GpuModel("RTX A6000", 47.40, 86, 768, 155, 84, "49140 MiB card, scaled", assumed=True),
)

# More cards sold since 2018, by the names of NVIDIA's own list of supported GPUs (README.md of
# NVIDIA/open-gpu-kernel-modules at df1c9a3, 2026-03-05): GB of the data sheet, compute capability
# x 10, GB/s, TFLOP/s and SMs. PyTorch reports about 0.98 of a card's GB.
_DATA_SHEETS: tuple[tuple[str, float, int, float, float, int], ...] = (
    ("B300", 273, 103, 8000, 2250, 148),
    ("GB300", 280, 103, 8000, 2500, 152),
    ("GB200", 188, 100, 8000, 2500, 152),
    ("H20-3e", 142.65, 90, 4800, 148, 78),
    ("H20-NVL16", 142.65, 90, 4800, 148, 78),
    ("H800-NVL", 94.9, 90, 3900, 835, 132),
    ("GH200-144GB", 143, 90, 4900, 989, 132),
    ("A100-SXM-64GB", 64.7, 80, 1640, 312, 124),
    ("A800-40GB", 40.3, 80, 1555, 312, 108),
    ("AX800", 80.8, 80, 1935, 312, 108),
    ("L2", 22.5, 89, 300, 48, 44),
    ("A2", 15, 86, 200, 18, 10),
    ("A16", 15, 86, 200, 18, 10),
    ("TITAN RTX", 24, 75, 672, 65, 72),
    ("TITAN V", 12, 70, 653, 110, 80),
    ("Quadro GV100", 32.4, 70, 870, 118, 80),
    ("Quadro RTX 8000", 48, 75, 672, 65, 72),
    ("Quadro RTX 6000", 24, 75, 672, 65, 72),
    ("Quadro RTX 5000", 16, 75, 448, 45, 48),
    ("Quadro RTX 4000", 8, 75, 416, 28, 36),
    ("RTX 2080 SUPER", 8, 75, 496, 45, 48),
    ("RTX 2080", 8, 75, 448, 42, 46),
    ("RTX 2070 SUPER", 8, 75, 448, 36, 40),
    ("RTX 2070", 8, 75, 448, 30, 36),
    ("RTX 2060 SUPER", 8, 75, 448, 28, 34),
    ("RTX 2060", 6, 75, 336, 26, 30),
    ("RTX 3080 Ti", 12, 86, 912, 136, 80),
    ("RTX 3080 12GB", 12, 86, 912, 122, 70),
    ("RTX 3070 Ti", 8, 86, 608, 87, 48),
    ("RTX 3070", 8, 86, 448, 81, 46),
    ("RTX 3060 Ti", 8, 86, 448, 65, 38),
    ("RTX 3050", 8, 86, 224, 36, 20),
    ("RTX 4090 D", 24, 89, 1008, 147, 114),
    ("RTX 4080 SUPER", 16, 89, 736, 104, 80),
    ("RTX 4070 Ti SUPER", 16, 89, 672, 88, 66),
    ("RTX 4070 Ti", 12, 89, 504, 80, 60),
    ("RTX 4070 SUPER", 12, 89, 504, 71, 56),
    ("RTX 4070", 12, 89, 504, 58, 46),
    ("RTX 4060 Ti", 8, 89, 288, 44, 34),
    ("RTX 4060", 8, 89, 272, 30, 24),
    ("RTX 4090 Laptop", 16, 89, 576, 106, 76),
    ("RTX 5090 Laptop", 24, 120, 896, 107, 82),
    ("RTX 5090 D", 32, 120, 1792, 210, 170),
    ("RTX 5090 D v2", 24, 120, 1344, 210, 170),
    ("RTX 5070", 12, 120, 672, 62, 48),
    ("RTX 5060 Ti 16GB", 16, 120, 448, 48, 36),
    ("RTX 5060 Ti", 8, 120, 448, 48, 36),
    ("RTX 5060", 8, 120, 448, 38, 30),
    ("RTX 5050", 8, 120, 320, 26, 20),
    ("RTX A5500", 24, 86, 768, 136, 80),
    ("RTX A4500", 20, 86, 640, 95, 56),
    ("RTX A4000", 16, 86, 448, 77, 48),
    ("RTX A2000 12GB", 12, 86, 288, 32, 26),
    ("RTX A2000", 6, 86, 288, 32, 26),
    ("RTX 5880 Ada", 48, 89, 960, 138, 110),
    ("RTX 5000 Ada", 32, 89, 576, 130, 100),
    ("RTX 4500 Ada", 24, 89, 432, 79, 60),
    ("RTX 4000 Ada", 20, 89, 360, 53, 48),
    ("RTX 4000 SFF Ada", 20, 89, 280, 38, 48),
    ("RTX 2000 Ada", 16, 89, 224, 24, 22),
    ("RTX 6000D", 84, 120, 1570, 220, 156),
    ("RTX PRO 5000 72GB", 72, 120, 1344, 147, 110),
    ("RTX PRO 5000", 48, 120, 1344, 147, 110),
    ("RTX PRO 4500", 32, 120, 896, 110, 82),
    ("RTX PRO 4000", 24, 120, 672, 93, 70),
    ("RTX PRO 4000 SFF", 24, 120, 432, 48, 70),
    ("RTX PRO 2000", 16, 120, 288, 34, 34),
)
_LISTED = tuple(
    GpuModel(name, round(0.98 * gb, 2), capability, rate, tflops, sms, "data sheet", assumed=True)
    for name, gb, capability, rate, tflops, sms in _DATA_SHEETS
)

# By folded name
_OTHER_NAMES = {
    "a100": "A100-80GB", "a800": "A800-80GB", "v100": "V100-32GB",
    "h10080gb": "H100", "h200nvl": "H200", "gh200480gb": "GH200-96GB",
    "gh200120gb": "GH200-96GB", "gh200": "GH200-96GB", "gh200144g": "GH200-144GB",
    "a80040gbactive": "A800-40GB", "a10080gblc": "A100-80GB", "a80080gblc": "A800-80GB",
    "3080": "RTX 3080 10GB", "rtx3080": "RTX 3080 10GB", "3090": "RTX 3090",
    "4090": "RTX 4090", "5080": "RTX 5080", "5090": "RTX 5090", "2080ti": "RTX 2080 Ti",
}  # fmt: skip

# vLLM on a CPU; its KV cache is set by VLLM_CPU_KVCACHE_SPACE or --kv-cache-memory-bytes.
CPU = GpuModel("CPU", 0.0, 80, 20, 0.5, 1, "no GPU: the KV cache has a given size")

_NEAR = 0.75  # GTX1060 and RTX4090 are alike to 0.57, RTX3009 and RTX3090 to 0.86

# Families before compute capability 7.0, which vLLM needs
_TOO_OLD = re.compile(r"(gtx|titanx|p4$|p40|p100|k80|m40|m60)")

_ITEM = re.compile(r"^(?:(\d{1,3})\s*[x*]\s*)?(.+)$", re.IGNORECASE)
_SIZED = re.compile(r"^(.*):\s*(\d{1,4}(?:\.\d{1,3})?)\s*(?:gib|g)?$", re.IGNORECASE)


def _folded(name: str) -> str:
    """Return a name without brand, form factor (SXM4, PCIe), kind of memory and punctuation."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for brand in ("nvidia", "geforce", "tesla", "quadro"):
        plain = plain.removeprefix(brand)
    return re.sub(r"sxm[2-6]?|pcie|hbm[23]e?", "", plain)


# What nvidia-smi prints after the name of a card: RTX PRO 6000 Blackwell Server Edition
_SUFFIXES = re.compile(
    r"(generation|embedded|gpu|ac|blackwell|(server|maxqworkstation|workstation|sff)edition)$"
)

_BY_NAME = {_folded(gpu.name): gpu for gpu in (*_LISTED, *_CATALOGUE)}


def known_gpus() -> tuple[GpuModel, ...]:
    """Return the catalogue, smallest capability first within a product line."""
    return _CATALOGUE


def find_gpu(name: str) -> GpuModel | None:
    """Return the catalogue's entry for a name as users or nvidia-smi write it."""
    folded = _folded(name)
    if folded.endswith("sffedition"):
        folded = folded.removesuffix("edition").replace("blackwell", "")
    while folded:
        found = _BY_NAME.get(_folded(_OTHER_NAMES.get(folded, folded)))
        shorter = _SUFFIXES.sub("", folded)
        if found or shorter == folded:
            return found
        folded = shorter
    return None


def gpu_of_host(name: str, smi_mib: int | None = None) -> GpuModel:
    """Return the GPU that a host or inventory names. `smi_mib`: nvidia-smi's memory.total.

    A name outside the catalogue gets nvidia-smi's memory minus the driver's share. A size that
    contradicts the catalogue takes precedence: RTX 3080s with 10 and 20 GB have the same name.
    """
    if name == CPU.name:
        return CPU
    found = find_gpu(name)
    reported = (smi_mib or 0) / 1024 * REPORTED_SHARE
    if found is None:
        return GpuModel(name, reported, 80, 1000, 150, 108, "nvidia-smi", assumed=True)
    if reported and abs(reported / found.memory_gib - 1) > 0.05:
        twin = _BY_NAME.get(_folded(f"{name} {round((smi_mib or 0) / 1024)}GB"))
        return twin or replace(found, memory_gib=reported, source="nvidia-smi", assumed=True)
    return found


def parse_gpus(text: str) -> tuple[GpuModel, ...]:
    """Parse `2xH200`, `RTX 3090,H800`, `4xMyGPU:47.5`. Raises UsageError."""
    found: list[GpuModel] = []
    for item in text.split(","):
        match = _ITEM.match(item.strip())
        if match is None or match[1] == "0":
            raise UsageError(f"--gpus {text!r}: cannot parse {item.strip()!r}", hint=_HOW)
        name = match[2].strip()
        sized = _SIZED.match(name)
        if sized:
            gpu = _with_memory(sized[1].strip(), float(sized[2]))
        elif (known := find_gpu(name)) is not None:
            gpu = known
        else:
            if _TOO_OLD.match(_folded(name)):
                raise UsageError(
                    f"--gpus: vLLM does not run on {name}: it needs compute capability 7.0",
                    hint="Volta, Turing or newer: T4, V100, RTX 2080 Ti, RTX 3060, ...",
                )
            close = get_close_matches(_folded(name), list(_BY_NAME), n=3, cutoff=_NEAR)
            names = ", ".join(_BY_NAME[key].name for key in close)
            hint = f"did you mean {names}? {_HOW}" if names else _HOW
            raise UsageError(f"--gpus: unknown GPU {name!r}", hint=hint)
        found += [gpu] * int(match[1] or 1)
    return tuple(found)


_HOW = "write it as 2xH200, as RTX3090,H800, or with the memory PyTorch reports: 2xMyGPU:47.5"


def _with_memory(name: str, memory_gib: float) -> GpuModel:
    if memory_gib <= 0:
        raise UsageError(f"--gpus {name}: a GPU must have more than 0 GiB", hint=_HOW)
    base = find_gpu(name) or GpuModel(name or "GPU", 0.0, 80, 1000, 150, 108, assumed=True)
    return replace(base, memory_gib=memory_gib, source="as given", assumed=False)
