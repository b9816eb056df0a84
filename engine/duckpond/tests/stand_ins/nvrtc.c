// A stand-in for NVIDIA's run-time compiler: whatever it compiles becomes one and the same image.
//
//   STAND_IN_NVRTC      major version (12)
//   STAND_IN_COMPILES   0: nothing compiles

#include <stdlib.h>
#include <string.h>

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

int nvrtcVersion(int *major, int *minor) { *major = (int)setting("STAND_IN_NVRTC", 12); *minor = 8; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 2; return 0; }
int nvrtcGetSupportedArchs(int *list) { list[0] = 80, list[1] = 90; return 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, const char *const *headers, const char *const *names) {
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = malloc(1);
    return 0;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    (void)program, (void)count, (void)options;
    return setting("STAND_IN_COMPILES", 1) ? 0 : 6;
}
int nvrtcDestroyProgram(void **program) { free(*program); return 0; }
static const char LOG[] = "rows.cu(7): warning: nothing of note\nrows.cu(9): error: as the test asked for\n";
int nvrtcGetProgramLogSize(void *program, size_t *size) { (void)program; *size = sizeof LOG; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { (void)program; memcpy(log, LOG, sizeof LOG); return 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { (void)program; *size = 4; return 0; }
int nvrtcGetCUBIN(void *program, char *image) { (void)program; memcpy(image, "none", 4); return 0; }
const char *nvrtcGetErrorString(int error) { (void)error; return "NVRTC_ERROR_COMPILATION"; }
