#pragma once

// Includes the component runtime: inference with several back ends.
#include "bellows/runtime/backend.h"
#include "bellows/runtime/onnx_checker.h"
