/* A library of the simulated driver. All are linked from this one object: the linker sets gpuhook_sim_text to the text
 * of the library being made (texts.h, written by the build) and drops the others.
 */
#include "base.h"
#include "texts.h"

extern const char gpuhook_sim_text[] __attribute__((visibility("hidden")));

/* Whose library this is: "libcuda.so 580.95.05". */
EXPORT const char *gpuhook_sim_version(void)
{
    return gpuhook_sim_text;
}
