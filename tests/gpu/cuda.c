/* Asks the driver as a CUDA program does, without CUDA's toolkit: loads libcuda.so.1 by soname, calls cuInit, and prints
 * one JSON object: what cuInit gave, the CUDA level, and each device with name and UUID. Exit status 0 if cuInit gave 0.
 */
#include <dlfcn.h>
#include <stdio.h>

typedef struct {
    unsigned char bytes[16];
} Uuid;

static int (*init)(unsigned);
static int (*driver_version)(int *);
static int (*count_devices)(int *);
static int (*device)(int *, int);
static int (*device_name)(char *, int, int);
static int (*device_uuid)(Uuid *, int);

static void *find(void *library, const char *newer, const char *older)
{
    void *found = dlsym(library, newer);
    return found || !older ? found : dlsym(library, older);
}

static void print_uuid(const Uuid *uuid)
{
    int i;
    printf("\"uuid\": \"GPU-");
    for (i = 0; i < 16; i++)
        printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid->bytes[i]);
    printf("\"");
}

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int result, version = 0, count = 0, i, handle;
    if (!library) {
        printf("{\"cuInit\": null, \"dlopen\": \"%s\"}\n", dlerror());
        return 1;
    }
    *(void **)&init = find(library, "cuInit", NULL);
    *(void **)&driver_version = find(library, "cuDriverGetVersion", NULL);
    *(void **)&count_devices = find(library, "cuDeviceGetCount", NULL);
    *(void **)&device = find(library, "cuDeviceGet", NULL);
    *(void **)&device_name = find(library, "cuDeviceGetName", NULL);
    *(void **)&device_uuid = find(library, "cuDeviceGetUuid_v2", "cuDeviceGetUuid");
    if (!init || !driver_version) {
        printf("{\"cuInit\": null, \"dlopen\": \"libcuda.so.1 has no cuInit\"}\n");
        return 1;
    }
    result = init(0);
    driver_version(&version);
    printf("{\"cuInit\": %d, \"cuda\": \"%d.%d\", \"devices\": [", result, version / 1000, version % 1000 / 10);
    if (!result && count_devices && device && device_name && device_uuid && count_devices(&count) == 0) {
        for (i = 0; i < count; i++) {
            char name[128] = "";
            Uuid uuid = {{0}};
            if (device(&handle, i) || device_name(name, sizeof name, handle) || device_uuid(&uuid, handle))
                continue;
            printf("%s{\"name\": \"%s\", ", i ? ", " : "", name);
            print_uuid(&uuid);
            printf("}");
        }
    }
    printf("]}\n");
    return result != 0;
}
