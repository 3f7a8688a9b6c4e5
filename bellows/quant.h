#pragma once

// Includes the component quant: affine quantization, observers, packed integers, 8-bit floating point, methods that choose
// quantized weights, and file formats of quantized layers.
#include "bellows/quant/affine.h"
#include "bellows/quant/float8.h"
#include "bellows/quant/formats/awq.h"
#include "bellows/quant/formats/compressed_tensors.h"
#include "bellows/quant/formats/config.h"
#include "bellows/quant/formats/gptq.h"
#include "bellows/quant/formats/linear.h"
#include "bellows/quant/methods/auto_round.h"
#include "bellows/quant/methods/awq.h"
#include "bellows/quant/methods/bias_correction.h"
#include "bellows/quant/methods/equalization.h"
#include "bellows/quant/methods/gptq.h"
#include "bellows/quant/methods/hqq.h"
#include "bellows/quant/methods/input_statistics.h"
#include "bellows/quant/methods/smooth_quant.h"
#include "bellows/quant/observer.h"
#include "bellows/quant/packed.h"
#include "bellows/quant/scheme.h"
