#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/checkpoint/tiling.h"

namespace bellows::checkpoint {

using comm::ShardSpec;

namespace {

struct HeldRun {
  int64_t begin, end;
  size_t part;
};

bool overlap(const ShardSpec& a, const ShardSpec& b) {
  for (size_t dim = 0; dim < a.offset.size(); ++dim) {
    if (a.offset[dim] >= b.offset[dim] + b.length[dim] || b.offset[dim] >= a.offset[dim] + a.length[dim]) return false;
  }
  return true;
}

using Who = std::function<std::string(size_t)>;

void check_runs(std::vector<HeldRun> runs, int64_t numel, const std::string& where, const Who& who) {
  std::sort(runs.begin(), runs.end(),
            [](const HeldRun& a, const HeldRun& b) { return std::pair(a.begin, a.part) < std::pair(b.begin, b.part); });
  int64_t at = 0;
  size_t before = 0;
  for (const HeldRun& run : runs) {
    TORCH_CHECK_VALUE(run.begin >= at, where, ": elements ", run.begin, " to ", std::min(at, run.end),
                      " are held twice, by ", who(before), " and by ", who(run.part), ".");
    TORCH_CHECK_VALUE(run.begin == at, where, ": elements ", at, " to ", run.begin, " of ", numel, " are missing; ",
                      who(run.part), " holds the elements from ", run.begin, " on.");
    at = run.end;
    before = run.part;
  }
  TORCH_CHECK_VALUE(at == numel, where, ": elements ", at, " to ", numel, " of ", numel, " are missing",
                    runs.empty() ? "." : "; the elements before them belong to " + who(before) + ".");
}

void check_boxes(const std::vector<const ShardSpec*>& parts, int64_t numel, const std::string& where, const Who& who) {
  int64_t held = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->numel() == 0) continue;
    TORCH_CHECK_VALUE(!parts[i]->is_run(), where, ": ", who(i),
                      " holds a range of elements, but other parts hold boxes. All parts must be of one kind.");
    for (size_t k = 0; k < i; ++k)
      TORCH_CHECK_VALUE(parts[k]->numel() == 0 || !overlap(*parts[i], *parts[k]), where, ": the boxes of ", who(k),
                        " and of ", who(i), " overlap.");
    held += parts[i]->numel();
  }
  TORCH_CHECK_VALUE(held == numel, where, ": ", numel - held, " of ", numel, " elements are missing.");
}

}  // namespace

int64_t checked_numel(const std::vector<int64_t>& sizes, const std::string& where) {
  int64_t numel = 1;
  bool fits = true, empty = false;
  for (const int64_t size : sizes) {
    empty = empty || size == 0;
    fits = fits && size >= 0 && !__builtin_mul_overflow(numel, std::max<int64_t>(size, 1), &numel);
  }
  TORCH_CHECK_VALUE(fits, where, ": expected the sizes of a tensor, found [", c10::Join(", ", sizes), "].");
  return empty ? 0 : numel;
}

std::optional<std::pair<int64_t, int64_t>> single_run(const ShardSpec& spec) {
  if (spec.is_run()) return std::pair(spec.offset[0], spec.length[0]);
  if (spec.numel() == 0) return std::pair<int64_t, int64_t>(0, 0);
  size_t split = spec.sizes.size();  // after the last dim that is held partly
  while (split > 0 && spec.length[split - 1] == spec.sizes[split - 1]) --split;
  int64_t begin = 0, stride = 1;
  for (size_t dim = spec.sizes.size(); dim-- > 0; stride *= spec.sizes[dim]) {
    if (dim + 1 < split && spec.length[dim] != 1) return {};
    begin += spec.offset[dim] * stride;
  }
  return std::pair(begin, spec.numel());
}

void check_tiling(const std::vector<const ShardSpec*>& parts, const std::vector<int64_t>& sizes,
                  const std::string& where, const Who& who) {
  std::vector<HeldRun> runs;
  runs.reserve(parts.size());
  const int64_t numel = checked_numel(sizes, where);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto run = single_run(*parts[i]);
    if (!run) return check_boxes(parts, numel, where, who);
    if (run->second > 0) runs.push_back({run->first, run->first + run->second, i});
  }
  check_runs(std::move(runs), numel, where, who);
}

}  // namespace bellows::checkpoint
