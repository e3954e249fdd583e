// NVML of a machine with one GPU, as far as tuner/devices/gpus.py asks; see test_gpu_runs.py.
#include <stdlib.h>
#include <string.h>

typedef int status;

static status answer(char *text, const char *value) {
  strcpy(text, value);
  return 0;
}
static status tell(unsigned *number, unsigned value) {
  *number = value;
  return 0;
}

status nvmlInitWithFlags(unsigned flags) { return 0; }
status nvmlShutdown(void) { return 0; }
status nvmlDeviceGetCount_v2(unsigned *count) { return tell(count, 1); }
status nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = "device";
  return 0;
}
status nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  return nvmlDeviceGetHandleByIndex_v2(0, device);
}
status nvmlDeviceGetUUID(void *device, char *uuid) {
  return answer(uuid, "GPU-abababab-abab-abab-abab-abababababab");
}
status nvmlDeviceGetName(void *device, char *name) { return answer(name, "NVIDIA Test"); }
status nvmlSystemGetDriverVersion(char *version) { return answer(version, "580.65.06"); }
status nvmlSystemGetCudaDriverVersion(int *version) { return tell((unsigned *)version, 13000); }
status nvmlSystemGetCudaDriverVersion_v2(int *version) { return tell((unsigned *)version, 13000); }
status nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  *minor = 0;
  return tell((unsigned *)major, 9);
}
// GPUs that share the memory of their host tell nothing of it.
status nvmlDeviceGetMemoryInfo(void *device, unsigned long long *info) { return 3; }
status nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *mhz) { return tell(mhz, 1980); }
status nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) { return tell(mhz, 1755); }
status nvmlDeviceGetTemperature(void *device, int kind, unsigned *celsius) {
  return tell(celsius, 41);
}
// This one does not tell its power: NVML_ERROR_NOT_SUPPORTED.
status nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { return 3; }
status nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
  *reasons = getenv("TUNER_TEST_THROTTLED") ? 0x24 : 1;
  return 0;
}
