"""What XLA must know of models of GPUs that nobody has saved.

The numbers are NVIDIA's own (data sheets, tuning guides, `cudaGetDeviceProperties`). XLA
plans fusions with them. A real device may have another driver, clock or memory, and then the keys of its programs are
others: a saved target replaces them.
"""

from __future__ import annotations

from typing import Final

from ejcache.util.tuples import NamedTuple


class Gpu(NamedTuple):
    """One model.

    Attributes:
        name: as the driver says it.
        capability: compute capability.
        cores: multiprocessors.
        units: floating point units of a multiprocessor.
        clock: GHz.
        memory: bytes.
        bandwidth: bytes a second.
        cache: bytes of L2.
        shared: bytes of shared memory of a multiprocessor.
        threads: of a multiprocessor, at most.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    units: int
    clock: float
    memory: int
    bandwidth: int
    cache: int
    shared: int
    threads: int = 2048


GPUS: Final[dict[str, Gpu]] = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 85100068864, 2039040 * 10**6, 40 << 20, 164 << 10),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 128, 1.965, 191514411008, 7672320 * 10**6, 132644864, 228 << 10),
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 84942979072, 3352320 * 10**6, 50 << 20, 228 << 10),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 128, 1.98, 150754820096, 4800 * 10**9, 50 << 20, 228 << 10),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 128, 2.04, 23580639232, 300 * 10**9, 48 << 20, 100 << 10, 1536),
}


def target_config(gpu: Gpu, *, runtime: int) -> str:
    """Return the text of XLA's `GpuTargetConfigProto`.

    Args:
        gpu: the model.
        runtime: version of the CUDA runtime, as CUDA counts: 12090.
    """
    version = f"{runtime // 1000}.{runtime % 1000 // 10}.{runtime % 10}"
    # The driver keeps 1 KiB of each block's shared memory for itself.
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_core": gpu.shared,
        "shared_memory_per_block_optin": gpu.shared - 1024,
        "threads_per_core_limit": gpu.threads,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.units,
        "block_dim_limit_x": (1 << 31) - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "memory_bandwidth": gpu.bandwidth,
        "l2_cache_size": gpu.cache,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": gpu.memory,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "name": f'"{gpu.name}"',
        "runtime_version": f'"{version}"',
        "compile_time_toolkit_version": f'"{version}"',
    }
    major, minor = gpu.capability
    lines = [f"cuda_compute_capability {{ major: {major} minor: {minor} }}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return f'gpu_device_info {{ {" ".join(lines)} }} platform_name: "CUDA" device_description_str: "{gpu.name}"'
