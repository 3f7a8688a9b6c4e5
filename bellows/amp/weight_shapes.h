#pragma once

#include "bellows/amp/policy.h"

namespace bellows::amp {

/// Like apply(), but the parameters lose their values, and no master weights are created. Load the values afterwards. The
/// memory of the parameters is never touched, so parameters that were created with tap::SkipInitialization still have
/// none. Buffers are cast with their values.
Model apply_without_values(const Model& model, const Policy& policy);

}  // namespace bellows::amp
