"""Machines that are not here: what describes them to XLA, and the packages that compile."""

import importlib.metadata
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.data.pypi_archive import CACHE
from experiments.harness.errors import UserError

COMMAND = "python -m experiments compile --install"
# NVIDIA H100 SXM as XLA describes one to itself (xla/tools/hlo_opt/gpu_specs, h100_sxm.txtpb).
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclass(frozen=True)
class Target:
    """One kind of machine: its platform, and devices as the platform's compiler names them."""

    platform: str
    topology: str
    module: str  # without which it can't be compiled for

    @property
    def missing(self) -> str | None:
        """Why this target is left out; None where it is not."""
        if (folder() / self.module).is_dir():
            return None
        return f"{self.module} is not in {folder()}: {COMMAND}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a process that compiles for it starts with."""
        found = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        path = [str(folder()), *filter(None, [os.environ.get("PYTHONPATH")])]
        found |= {"PYTHONPATH": os.pathsep.join(path)}
        if self.platform == "tpu":
            found.pop("XLA_FLAGS", None)
            return found | {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        toolkit = folder() / "nvidia" / "cu13"
        flags = "--xla_gpu_autotune_level=0"  # to tune needs the device
        found["XLA_FLAGS"] = f"{flags} --xla_gpu_cuda_data_dir={toolkit}"
        found["PATH"] = f"{toolkit / 'bin'}{os.pathsep}{found['PATH']}"
        return found | {"CUDA_VISIBLE_DEVICES": "-1", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}

    def devices(self) -> list[Any]:
        """Return descriptions of its devices."""
        from jax.experimental import topologies

        how = {"target_config": H100, "topology": self.topology} if self.platform == "cuda" else {}
        name = "h100" if self.platform == "cuda" else self.topology
        return list(topologies.get_topology_desc(name, self.platform, **how).devices)


TARGETS = {
    "v5e": Target("tpu", "v5e:2x2", "libtpu"),
    "v5p": Target("tpu", "v5p:2x2x1", "libtpu"),
    "v6e": Target("tpu", "v6e:2x2", "libtpu"),
    "tpu7x": Target("tpu", "tpu7x:2x2x1", "libtpu"),
    "h100": Target("cuda", "1x1x1", "jax_cuda13_plugin"),
}


def folder() -> Path:
    """Return where the compilers are: beside the environment, where JAX would try to use them."""
    version = importlib.metadata.version("jax")
    return CACHE.expanduser() / f"compilers-jax-{version}-python-3.{sys.version_info.minor}"


def install() -> None:
    """Install the compilers that this version of JAX takes, without CUDA's libraries."""
    version = importlib.metadata.version("jax")
    names = " ".join(importlib.metadata.requires("jax") or ())
    libtpu = re.search(r"libtpu\s*==[\d.]+\*?", names)
    wanted = [libtpu[0] if libtpu else "libtpu"]
    wanted += [f"jax-cuda13-{part}=={version}" for part in ("plugin", "pjrt")]
    wanted += ["nvidia-cuda-nvcc", "nvidia-nvvm"]
    print(f"installing {', '.join(wanted)} (470 MB) into {folder()}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--no-deps", "--upgrade", "--target", str(folder()), *wanted])
    if done.returncode:
        raise UserError(f"--install: pip ended with {done.returncode}; what it printed says why.")
