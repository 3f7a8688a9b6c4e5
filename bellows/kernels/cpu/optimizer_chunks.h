#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "bellows/kernels/optimizer_step.h"
#include "bellows/kernels/parallel.h"

namespace bellows::kernels::cpu {

/// Calls `kernel(tensor, types, begin, end)` with parallel_chunks(). The chunks of all tensors form one list, so that
/// many small tensors need only one parallel region. If all tensors together fit in one chunk, the calling thread makes
/// all calls. A chunk begins at a multiple of 16384 elements.
template <class Rule, class Kernel>
void step_chunks(std::span<const StepTensor<Rule>> tensors, StepTypes types, Kernel kernel) {
  constexpr int64_t chunk_size = 16384;
  int64_t elements = 0;
  for (const StepTensor<Rule>& t : tensors) elements += t.size;
  if (elements <= chunk_size) {  // waking the other threads would take longer
    for (const StepTensor<Rule>& t : tensors) kernel(t, types, size_t{0}, static_cast<size_t>(t.size));
    return;
  }
  std::vector<int64_t> first_chunk = {0};
  first_chunk.reserve(tensors.size() + 1);
  for (const StepTensor<Rule>& t : tensors)
    first_chunk.push_back(first_chunk.back() + (t.size + chunk_size - 1) / chunk_size);
  parallel_chunks(first_chunk.back(), [&](int64_t chunk) {
    const auto after = std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk);
    const auto index = static_cast<size_t>(after - first_chunk.begin() - 1);
    const int64_t begin = (chunk - first_chunk[index]) * chunk_size;
    const int64_t end = std::min(begin + chunk_size, tensors[index].size);
    kernel(tensors[index], types, static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

}  // namespace bellows::kernels::cpu
