#pragma once

// For formulas that kernels/ref computes on the host and kernels/cuda on the device.
#ifdef __CUDACC__
#define BELLOWS_HOST_DEVICE __host__ __device__
#else
#define BELLOWS_HOST_DEVICE
#endif
