"""Ask NVML, in a process of its own: run as `python3 -ISB helper.py ...` by `gpuhook.driver.nvml`, never imported.

NVML is vendor code that initialises hardware, makes nodes under /dev when it is root, may hang and may crash. So it
runs here as nobody, without capabilities, without an environment, with one pipe as its only way out (design, decision
5). This file knows nothing of gpuhook; what it answers is checked by its parent.

Arguments: parent's pid, descriptor of libnvidia-ml or -1, of libcuda or -1, directory of pynvml, uid, gid, comma list
of supplementary groups, seconds of processor time. The answer goes to descriptor 3 as one JSON text.

The two libraries are loaded as nobody too, with one capability that is given up before the first call of NVML: to
read and search directories, since the one they lie in may be closed to nobody, and a library may look beside itself
when it is loaded. They are root's, checked by the parent, and come as descriptors, so that nothing can be put in their
place.
"""

import ctypes
import json
import os
import resource
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIPE = 3
FIRST_FREE = 6  # 0 to 2: /dev/null, 3: the pipe, 4 and 5: the libraries
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID = 2, 6, 7
CAPABILITY_VERSION_3 = 0x20080522
# by number of NVML's nvmlBrandType_t: the words of the requirement language
BRANDS = (
    "unknown",
    "quadro",
    "tesla",
    "nvs",
    "grid",
    "geforce",
    "titan",
    "vapps",
    "vpc",
    "vcs",
    "vws",
    "cloudgaming",
    "quadrortx",
    "nvidiartx",
    "nvidia",
    "geforcertx",
    "titanrtx",
)

libc = ctypes.CDLL(None, use_errno=True)


def set_capabilities(wanted: int) -> None:
    """Make `wanted`, a bit mask, all the capabilities that this process has."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    low, high = wanted & 0xFFFFFFFF, wanted >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def confine(seconds: int) -> None:
    """Give up what needs no other uid: session, core dumps, new privileges, all capabilities but three."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.closerange(FIRST_FREE, 65536)
    os.umask(0o077)
    os.chdir("/")
    os.setsid()
    for limit, number in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, 64 << 30),
    ):
        hard = resource.getrlimit(limit)[1]
        soft = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(limit, (soft, soft))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number in range(64):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # ends with EINVAL above the last; without CAP_SETPCAP: EPERM
    if os.geteuid() == 0:
        set_capabilities(1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_DAC_READ_SEARCH)
    else:
        set_capabilities(0)


def become(uid: int, gid: int, groups: list[int], parent: int) -> None:
    """Become nobody for good. A user namespace without that uid leaves the caller's.

    What stays is the capability to load libraries from closed directories, if it was there.
    """
    if os.geteuid() == 0:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except OSError:
            if namespace_is_initial():
                raise
        set_capabilities(1 << CAP_DAC_READ_SEARCH)
        libc.prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of the uid clears it: so here, not before
    if os.getppid() != parent:
        os._exit(1)


def namespace_is_initial() -> bool:
    """Whether every uid is itself here."""
    with open("/proc/self/uid_map", "rb") as file:
        return file.read().split()[:2] == [b"0", b"0"]


def preload(descriptor: int) -> str:
    """Load a library by descriptor, for NVML's and pynvml's own dlopen to find it by its soname; what failed, or ""."""
    if descriptor < 0:
        return ""
    try:
        ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return ""


def ask(nvml: "Any") -> "dict[str, Any]":
    """Everything that gpuhook wants to know."""
    nvml.nvmlInit()
    answer: dict[str, Any] = {"driver": nvml.nvmlSystemGetDriverVersion(), "cuda": 0, "gpus": []}
    for call in (nvml.nvmlSystemGetCudaDriverVersion_v2, nvml.nvmlSystemGetCudaDriverVersion):
        try:
            answer["cuda"] = call()
            break
        except nvml.NVMLError:
            continue
    for index in range(min(nvml.nvmlDeviceGetCount(), 256)):
        answer["gpus"].append(ask_gpu(nvml, index))
    return answer


def ask_gpu(nvml: "Any", index: int) -> "dict[str, Any]":
    """One GPU; an error of one call leaves its field as it is, and the first is remembered."""
    gpu: dict[str, Any] = {
        "index": index,
        "uuid": "",
        "minor": -1,
        "bus_id": "",
        "name": "",
        "brand": "",
        "arch": [],
        "error": "",
        "mig": False,
        "migs": [],
    }
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        gpu["error"] = str(error)
        return gpu
    vital = {"uuid", "minor", "bus_id"}
    for name, call in (
        ("uuid", nvml.nvmlDeviceGetUUID),
        ("minor", nvml.nvmlDeviceGetMinorNumber),
        ("bus_id", lambda item: bus_id(nvml.nvmlDeviceGetPciInfo(item))),
        ("name", nvml.nvmlDeviceGetName),
        ("brand", lambda item: brand(nvml.nvmlDeviceGetBrand(item))),
        ("arch", lambda item: list(nvml.nvmlDeviceGetCudaComputeCapability(item))),
    ):
        try:
            gpu[name] = call(handle)
        except nvml.NVMLError as error:
            absent = error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            if name in vital or not absent:
                gpu["error"] = gpu["error"] or str(error)
    try:
        gpu["mig"] = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
        gpu["migs"] = ask_migs(nvml, handle) if gpu["mig"] else []
    except nvml.NVMLError as error:
        if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            gpu["error"] = gpu["error"] or str(error)
    return gpu


def ask_migs(nvml: "Any", gpu: "Any") -> "list[list[Any]]":
    """The MIG devices of a GPU that is divided: index, UUID, GPU and compute instance, has graphics."""
    found = []
    for index in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu), 64)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # a place without a device
            raise
        ids = nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)
        found.append([index, nvml.nvmlDeviceGetUUID(mig), *ids, has_graphics(nvml, mig)])
    return found


def has_graphics(nvml: "Any", mig: "Any") -> bool:
    """Whether a MIG device's profile has graphics: its name ends with the profile, `... MIG 1g.24gb+gfx`."""
    try:
        name = nvml.nvmlDeviceGetName(mig)
    except nvml.NVMLError:
        return False
    return "gfx" in (text_of(name) if isinstance(name, bytes) else name).rpartition(" ")[2].split("+")[1:]


def bus_id(pci: "Any") -> str:
    """The PCI address with eight digits of domain. A GPU's function is 0."""
    return f"{pci.domain:08x}:{pci.bus:02x}:{pci.device:02x}.0"


def brand(number: int) -> str:
    """The requirement language's word for a brand."""
    return BRANDS[number] if 0 <= number < len(BRANDS) else "unknown"


def text_of(item: object) -> str:
    """pynvml answers with str or bytes, by its version."""
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    raise TypeError(type(item).__name__)


def main(arguments: list[str]) -> "dict[str, Any]":
    """Confine, become nobody, load, give up the last capability, ask."""
    parent, nvml_fd, cuda_fd = (int(item) for item in arguments[:3])
    directory, (uid, gid) = arguments[3], (int(item) for item in arguments[4:6])
    groups = [int(item) for item in arguments[6].split(",") if item]
    confine(int(arguments[7]))
    sys.path.insert(0, directory)
    try:
        import pynvml  # noqa: PLC0415  # its directory is an argument
    except ImportError as error:
        return {"error": {"code": -1, "text": f"pynvml cannot be imported from {directory}: {error}"}}
    sys.path.pop(0)
    become(uid, gid, groups, parent)
    failed = preload(nvml_fd)
    preload(cuda_fd)  # a driver without compute has none, and NVML does without
    set_capabilities(0)
    if failed:
        return {"error": {"code": -2, "text": failed}}
    try:
        return ask(pynvml)
    except pynvml.NVMLError as error:
        return {"error": {"code": error.value, "text": str(error)}}
    except (OSError, ValueError, AttributeError, TypeError, ctypes.ArgumentError) as error:
        return {"error": {"code": -3, "text": f"{type(error).__name__}: {error}"}}


if __name__ == "__main__":
    reply = main(sys.argv[1:])
    data = json.dumps(reply, default=text_of).encode()
    while data:
        data = data[os.write(PIPE, data) :]
    os._exit(0)
