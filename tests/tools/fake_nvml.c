/* SPDX-License-Identifier: Apache-2.0 */
/* A driver's management library with one device: clock and power rise with every reading. */
#include <string.h>

static unsigned readings;

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &readings;
  return strcmp(bus_id, "0000:1B:00.0") == 0 ? 0 : 6; /* NVML_ERROR_NOT_FOUND */
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  strncpy(text, "580.159.04", size);
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, unsigned which, unsigned* mhz) {
  *mhz = 1600 + 10 * *(unsigned*)device;
  return which == 1 /* NVML_CLOCK_SM */ ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 650000 + 1000 * (*(unsigned*)device)++;
  return 0;
}
