/* The simulated NVML, first half: where its text is, and what it says.
 *
 * The text is sim/nvml.conf in the tree of the simulated driver, found upwards from where this library lies, and read
 * again at each initialisation. Where there is none (the library is mounted into a container) the text compiled in
 * answers, and then, as with the real driver, only GPUs whose node can be opened exist.
 *
 * A helper may load the library as root and call it as nobody, who cannot reach the tree by path (a test's directory is
 * closed to others): the directory is opened when the library is loaded and used by handle.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answers.h"
#include "nvml.h"

OLD(dladdr);

State state;

static char directory[PATH_MAX]; /* sim/ of the tree, or empty */
static int directory_fd = -1;
static char loaded[MAX_TEXT + 1]; /* nvml.conf as it was when the library was loaded */
static char text[MAX_TEXT + 1];

static const char HEAD[] = "# gpuhook simulated driver";

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

void count_init(void)
{
    int fd = open_file("nvml.count", O_WRONLY | O_APPEND);
    if (fd < 0)
        return;
    if (write(fd, "x", 1) < 0) {
        /* the count is a help for tests: an initialisation does not fail for it */
    }
    close(fd);
}

unsigned long long number(const char **at, int base)
{
    unsigned long long value = 0;
    for (;; ++*at) {
        int digit = 99;
        if (**at >= '0' && **at <= '9')
            digit = **at - '0';
        else if ((**at | 32) >= 'a' && (**at | 32) <= 'f')
            digit = (**at | 32) - 'a' + 10;
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

static unsigned next_number(const char **at)
{
    *at += strspn(*at, " ");
    return number(at, 10);
}

/* mig = GPU-INDEX, or mig = GPU-INDEX GI CI GI-CAPABILITY CI-CAPABILITY UUID [gfx]; after the lines of the GPUs */
static void read_mig(const char *at)
{
    unsigned gpu = next_number(&at);
    Mig *mig;
    if (gpu >= state.count)
        return;
    state.gpus[gpu].divided = 1;
    at += strspn(at, " ");
    if (*at == '\n' || !*at || state.mig_count == MAX_MIGS)
        return;
    mig = &state.migs[state.mig_count++];
    mig->gpu = gpu;
    mig->gi = next_number(&at);
    mig->ci = next_number(&at);
    mig->gi_capability = next_number(&at);
    mig->ci_capability = next_number(&at);
    word(&at, mig->uuid, sizeof mig->uuid);
    at += strspn(at, " ");
    mig->gfx = !strncmp(at, "gfx", 3);
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
        else if (!strncmp(at, "mig ", 4))
            read_mig(value);
    }
    for (i = 0; i < state.count; ++i)
        state.gpus[i].lost = lost[i];
}

static int opens(const char *form, unsigned minor, int flags)
{
    char path[64];
    int fd;
    snprintf(path, sizeof path, form, minor);
    fd = open(path, flags | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* As the real driver in a container: a GPU or MIG device whose nodes cannot be opened is not there. */
static void drop_hidden(void)
{
    unsigned place[MAX_GPUS], from, to = 0;
    if (opens("/dev/dxg", 0, O_RDWR)) /* WSL2: one device for all */
        return;
    for (from = 0; from < state.count; ++from) {
        place[from] = MAX_GPUS;
        if (!opens("/dev/nvidia%u", state.gpus[from].minor, O_RDWR))
            continue;
        place[from] = to;
        state.gpus[to++] = state.gpus[from];
    }
    state.count = to;
    for (from = to = 0; from < state.mig_count; ++from) {
        Mig mig = state.migs[from];
        mig.gpu = place[mig.gpu];
        if (mig.gpu < MAX_GPUS && opens("/dev/nvidia-caps/nvidia-cap%u", mig.gi_capability, O_RDONLY) &&
            opens("/dev/nvidia-caps/nvidia-cap%u", mig.ci_capability, O_RDONLY))
            state.migs[to++] = mig;
    }
    state.mig_count = to;
}

void load_state(void)
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
    for (level = 0; level < 12; ++level) {
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
