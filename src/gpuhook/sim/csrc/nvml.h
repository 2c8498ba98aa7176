/* What the two halves of the simulated NVML share: names, numbers and structures of NVML's public interface (nvml.h,
 * pynvml), and the state that the text gives.
 */
#ifndef GPUHOOK_SIM_NVML_H
#define GPUHOOK_SIM_NVML_H

#include "base.h"

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
    MAX_MIGS = 512,
    MAX_TEXT = 64 * 1024,
};

typedef struct {
    char uuid[80], bus_id[32], name[96];
    unsigned domain, bus, device, minor, brand;
    int cc_major, cc_minor, lost, divided;
    unsigned long long memory; /* bytes */
} Gpu;

typedef struct {
    char uuid[96];
    unsigned gpu, gi, ci, gi_capability, ci_capability, gfx; /* gpu is its index */
} Mig;

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

typedef struct {
    char driver[32];
    unsigned cuda, count, users, not_loaded, mismatch, hang, crash, no_cuda, slow_ms;
    Gpu gpus[MAX_GPUS];
    Mig migs[MAX_MIGS];
    unsigned mig_count;
} State;

extern State state;

/* Add one to the count of initialisations, if the tree can be reached. */
void count_init(void);

/* Read the text again; `users` stays. */
void load_state(void);

/* Read digits of a base up to the first other character, and move there. */
unsigned long long number(const char **at, int base);

#endif
