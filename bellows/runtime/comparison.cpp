#include "bellows/runtime/comparison.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/nan_to_num.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "bellows/core/error.h"
#include "bellows/runtime/file_kind.h"

namespace bellows::runtime {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double window_s = 0.03;
constexpr int least_rounds = 5, warmup_calls = 2;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string place_text(const std::vector<int64_t>& place) {
  std::string text;
  for (const int64_t one : place) text += (text.empty() ? "" : ", ") + std::to_string(one);
  return "[" + text + "]";
}

std::vector<int64_t> place_of(int64_t element, at::IntArrayRef sizes) {
  std::vector<int64_t> place(sizes.size());
  for (size_t axis = sizes.size(); axis-- > 0; element /= sizes[axis]) place[axis] = element % sizes[axis];
  return place;
}

/// The difference of one output. `text` contains no name of the output.
Difference difference_of_output(const at::Tensor& expected, const at::Tensor& actual) {
  if (expected.sizes() != actual.sizes())
    return {.relative = infinite, .text = c10::str("expected sizes ", expected.sizes(), ", got ", actual.sizes())};
  if (expected.numel() == 0) return {};
  const at::Tensor right = expected.to(at::kDouble).contiguous(), given = actual.to(at::kDouble).contiguous();
  const double largest = at::nan_to_num(right, 0, 0, 0).abs().max().item<double>();
  const at::Tensor both = right.eq(given).logical_or(right.isnan().logical_and(given.isnan()));
  const at::Tensor distance = at::nan_to_num(right.sub(given).abs(), infinite, infinite).masked_fill(both, 0);
  const int64_t element = distance.argmax().item<int64_t>();
  const double worst = distance.view({-1})[element].item<double>();
  if (worst == 0) return {};
  Difference result{.relative = worst / std::max(largest, 1e-30),
                    .place = place_of(element, expected.sizes()),
                    .expected = right.view({-1})[element].item<double>(),
                    .actual = given.view({-1})[element].item<double>()};
  result.text = c10::str("at ", place_text(result.place), ", expected ", result.expected, ", got ", result.actual);
  return result;
}

/// A loaded model and its inputs.
struct Contestant {
  ComparedModel* row;
  std::unique_ptr<InferenceModel> model;
  std::vector<at::Tensor> inputs{};
};

/// Runs an action of a back end. Returns false, and sets the problem of the row, if it fails.
template <class Action>
bool guarded(ComparedModel& row, Action action) {
  try {
    action();
    return true;
  } catch (const std::exception& error) {
    row.problem = user_message(error);
    return false;
  }
}

std::vector<ComparedModel> rows_of(const std::vector<std::string>& files, const ComparisonOptions& options) {
  for (const std::string& name : options.backends) backend(name);  // throws if there is none
  std::vector<ComparedModel> rows;
  for (const std::string& file : files) {
    const size_t before = rows.size();
    bool read = false;
    for (const InferenceBackend* one : backends()) {
      if (!one->accepts(file)) continue;
      read = true;
      const bool wanted =
          options.backends.empty() || std::ranges::find(options.backends, one->name()) != options.backends.end();
      if (wanted) rows.push_back({.file = file, .backend = one->name()});
    }
    if (!read) check_kind(file, "bench-model", false);
    TORCH_CHECK_VALUE(rows.size() > before, file, ": none of the chosen back ends reads ", describe(file_kind(file)),
                      ".");
  }
  return rows;
}

/// The options that the back end supports.
LoadOptions options_for(const std::string& backend, LoadOptions options) {
  if (backend != "libtorch" && backend != "compiled" && backend != "openvino") options.autocast.reset();
  if (backend != "onnxruntime") options.providers.clear();
  return options;
}

void load(ComparedModel& row, const ComparisonOptions& options, std::vector<Contestant>& contestants) {
  const InferenceBackend& library = backend(row.backend);
  row.problem = library.missing();
  row.absent = !row.problem.empty();
  if (row.absent) return;
  row.version = library.version();
  if (options.progress) options.progress("Loading " + row.file + " in " + row.backend);
  guarded(row, [&] {
    const double start = now_s();
    std::unique_ptr<InferenceModel> model = library.load(row.file, options_for(row.backend, options.load));
    row.load_s = now_s() - start;
    contestants.push_back({&row, std::move(model)});
  });
}

/// Gives each model the inputs in its own dtypes. Returns the description from which the inputs were made.
void add_inputs(std::vector<Contestant>& contestants, const ComparisonOptions& options) {
  const auto is_described = [](const Contestant& one) {
    return std::ranges::none_of(one.model->inputs(),
                                [](const TensorInfo& info) { return info.dtype == c10::ScalarType::Undefined; });
  };
  auto source = std::ranges::find_if(contestants, is_described);
  if (source == contestants.end()) source = contestants.begin();
  const std::vector<TensorInfo> described = source->model->inputs();
  const std::vector<at::Tensor> inputs = options.inputs(described);
  for (Contestant& one : contestants) {
    const std::vector<TensorInfo>& expected = one.model->inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool known = i < expected.size() && expected[i].dtype != c10::ScalarType::Undefined;
      one.inputs.push_back(known ? inputs[i].to(expected[i].dtype) : inputs[i]);
    }
  }
}

/// The first calls, whose results are compared. Removes models that fail.
void check_results(std::vector<Contestant>& contestants, const ComparisonOptions& options) {
  // The reference comes first.
  std::stable_partition(contestants.begin(), contestants.end(),
                        [](const Contestant& one) { return one.row->backend == "libtorch"; });
  std::optional<std::vector<at::Tensor>> expected;
  std::erase_if(contestants, [&](Contestant& one) {
    if (options.progress) options.progress("First call of " + one.row->file + " in " + one.row->backend);
    return !guarded(*one.row, [&] {
      const double start = now_s();
      const std::vector<at::Tensor> results = one.model->run(one.inputs);
      one.row->first_s = now_s() - start;
      one.row->reference = !expected;
      if (!expected) {
        expected = results;
        return;
      }
      one.row->difference = difference_of(*expected, results);
      one.row->agrees = one.row->difference->relative <= options.tolerance;
    });
  });
}

/// One window: as many calls as fit, at least one.
void run_window(Contestant& one) {
  const double start = now_s();
  double end = start;
  int64_t calls = 0;
  do {
    const double before = end;
    one.model->run(one.inputs);
    end = now_s();
    one.row->calls.push_back(end - before);
    ++calls;
  } while (end - start < window_s);
  one.row->windows.push_back((end - start) / static_cast<double>(calls));
}

void measure(std::vector<Contestant>& contestants, const ComparisonOptions& options) {
  const auto count = static_cast<int64_t>(contestants.size());
  for (Contestant& one : contestants) {
    for (int i = 0; i < warmup_calls; ++i) one.model->run(one.inputs);
  }
  const double end = now_s() + options.seconds * static_cast<double>(count);
  for (int64_t round = 0; round < least_rounds || now_s() < end; ++round) {
    if (options.stop && options.stop()) return;
    if (options.progress)
      options.progress(
          c10::str("Measuring ", count, count == 1 ? " model" : " models in turns", ", round ", round + 1));
    for (int64_t i = 0; i < count; ++i) run_window(contestants[static_cast<size_t>((round + i) % count)]);
  }
}

void summarize(std::vector<Contestant>& contestants) {
  for (Contestant& one : contestants) {
    ComparedModel& row = *one.row;
    if (row.calls.empty()) continue;
    row.median_s = median(row.calls);
    row.p90_s = quantile(row.calls, 0.9);
    row.spread = (quantile(row.calls, 0.75) - quantile(row.calls, 0.25)) / 2 / row.median_s;
    const bool batched = !one.inputs.empty() && one.inputs.front().dim() > 0;
    row.throughput = (batched ? static_cast<double>(one.inputs.front().size(0)) : 1.0) / row.median_s;
    const std::vector<double>& first = contestants.front().row->windows;
    const size_t pairs = std::min(first.size(), row.windows.size());
    const auto cut = [&](const std::vector<double>& list) {
      return std::vector<double>(list.begin(), list.begin() + static_cast<int64_t>(pairs));
    };
    if (pairs >= 2 && &first != &row.windows) row.speedup = paired_ratio(cut(first), cut(row.windows));
  }
}

}  // namespace

Difference difference_of(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& actual) {
  if (expected.size() != actual.size())
    return {.relative = infinite, .text = c10::str("expected ", expected.size(), " outputs, got ", actual.size())};
  Difference worst;
  for (size_t i = 0; i < expected.size(); ++i) {
    Difference one = difference_of_output(expected[i], actual[i]);
    if (one.relative <= worst.relative) continue;
    worst = std::move(one);
    worst.output = static_cast<int64_t>(i);
    worst.text = c10::str("output ", i, " ", worst.text);
  }
  return worst;
}

std::vector<ComparedModel> compare_models(const std::vector<std::string>& files, const ComparisonOptions& options) {
  std::vector<ComparedModel> rows = rows_of(files, options);
  std::vector<Contestant> contestants;
  for (ComparedModel& row : rows) load(row, options, contestants);
  if (contestants.empty()) return rows;
  add_inputs(contestants, options);
  check_results(contestants, options);
  if (contestants.empty()) return rows;
  measure(contestants, options);
  summarize(contestants);
  return rows;
}

}  // namespace bellows::runtime
