#pragma once

// Includes the component kernels: hand-written computation on raw pointers, such as optimizer steps and norms.
#include "bellows/kernels/cpu/grad_norm.h"
#include "bellows/kernels/cpu/optimizers.h"
#include "bellows/kernels/cuda/available.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/kernels/grad_norm.h"
#include "bellows/kernels/group_quantization.h"
#include "bellows/kernels/layer_norm.h"
#include "bellows/kernels/optimizer_step.h"
#include "bellows/kernels/parallel.h"
#include "bellows/kernels/ref/grad_norm.h"
#include "bellows/kernels/ref/optimizers.h"
