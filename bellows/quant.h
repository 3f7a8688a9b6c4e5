#pragma once

// Includes the component quant: affine quantization, observers, packed integers, and 8-bit floating point.
#include "bellows/quant/affine.h"
#include "bellows/quant/float8.h"
#include "bellows/quant/observer.h"
#include "bellows/quant/packed.h"
#include "bellows/quant/scheme.h"
