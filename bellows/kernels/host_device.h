#pragma once

// Marks functions that kernels/ref calls on the host and kernels/cuda calls on the device.
#ifdef __CUDACC__
#define BELLOWS_HOST_DEVICE __host__ __device__
#else
#define BELLOWS_HOST_DEVICE
#endif
