#pragma once

#include <string>

namespace bellows::train {

struct LadderReport;

/// Returns the HTML page of a ladder for inference. ladder_page() calls this function if the goal is `inference`. The charts
/// show the time per batch, the peak memory and the size of the model by rung.
std::string inference_page(const LadderReport& report);

}  // namespace bellows::train
