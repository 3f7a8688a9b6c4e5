#pragma once

// Includes the component nn: fused activations, norms and cross-entropy, other losses, distillation, fast random numbers and fast
// sparse matmuls.
#include "bellows/nn/activation.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/distillation.h"
#include "bellows/nn/dropout_norm.h"
#include "bellows/nn/fast_random.h"
#include "bellows/nn/fast_sparse.h"
#include "bellows/nn/loss.h"
#include "bellows/nn/norm.h"
