/* libnvidia-ml.so.1 of the simulated driver: what pynvml and nvidia-smi need of NVML, answered from a text.
 *
 * The text is sim/nvml.conf in the tree of the simulated driver, found upwards from where this library lies, and read
 * again at each initialisation. Where there is none (the library is mounted into a container) the text compiled in
 * answers, and then, as with the real driver, only GPUs whose node can be opened exist.
 *
 * A helper may load the library as root and call it as nobody, who cannot reach the tree by path (a test's directory is
 * closed to others): the directory is opened when the library is loaded and used by handle.
 *
 * Names, numbers and structures are those of NVML's public interface (nvml.h, pynvml).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "answers.h"

OLD(dladdr);

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    MAX_GPUS = 64,
    MAX_TEXT = 64 * 1024,
};

typedef struct {
    char uuid[80], bus_id[32], name[96];
    unsigned domain, bus, device, minor, brand;
    int cc_major, cc_minor, lost;
    unsigned long long memory; /* bytes */
} Gpu;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

static struct {
    char driver[32];
    unsigned cuda, count, users, not_loaded, mismatch, hang, crash, no_cuda, slow_ms;
    Gpu gpus[MAX_GPUS];
} state;

static char directory[PATH_MAX]; /* sim/ of the tree, or empty */
static int directory_fd = -1;
static char loaded[MAX_TEXT + 1]; /* nvml.conf as it was when the library was loaded */
static char text[MAX_TEXT + 1];

static const char HEAD[] = "# gpuhook simulated driver";

/* --- reading the text --- */

static int read_text(int fd, char *to)
{
    int size = 0;
    ssize_t got;
    if (fd < 0)
        return 0;
    while (size < MAX_TEXT && (got = read(fd, to + size, MAX_TEXT - size)) > 0)
        size += got;
    close(fd);
    to[size] = 0;
    return !strncmp(to, HEAD, sizeof HEAD - 1);
}

/* Open a file of sim/: by handle, or by path where the handle was closed by whoever loaded the library. */
static int open_file(const char *name, int flags)
{
    char path[PATH_MAX + 32];
    int fd = -1;
    if (directory_fd >= 0)
        fd = openat(directory_fd, name, flags | O_CLOEXEC);
    if (fd < 0 && directory[0]) {
        snprintf(path, sizeof path, "%s/%s", directory, name);
        fd = open(path, flags | O_CLOEXEC);
    }
    return fd;
}

static unsigned long long number(const char **at, int base)
{
    unsigned long long value = 0;
    for (;; ++*at) {
        int digit = **at >= '0' && **at <= '9' ? **at - '0' : (**at | 32) >= 'a' && (**at | 32) <= 'f' ? (**at | 32) - 'a' + 10 : 99;
        if (digit >= base)
            return value;
        value = value * base + digit;
    }
}

static void word(const char **at, char *to, size_t room)
{
    size_t size = 0;
    while (**at == ' ')
        ++*at;
    for (; **at && **at != ' ' && **at != '\n'; ++*at)
        if (size + 1 < room)
            to[size++] = **at;
    to[size] = 0;
}

static void rest(const char **at, char *to, size_t room)
{
    size_t size = 0;
    while (**at == ' ')
        ++*at;
    for (; **at && **at != '\n'; ++*at)
        if (size + 1 < room)
            to[size++] = **at;
    to[size] = 0;
}

/* gpu = UUID BUS-ID MINOR BRAND CC MEMORY-MIB NAME */
static void read_gpu(const char *at)
{
    char field[32];
    const char *in;
    Gpu *gpu;
    if (state.count == MAX_GPUS)
        return;
    gpu = &state.gpus[state.count++];
    word(&at, gpu->uuid, sizeof gpu->uuid);
    word(&at, gpu->bus_id, sizeof gpu->bus_id);
    in = gpu->bus_id;
    gpu->domain = number(&in, 16);
    gpu->bus = number((++in, &in), 16);
    gpu->device = number((++in, &in), 16);
    word(&at, field, sizeof field);
    in = field;
    gpu->minor = number(&in, 10);
    word(&at, field, sizeof field);
    in = field;
    gpu->brand = number(&in, 10);
    word(&at, field, sizeof field);
    in = field;
    gpu->cc_major = number(&in, 10);
    gpu->cc_minor = number((++in, &in), 10);
    word(&at, field, sizeof field);
    in = field;
    gpu->memory = number(&in, 10) << 20;
    rest(&at, gpu->name, sizeof gpu->name);
}

/* fault = none, or a comma list of the names that `gpuhook sim fault --help` explains */
static void read_faults(const char *at, unsigned char *lost)
{
    for (; *at && *at != '\n'; at += strcspn(at, ",\n"), at += *at == ',') {
        const char *in = strchr(at, '=');
        at += strspn(at, " ");
        state.not_loaded |= !strncmp(at, "not-loaded", 10);
        state.mismatch |= !strncmp(at, "version-mismatch", 16);
        state.hang |= !strncmp(at, "hang", 4);
        state.crash |= !strncmp(at, "crash", 5);
        state.no_cuda |= !strncmp(at, "no-cuda-call", 12);
        if (in && !strncmp(at, "slow=", 5))
            ++in, state.slow_ms = number(&in, 10);
        if (in && !strncmp(at, "gpu-lost=", 9)) {
            unsigned long long index = number((++in, &in), 10);
            if (index < MAX_GPUS)
                lost[index] = 1;
        }
    }
}

static void read_state(const char *at)
{
    unsigned char lost[MAX_GPUS] = {0};
    unsigned i;
    for (; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        const char *value = at + strcspn(at, "=\n");
        if (*at == '#' || *value != '=')
            continue;
        ++value;
        value += strspn(value, " ");
        if (!strncmp(at, "driver ", 7))
            word(&value, state.driver, sizeof state.driver);
        else if (!strncmp(at, "cuda ", 5))
            state.cuda = number(&value, 10);
        else if (!strncmp(at, "fault ", 6))
            read_faults(value, lost);
        else if (!strncmp(at, "gpu ", 4))
            read_gpu(value);
    }
    for (i = 0; i < state.count; ++i)
        state.gpus[i].lost = lost[i];
}

/* As the real driver in a container: a GPU whose node cannot be opened is not there. */
static void drop_hidden(void)
{
    unsigned from, to = 0;
    for (from = 0; from < state.count; ++from) {
        char path[64];
        int fd;
        snprintf(path, sizeof path, "/dev/nvidia%u", state.gpus[from].minor);
        fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            continue;
        close(fd);
        state.gpus[to++] = state.gpus[from];
    }
    state.count = to;
}

static void load_state(void)
{
    unsigned users = state.users;
    memset(&state, 0, sizeof state);
    state.users = users;
    if (read_text(open_file("nvml.conf", O_RDONLY), text))
        read_state(text);
    else if (loaded[0])
        read_state(loaded);
    else {
        read_state(SIM_ANSWERS);
        drop_hidden();
    }
}

__attribute__((constructor)) static void find_directory(void)
{
    char path[PATH_MAX];
    Dl_info info;
    int level;
    if (!dladdr((void *)&state, &info) || !info.dli_fname || !realpath(info.dli_fname, path))
        return;
    for (level = 0; level < 6; ++level) {
        char *slash = strrchr(path, '/');
        if (!slash)
            return;
        *slash = 0;
        if (strlen(path) + sizeof "/sim/nvml.conf" > sizeof path || level == 0)
            continue;
        strcat(path, "/sim/nvml.conf");
        if (read_text(open(path, O_RDONLY | O_CLOEXEC), loaded)) {
            *strrchr(path, '/') = 0;
            strcpy(directory, path);
            directory_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
            return;
        }
        loaded[0] = 0;
        path[strlen(path) - (sizeof "/sim/nvml.conf" - 1)] = 0;
    }
}

/* --- initialisation --- */

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    int fd = open_file("nvml.count", O_WRONLY | O_APPEND);
    (void)flags;
    if (fd >= 0) {
        if (write(fd, "x", 1) < 0) {
            /* the count is a help for tests: an initialisation does not fail for it */
        }
        close(fd);
    }
    load_state();
    if (state.slow_ms) {
        struct timespec wait = {state.slow_ms / 1000, (state.slow_ms % 1000) * 1000000L};
        nanosleep(&wait, NULL);
    }
    if (state.crash) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile int *)8 = 1;
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

EXPORT int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned length)
{
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
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff, gpu->bus & 255, gpu->device & 31);
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

/* Multi-instance GPUs are not simulated: cards that can have instances say that the mode is off. */
EXPORT int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending)
{
    NEED(gpu, current && pending);
    if (gpu->cc_major < 8)
        return NOT_SUPPORTED;
    *current = *pending = 0;
    return OK;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count)
{
    NEED(gpu, count);
    *count = 0;
    return OK;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, Gpu **mig)
{
    (void)index;
    NEED(gpu, mig);
    return NOT_FOUND;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(Gpu *gpu, unsigned *is_mig)
{
    NEED(gpu, is_mig);
    *is_mig = 0;
    return OK;
}
