// A CUDA driver without a GPU, as far as cuda.core uses one: it keeps the driver's rules and hands each launch to a
// callback, which runs the kernel on the CPU. Built as libcuda.so.1 by `installed` in fake.py; one device, sm_90.
#include <cxxabi.h>
#include <dlfcn.h>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_IMAGE = 200, NOT_FOUND = 500, CAPTURING = 900 };
constexpr int DYNAMIC_SHARED = 8;               // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int MOST_SHARED = 227 << 10, USUAL_SHARED = 48 << 10;

struct Library { std::string code; };
struct Kernel { std::string symbol; int shared = USUAL_SHARED; };
struct Config { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned count; };
using Launched = int (*)(const char* symbol, const unsigned* grid, const unsigned* block, unsigned shared, void* stream,
                         void** arguments);
Launched launched;
bool capturing;
int context_;                                   // its address is the primary context
thread_local void* current;
}  // namespace

extern "C" {
// For the test: what a launch calls, whether a graph is being captured, what a symbol is called in C++.
void fake_on_launch(Launched callback) { launched = callback; }
void fake_capturing(int yes) { capturing = yes; }
const char* fake_demangled(const char* symbol) {
    static thread_local std::string text;
    int status;
    char* made = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
    text = made ? made : symbol;
    free(made);
    return text.c_str();
}

int cuGetExportTable(const void** table, const void*) { *table = nullptr; return NOT_FOUND; }
int cuInit(unsigned) { return SUCCESS; }
int cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
int cuGetErrorName(int, const char** text) { *text = "FAKE_DRIVER_ERROR"; return SUCCESS; }
int cuGetErrorString(int, const char** text) { *text = "an error of the fake driver"; return SUCCESS; }
int cuDeviceGetCount(int* count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal ? INVALID_VALUE : SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int) { *value = attribute == 75 ? 9 : 0; return SUCCESS; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = &context_; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxGetCurrent(void** context) { *context = current; return SUCCESS; }
int cuCtxSetCurrent(void* context) { current = context; return SUCCESS; }
int cuCtxPushCurrent_v2(void* context) { current = context; return SUCCESS; }
int cuCtxPopCurrent_v2(void** context) { *context = current; current = nullptr; return SUCCESS; }
int cuCtxGetDevice(int* device) { *device = 0; return current ? SUCCESS : INVALID_CONTEXT; }

int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
    if (capturing) return CAPTURING;            // a first launch inside a capture loads code
    if (memcmp(code, "\177ELF", 4)) return INVALID_IMAGE;
    unsigned long sections;                     // the size of an ELF file whose section headers come last
    unsigned short size, count;
    memcpy(&sections, (const char*)code + 0x28, 8), memcpy(&size, (const char*)code + 0x3a, 2), memcpy(&count, (const char*)code + 0x3c, 2);
    *library = new Library{std::string((const char*)code, sections)};
    return SUCCESS;
}
int cuLibraryUnload(void* library) { delete (Library*)library; return SUCCESS; }
int cuLibraryGetKernel(void** kernel, void* library, const char* symbol) {
    if (((Library*)library)->code.find(symbol) == std::string::npos) return NOT_FOUND;
    *kernel = new Kernel{symbol};
    return SUCCESS;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    if (attribute != DYNAMIC_SHARED || value > MOST_SHARED || device) return INVALID_VALUE;
    ((Kernel*)kernel)->shared = value;
    return SUCCESS;
}
int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void**) {
    const Kernel& kernel = *(Kernel*)function;
    const unsigned *grid = config->grid, *block = config->block;
    if (!current) return INVALID_CONTEXT;
    if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) return INVALID_VALUE;
    if (!block[0] || block[0] > 1024 || block[1] != 1 || block[2] != 1) return INVALID_VALUE;
    if ((int)config->shared > kernel.shared) return INVALID_VALUE;
    return launched(kernel.symbol.c_str(), grid, block, config->shared, config->stream, arguments);
}
int cuGetProcAddress_v2(const char* name, void** address, int, unsigned long, int* status) {
    const std::string plain = name;
    *address = nullptr;
    for (const char* suffix : {"", "_v2", "_v3"})
        if (!*address) *address = dlsym(dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY), (plain + suffix).c_str());
    if (status) *status = *address ? 0 : 1;
    return *address ? SUCCESS : NOT_FOUND;
}
}
