// Finds the NVIDIA libraries when they are first used, so that the binary starts without them.
//
// Every stub in stubs.S jumps through specgen_cuda_table; an empty entry comes here. A function that cannot
// be found answers with its library's "not initialised" status, which cudarc and candle turn into an
// ordinary error: nothing here ends the process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum library { CUDA, CUBLAS, CUBLASLT, CURAND, NVRTC, NUM_LIBRARIES };
enum answer { STATUS, TEXT, TEXT_OUT };

// The major versions are those of the toolkit the binary was built with (requirements.txt): another major
// version may have another ABI.
static const char *const FILES[NUM_LIBRARIES] = {
    "libcuda.so.1", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libnvrtc.so.13",
};

// Tried after the folder of the binary and the system's own search (LD_LIBRARY_PATH, ld.so.conf).
static const char *const FOLDERS[] = {
    "/usr/local/cuda/lib64", "/usr/local/cuda-13/lib64", "/opt/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
};

static const struct {
    const char *name;
    uint8_t library, answer;
} SYMBOLS[] = {
#define SYMBOL(name, library, answer) {name, library, answer},
#include "symbols.h"
};

__attribute__((visibility("hidden"))) void *specgen_cuda_table[sizeof SYMBOLS / sizeof *SYMBOLS];

static const char NOT_FOUND[] = "libcuda.so.1 not found: this machine has no NVIDIA driver, or it is not on the library path";
static const char NO_TEXT[] = "NVIDIA library not found";

static int cuda_missing(void) { return 34; }     // CUDA_ERROR_STUB_LIBRARY
static int cublas_missing(void) { return 1; }    // CUBLAS_STATUS_NOT_INITIALIZED, cuBLASLt's too
static int curand_missing(void) { return 101; }  // CURAND_STATUS_NOT_INITIALIZED
static int nvrtc_missing(void) { return 11; }    // NVRTC_ERROR_INTERNAL_ERROR
static const char *text_missing(void) { return NO_TEXT; }
static int text_out_missing(int error, const char **text) {
    (void)error;
    *text = NOT_FOUND;
    return 0;
}

static void *open_in(const char *folder, const char *file) {
    char path[4096];
    int len = snprintf(path, sizeof path, "%s/%s", folder, file);
    return len > 0 && (size_t)len < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_library(enum library library) {
    const char *file = FILES[library];
    char binary[4096];
    ssize_t len = readlink("/proc/self/exe", binary, sizeof binary - 1);
    if (len > 0) {
        binary[len] = 0;
        *strrchr(binary, '/') = 0;
        void *handle = open_in(binary, file);
        if (handle) return handle;
    }
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; !handle && i < sizeof FOLDERS / sizeof *FOLDERS; i++) handle = open_in(FOLDERS[i], file);
    // The driver's absence has a text of its own (cuGetErrorString); the others' statuses don't name the file.
    if (!handle && library != CUDA)
        fprintf(stderr, "%s not found: install the CUDA 13 runtime libraries, or name their folder in LD_LIBRARY_PATH\n", file);
    return handle;
}

static void *library_handle(enum library library) {
    static void *handles[NUM_LIBRARIES];
    static char tried[NUM_LIBRARIES];
    // Two threads may open the same library at once: both get the same handle.
    if (!__atomic_load_n(&tried[library], __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&handles[library], open_library(library), __ATOMIC_RELEASE);
        __atomic_store_n(&tried[library], 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&handles[library], __ATOMIC_ACQUIRE);
}

static void *missing(enum library library, enum answer answer) {
    if (answer == TEXT) return (void *)text_missing;
    if (answer == TEXT_OUT) return (void *)text_out_missing;
    switch (library) {
        case CUDA: return (void *)cuda_missing;
        case CURAND: return (void *)curand_missing;
        case NVRTC: return (void *)nvrtc_missing;
        default: return (void *)cublas_missing;
    }
}

__attribute__((visibility("hidden"))) void *specgen_cuda_resolve(uint64_t index) {
    void *handle = library_handle(SYMBOLS[index].library);
    void *function = handle ? dlsym(handle, SYMBOLS[index].name) : NULL;
    if (!function) function = missing(SYMBOLS[index].library, SYMBOLS[index].answer);
    __atomic_store_n(&specgen_cuda_table[index], function, __ATOMIC_RELEASE);
    return function;
}
