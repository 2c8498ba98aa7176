"""A GPU in the documents and tables of commands, its MIG devices with it."""

from typing import Any

from gpuhook import version
from gpuhook.cli import render
from gpuhook.model import Gpu

HEADING = ("GPU", "UUID", "BUS ID", "NAME", "BRAND", "COMPUTE", "STATE")


def part(gpu: Gpu) -> dict[str, Any]:
    """A GPU in a JSON document; `mig_devices` are those of a GPU that is divided."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "bus_id": gpu.bus_id,
        "minor": gpu.minor,
        "name": gpu.name,
        "brand": gpu.brand,
        "arch": version.text(gpu.arch),
        "error": gpu.error,
        "mig": gpu.mig,
        "mig_devices": [
            {"index": mig.index, "uuid": mig.uuid, "gpu_instance": mig.gi, "compute_instance": mig.ci}
            for mig in gpu.migs
        ],
    }


def table(gpus: list[dict[str, Any]]) -> list[str]:
    """Lines of a table of such GPUs, and of one of their MIG devices by NVML's `GPU:device`."""
    rows = [
        (
            str(gpu["index"]),
            *(gpu[name] or "-" for name in ("uuid", "bus_id", "name", "brand", "arch")),
            gpu["error"] or ("MIG mode" if gpu["mig"] else "ok"),
        )
        for gpu in gpus
    ]
    lines = render.table(HEADING, rows)
    migs = [(name, mig["uuid"], instances) for gpu in gpus for name, mig, instances in names(gpu)]
    return [*lines, "", *render.table(("MIG", "UUID", "GI/CI"), migs)] if migs else lines


def names(gpu: dict[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """The MIG devices of such a GPU: NVML's `GPU:device`, the device, its GPU and compute instance as `1/0`."""
    return [
        (f"{gpu['index']}:{mig['index']}", mig, f"{mig['gpu_instance']}/{mig['compute_instance']}")
        for mig in gpu["mig_devices"]
    ]
