// A stand-in for NVIDIA's driver library: memory is the host's, kernels do nothing, and the environment says what fails.
//
//   STAND_IN_DRIVER     CUDA version, as the driver counts (12080)
//   STAND_IN_CAPABILITY compute capability times ten (90)
//   STAND_IN_SHARED     bytes of shared memory of a block (232448)
//   STAND_IN_FREE       bytes of free memory
//   STAND_IN_ALLOCATES  bytes that can really be had
//   STAND_IN_LAUNCHES   launches until one fails, and everything after it
//   STAND_IN_NONE       no card
//   STAND_IN_BROKEN     the driver does not start
//
// Built with OLD it lacks what drivers before CUDA 11.8 lack.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t address;
enum { OK = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, SYSTEM_DRIVER_MISMATCH = 803, ILLEGAL_ADDRESS = 700 };

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

static int failed, launches;
static long taken;
#define STICKY if (failed) return ILLEGAL_ADDRESS

int cuInit(unsigned flags) {
    (void)flags;
    if (setting("STAND_IN_BROKEN", 0)) return SYSTEM_DRIVER_MISMATCH;
    return setting("STAND_IN_NONE", 0) ? NO_DEVICE : OK;
}
int cuDriverGetVersion(int *version) { *version = (int)setting("STAND_IN_DRIVER", 12080); return OK; }
int cuDeviceGet(int *device, int number) { *device = number; return OK; }
int cuDeviceGetName(char *name, int length, int device) { (void)device; strncpy(name, "Stand-in", (size_t)length); return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    long capability = setting("STAND_IN_CAPABILITY", 90);
    switch (attribute) {
        case 75: *value = (int)(capability / 10); break;
        case 76: *value = (int)(capability % 10); break;
        case 16: *value = 8; break;
        case 97: *value = (int)setting("STAND_IN_SHARED", 232448); break;
        default: *value = 0;
    }
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &failed; return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
int cuCtxSetCurrent(void *context) { (void)context; return OK; }
int cuCtxGetCurrent(void **context) { *context = &failed; return OK; }
int cuGetErrorName(int error, const char **text) {
    *text = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == SYSTEM_DRIVER_MISMATCH ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_OF_A_STAND_IN";
    return OK;
}
int cuGetErrorString(int error, const char **text) {
    *text = error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "as the test asked for";
    return OK;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    STICKY;
    *total = (size_t)8 << 30;
    *free = (size_t)setting("STAND_IN_FREE", 6l << 30);
    return OK;
}
int cuMemAlloc_v2(address *at, size_t bytes) {
    STICKY;
    if (taken + (long)bytes > setting("STAND_IN_ALLOCATES", 4l << 30)) return OUT_OF_MEMORY;
    taken += (long)bytes;
    *at = (address)calloc(bytes, 1);
    return *at ? OK : OUT_OF_MEMORY;
}
int cuMemFree_v2(address at) { STICKY; free((void *)at); return OK; }
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    (void)flags;
    STICKY;
    *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *at ? OK : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *at) { STICKY; free(at); return OK; }
int cuMemcpyHtoD_v2(address to, const void *from, size_t bytes) { STICKY; memcpy((void *)to, from, bytes); return OK; }
int cuMemcpyDtoH_v2(void *to, address from, size_t bytes) { STICKY; memcpy(to, (void *)from, bytes); return OK; }
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) { (void)stream; return cuMemcpyHtoD_v2(to, from, bytes); }
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) { (void)stream; return cuMemcpyDtoH_v2(to, from, bytes); }
int cuMemsetD32Async(address at, unsigned value, size_t count, void *stream) {
    (void)stream;
    STICKY;
    for (size_t i = 0; i < count; i++) ((unsigned *)at)[i] = value;
    return OK;
}

static unsigned constant = 65536;
int cuModuleLoadData(void **module, const void *image) { (void)image; *module = &constant; return OK; }
int cuModuleUnload(void *module) { (void)module; return OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)module; (void)name; *function = &launches; return OK; }
int cuModuleGetGlobal_v2(address *at, size_t *bytes, void *module, const char *name) {
    (void)module;
    (void)name;
    *at = (address)&constant;
    *bytes = 4;
    return OK;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) { (void)attribute; (void)function; *value = 0; return OK; }
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return OK; }
#ifndef OLD
int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) {
    (void)config, (void)function, (void)parameters, (void)extra;
    if (launches++ >= setting("STAND_IN_LAUNCHES", 0)) failed = 1;
    STICKY;
    return OK;
}
#endif

int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = &taken; return OK; }
int cuStreamDestroy_v2(void *stream) { (void)stream; return OK; }
int cuStreamSynchronize(void *stream) { (void)stream; STICKY; return OK; }
int cuStreamQuery(void *stream) { (void)stream; STICKY; return OK; }
int cuStreamBeginCapture_v2(void *stream, int mode) { (void)stream; (void)mode; STICKY; return OK; }
int cuStreamEndCapture(void *stream, void **graph) { (void)stream; *graph = &taken; STICKY; return OK; }
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { (void)graph; (void)flags; *exec = &taken; STICKY; return OK; }
int cuGraphDestroy(void *graph) { (void)graph; return OK; }
int cuGraphUpload(void *exec, void *stream) { (void)exec; (void)stream; STICKY; return OK; }
int cuGraphLaunch(void *exec, void *stream) { (void)exec; (void)stream; failed = 1; STICKY; return OK; }
int cuGraphExecDestroy(void *exec) { (void)exec; return OK; }
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = &taken; return OK; }
int cuEventDestroy_v2(void *event) { (void)event; return OK; }
