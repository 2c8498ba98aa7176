/* A program of the simulated driver that does nothing but say what it is, by the name that it was called with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "answers.h"

static int run(char **argv)
{
    const char *name = argv[0] ? argv[0] : "program";
    const char *slash = strrchr(name, '/');
    printf("%s: simulated by gpuhook, version %s\n", slash ? slash + 1 : name, SIM_DRIVER);
    return 0;
}

START(run)
