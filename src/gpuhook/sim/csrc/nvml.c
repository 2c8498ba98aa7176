/* libnvidia-ml.so.1 of the simulated driver, second half: the calls that pynvml and nvidia-smi make. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

/* --- initialisation --- */

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    count_init();
    load_state();
    if (state.slow_ms) {
        struct timespec wait = {state.slow_ms / 1000, (state.slow_ms % 1000) * 1000000L};
        nanosleep(&wait, NULL);
    }
    if (state.crash) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    while (state.hang)
        pause();
    if (state.not_loaded)
        return DRIVER_NOT_LOADED;
    if (state.mismatch)
        return LIB_RM_VERSION_MISMATCH;
    ++state.users;
    return OK;
}

EXPORT int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT int nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT int nvmlShutdown(void)
{
    if (!state.users)
        return UNINITIALIZED;
    --state.users;
    return OK;
}

EXPORT const char *nvmlErrorString(int result)
{
    switch (result) {
    case OK:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NOT_FOUND:
        return "Not Found";
    case INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case GPU_IS_LOST:
        return "GPU is lost";
    case LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    default:
        return "Unknown Error";
    }
}

/* --- answers about the system --- */

static int give(const char *value, char *to, unsigned room)
{
    if (!to)
        return INVALID_ARGUMENT;
    if (strlen(value) + 1 > room)
        return INSUFFICIENT_SIZE;
    strcpy(to, value);
    return OK;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return state.users ? give(state.driver, version, length) : UNINITIALIZED;
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char value[64];
    snprintf(value, sizeof value, "%u.%s", state.cuda / 1000, state.driver);
    return state.users ? give(value, version, length) : UNINITIALIZED;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version)
        return INVALID_ARGUMENT;
    if (state.no_cuda)
        return FUNCTION_NOT_FOUND;
    if (!state.users)
        return UNINITIALIZED;
    *version = state.cuda;
    return OK;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* --- which GPUs there are --- */

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!count)
        return INVALID_ARGUMENT;
    if (!state.users)
        return UNINITIALIZED;
    *count = state.count;
    return OK;
}

EXPORT int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

static int hand_out(unsigned index, Gpu **gpu)
{
    if (!state.users)
        return UNINITIALIZED;
    if (!gpu)
        return INVALID_ARGUMENT;
    if (state.gpus[index].lost)
        return GPU_IS_LOST;
    *gpu = &state.gpus[index];
    return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu)
{
    if (state.users && index >= state.count)
        return INVALID_ARGUMENT;
    return hand_out(index % MAX_GPUS, gpu);
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, Gpu **gpu)
{
    return nvmlDeviceGetHandleByIndex_v2(index, gpu);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu)
{
    unsigned i;
    for (i = 0; uuid && gpu && state.users && i < state.mig_count; ++i)
        if (!strcmp(uuid, state.migs[i].uuid)) {
            *gpu = (Gpu *)&state.migs[i];
            return OK;
        }
    for (i = 0; uuid && i < state.count; ++i)
        if (!strcmp(uuid, state.gpus[i].uuid))
            return hand_out(i, gpu);
    return !state.users ? UNINITIALIZED : uuid ? NOT_FOUND : INVALID_ARGUMENT;
}

/* Any form: dddd:bb:dd.f or dddddddd:bb:dd.f in any case, the function optional. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Gpu **gpu)
{
    const char *in = bus_id;
    unsigned i, domain, bus, device;
    if (!state.users)
        return UNINITIALIZED;
    if (!in)
        return INVALID_ARGUMENT;
    domain = number(&in, 16);
    if (*in != ':')
        return INVALID_ARGUMENT;
    bus = number((++in, &in), 16);
    if (*in != ':')
        return INVALID_ARGUMENT;
    device = number((++in, &in), 16);
    for (i = 0; i < state.count; ++i)
        if (state.gpus[i].domain == domain && state.gpus[i].bus == bus && state.gpus[i].device == device)
            return hand_out(i, gpu);
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus_id, Gpu **gpu)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, gpu);
}

/* --- answers about one GPU --- */

#define NEED(gpu, to)                                                                                                  \
    do {                                                                                                               \
        if (!state.users)                                                                                              \
            return UNINITIALIZED;                                                                                      \
        if ((gpu) < state.gpus || (gpu) >= state.gpus + state.count || !(to))                                          \
            return INVALID_ARGUMENT;                                                                                   \
        if ((gpu)->lost)                                                                                               \
            return GPU_IS_LOST;                                                                                        \
    } while (0)

EXPORT int nvmlDeviceGetIndex(Gpu *gpu, unsigned *index)
{
    NEED(gpu, index);
    *index = gpu - state.gpus;
    return OK;
}

/* The MIG device that a handle stands for, or NULL. */
static Mig *as_mig(void *handle)
{
    Mig *mig = handle;
    return mig >= state.migs && mig < state.migs + state.mig_count ? mig : NULL;
}

EXPORT int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned length)
{
    if (state.users && as_mig(gpu))
        return give(as_mig(gpu)->uuid, uuid, length);
    NEED(gpu, uuid);
    return give(gpu->uuid, uuid, length);
}

EXPORT int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor)
{
    NEED(gpu, minor);
    *minor = gpu->minor;
    return OK;
}

EXPORT int nvmlDeviceGetName(Gpu *gpu, char *name, unsigned length)
{
    if (state.users && as_mig(gpu)) /* the GPU's name and the profile's, which is this one whatever the instance is */
        return give(as_mig(gpu)->gfx ? "NVIDIA MIG 1g.10gb+gfx" : "NVIDIA MIG 1g.10gb", name, length);
    NEED(gpu, name);
    return give(gpu->name, name, length);
}

EXPORT int nvmlDeviceGetBrand(Gpu *gpu, unsigned *brand)
{
    NEED(gpu, brand);
    *brand = gpu->brand;
    return OK;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor)
{
    NEED(gpu, major && minor);
    *major = gpu->cc_major;
    *minor = gpu->cc_minor;
    return OK;
}

EXPORT int nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *pci)
{
    NEED(gpu, pci);
    memset(pci, 0, sizeof *pci);
    pci->domain = gpu->domain;
    pci->bus = gpu->bus;
    pci->device = gpu->device;
    pci->pciDeviceId = 0x233010de; /* an H100, whatever the name */
    pci->pciSubSystemId = 0x16c110de;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", gpu->domain, gpu->bus & 255, gpu->device & 31);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff, gpu->bus & 255,
             gpu->device & 31);
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory)
{
    NEED(gpu, memory);
    memory->total = gpu->memory;
    memory->used = 0;
    memory->free = gpu->memory;
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *memory)
{
    NEED(gpu, memory);
    memory->total = gpu->memory;
    memory->reserved = 0;
    memory->used = 0;
    memory->free = gpu->memory;
    return OK;
}

EXPORT int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *celsius)
{
    NEED(gpu, celsius && sensor == 0);
    *celsius = 30;
    return OK;
}

EXPORT int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *milliwatts)
{
    NEED(gpu, milliwatts);
    *milliwatts = 70000;
    return OK;
}

/* --- multi-instance GPUs: a MIG device has a handle of its own --- */

EXPORT int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending)
{
    NEED(gpu, current && pending);
    if (gpu->cc_major < 8)
        return NOT_SUPPORTED;
    *current = *pending = gpu->divided;
    return OK;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count)
{
    NEED(gpu, count);
    *count = gpu->divided ? 7 : 0;
    return OK;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, Gpu **mig)
{
    unsigned i;
    NEED(gpu, mig);
    for (i = 0; i < state.mig_count; ++i)
        if (&state.gpus[state.migs[i].gpu] == gpu && !index--) {
            *mig = (Gpu *)&state.migs[i];
            return OK;
        }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(Gpu *gpu, unsigned *is_mig)
{
    if (state.users && is_mig && as_mig(gpu)) {
        *is_mig = 1;
        return OK;
    }
    NEED(gpu, is_mig);
    *is_mig = 0;
    return OK;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, Gpu **gpu)
{
    if (!state.users)
        return UNINITIALIZED;
    if (!as_mig(mig) || !gpu)
        return INVALID_ARGUMENT;
    return hand_out(as_mig(mig)->gpu, gpu);
}

EXPORT int nvmlDeviceGetGpuInstanceId(void *mig, unsigned *id)
{
    if (!state.users)
        return UNINITIALIZED;
    if (!as_mig(mig) || !id)
        return INVALID_ARGUMENT;
    *id = as_mig(mig)->gi;
    return OK;
}

EXPORT int nvmlDeviceGetComputeInstanceId(void *mig, unsigned *id)
{
    if (!state.users)
        return UNINITIALIZED;
    if (!as_mig(mig) || !id)
        return INVALID_ARGUMENT;
    *id = as_mig(mig)->ci;
    return OK;
}
