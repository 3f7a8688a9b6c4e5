#pragma once

// Includes the component export: files for other runtimes.
#include "bellows/export/onnx.h"
#include "bellows/export/program.h"
#include "bellows/export/pytorch.h"
