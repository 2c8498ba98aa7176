/* What libcuda.so.1 of the simulated driver answers besides gpuhook_sim_version: enough to prove that it was loaded. */
#include "base.h"
#include "answers.h"

#define CUDA_ERROR_INVALID_VALUE 1

EXPORT int cuInit(unsigned flags)
{
    return flags == 0 ? 0 : CUDA_ERROR_INVALID_VALUE;
}

/* 1000 * major + 10 * minor. */
EXPORT int cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_CUDA;
    return 0;
}
