#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::io::proto {
class Histogram;
}

namespace bellows::io {

/// Fills `histogram` as EventWriter::histogram() says. False when there is no finite value.
bool fill_histogram(const at::Tensor& values, proto::Histogram& histogram);

}  // namespace bellows::io
