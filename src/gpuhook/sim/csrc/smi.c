/* nvidia-smi of the simulated driver: the real one's header and one row for each GPU that NVML shows, or `-L`.
 *
 * In a container it sees the GPUs whose nodes the container may open, as the real one does.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "nvml.h"

OLD(dlopen);
OLD(dlsym);
OLD(dlerror);

static int (*init)(void);
static const char *(*error_string)(int);
static int (*driver_version)(char *, unsigned);
static int (*cuda_version)(int *);
static int (*count_gpus)(unsigned *);
static int (*handle_by_index)(unsigned, void **);
static int (*gpu_name)(void *, char *, unsigned);
static int (*gpu_uuid)(void *, char *, unsigned);
static int (*gpu_pci)(void *, PciInfo *);
static int (*gpu_memory)(void *, Memory *);
static int (*mig_by_index)(void *, unsigned, void **);

static void find(void *library, void *function, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "nvidia-smi: libnvidia-ml.so.1 has no %s\n", name);
        exit(13);
    }
    memcpy(function, &found, sizeof found);
}

static void load(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system: %s\n", dlerror());
        exit(12);
    }
    find(library, &init, "nvmlInit_v2");
    find(library, &error_string, "nvmlErrorString");
    find(library, &driver_version, "nvmlSystemGetDriverVersion");
    find(library, &cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
    find(library, &count_gpus, "nvmlDeviceGetCount_v2");
    find(library, &handle_by_index, "nvmlDeviceGetHandleByIndex_v2");
    find(library, &gpu_name, "nvmlDeviceGetName");
    find(library, &gpu_uuid, "nvmlDeviceGetUUID");
    find(library, &gpu_pci, "nvmlDeviceGetPciInfo_v3");
    find(library, &gpu_memory, "nvmlDeviceGetMemoryInfo");
    find(library, &mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex");
}

static int fail(const char *what, int result)
{
    fprintf(stderr, "%s: %s\n", what, error_string(result));
    return result;
}

static void line(char left)
{
    int i;
    putchar(left);
    for (i = 0; i < 89; ++i)
        putchar(left == '|' ? '=' : '-');
    putchar(left);
    putchar('\n');
}

static void print_list(unsigned index, void *gpu, const char *name, const char *uuid)
{
    char mig_uuid[96];
    void *mig;
    unsigned i;
    printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
    for (i = 0; !mig_by_index(gpu, i, &mig) && !gpu_uuid(mig, mig_uuid, sizeof mig_uuid); ++i)
        printf("  MIG          Device %2u: (UUID: %s)\n", i, mig_uuid);
}

static int row(unsigned index, int list)
{
    void *gpu;
    char name[96], uuid[80];
    PciInfo pci;
    Memory memory;
    int result = handle_by_index(index, &gpu);
    if (!result)
        result = gpu_name(gpu, name, sizeof name);
    if (!result)
        result = gpu_uuid(gpu, uuid, sizeof uuid);
    if (!result)
        result = gpu_pci(gpu, &pci);
    if (!result)
        result = gpu_memory(gpu, &memory);
    if (result) {
        fprintf(stderr, "Unable to determine the device handle for GPU %u: %s\n", index, error_string(result));
        return result;
    }
    if (list)
        print_list(index, gpu, name, uuid);
    else
        printf("| %3u  %-40.40s  %-16s  %7lluMiB / %6lluMiB |\n", index, name, pci.busId, memory.used >> 20,
               memory.total >> 20);
    return 0;
}

static int run(char **argv)
{
    int list = argv[0] && argv[1] && (!strcmp(argv[1], "-L") || !strcmp(argv[1], "--list-gpus"));
    int result, cuda = 0, worst = 0;
    unsigned count = 0, i;
    char driver[80], level[32] = "N/A";

    if (argv[0] && argv[1] && !list) {
        fprintf(stderr, "nvidia-smi: the simulated one knows no option but -L, not %s\n", argv[1]);
        return 2;
    }
    load();
    if ((result = init()) != 0)
        return fail("Failed to initialize NVML", result);
    if ((result = driver_version(driver, sizeof driver)) != 0)
        return fail("Failed to get the driver version", result);
    if (!cuda_version(&cuda))
        snprintf(level, sizeof level, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    if ((result = count_gpus(&count)) != 0)
        return fail("Failed to count the GPUs", result);
    if (!list) {
        line('+');
        printf("| NVIDIA-SMI %-16s  Driver Version: %-16s  CUDA Version: %-7s    |\n", SIM_DRIVER, driver, level);
        line('+');
        printf("| GPU  %-40s  %-16s  %-22s |\n", "Name", "Bus-Id", "Memory-Usage");
        line('|');
    }
    if (!count) {
        puts("No devices were found");
        return 6;
    }
    for (i = 0; i < count; ++i)
        if ((result = row(i, list)) != 0)
            worst = result;
    if (!list)
        line('+');
    return worst;
}

START(run)
