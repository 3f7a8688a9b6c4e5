#include "bellows/data/select/sample_stats.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <limits>

#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::data {

namespace {

constexpr const char* kKind = "bellows.sample_stats";
constexpr int64_t kFormatVersion = 1;
constexpr size_t kMaxPending = 4096;  // batches; bounds the memory on the device if the statistics are not read

/// Loss, margin, EL2N, entropy and correctness of each sample, [5, N] in fp32. A label outside [0, C) gives a NaN loss,
/// which is detected when the values are read.
at::Tensor measure(const at::Tensor& scores, const at::Tensor& labels) {
  const at::Tensor logits = scores.detach().to(at::kFloat), log_p = at::log_softmax(logits, 1), p = log_p.exp();
  const at::Tensor known = labels.ge(0).logical_and(labels.lt(scores.size(1)));
  const at::Tensor column = at::where(known, labels, 0).unsqueeze(1);
  const at::Tensor loss = log_p.gather(1, column).neg().squeeze(1);
  const at::Tensor others = logits.scatter(1, column, -std::numeric_limits<double>::infinity());
  const at::Tensor margin = others.amax({1}) - logits.gather(1, column).squeeze(1);
  const at::Tensor distance = (p.square().sum(1) - 2 * p.gather(1, column).squeeze(1) + 1).clamp_min(0).sqrt();
  const at::Tensor entropy = (p * log_p).nan_to_num(0).sum(1).neg();
  const at::Tensor right = at::argmax(logits, 1).eq(labels).to(at::kFloat);
  return at::stack(
      {at::where(known, loss, std::numeric_limits<double>::quiet_NaN()), margin, distance, entropy, right});
}

at::Tensor column_of(size_t rows, const void* first, int64_t stride, at::ScalarType dtype) {
  const auto n = static_cast<int64_t>(rows);
  return at::from_blob(const_cast<void*>(first), {n}, {stride}, at::TensorOptions(dtype)).clone();
}

}  // namespace

Difficulty parse_difficulty(const std::string& name) {
  const std::vector<std::string> names = {"forgetting", "el2n", "loss", "margin", "entropy"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Difficulty>(i);
  }
  TORCH_CHECK_VALUE(false, "difficulty: expected forgetting, el2n, loss, margin or entropy, got \"", name, "\".",
                    did_you_mean(name, names));
}

SampleStats::SampleStats(int64_t samples) {
  TORCH_CHECK_VALUE(samples >= 0, "SampleStats: expected at least 0 samples, got ", samples, ".");
  rows_.resize(static_cast<size_t>(samples));
}

void SampleStats::update(const std::vector<int64_t>& ids, const at::Tensor& scores, const at::Tensor& labels) {
  const auto n = static_cast<int64_t>(ids.size());
  TORCH_CHECK_VALUE(scores.dim() == 2 && scores.size(0) == n && scores.size(1) > 1, "SampleStats: expected scores [", n,
                    ", C] with C of at least 2, got ", scores.sizes(), ".");
  TORCH_CHECK_VALUE(
      labels.dim() == 1 && labels.size(0) == n && labels.device() == scores.device() && !labels.is_floating_point(),
      "SampleStats: expected ", n, " integer labels on ", scores.device(), ", got ", labels.sizes(), " ",
      labels.scalar_type(), " on ", labels.device(), ".");
  for (const int64_t id : ids) {
    TORCH_CHECK_VALUE(id >= 0 && id < size(), "SampleStats: expected ids in [0, ", size(), "), got ", id,
                      ". Construct SampleStats with the size of the complete dataset.");
  }
  if (n == 0) return;
  const c10::InferenceMode off(false);
  const c10::NoGradGuard no_grad;
  pending_.push_back({ids, measure(scores, labels)});
  if (pending_.size() >= kMaxPending) read_pending();
}

void SampleStats::add(Row& row, const float* values, int64_t stride) {
  const bool right = values[4 * stride] != 0;
  if (row.was_right && !right) ++row.forgotten;
  if (right && row.learned_at < 0) row.learned_at = row.presentations;
  row.was_right = right ? 1 : 0;
  row.loss_sum += values[0];
  row.margin_sum += values[stride];
  row.el2n_sum += values[2 * stride];
  row.last_entropy = values[3 * stride];
  ++row.presentations;
}

void SampleStats::read_pending() {
  for (const Seen& seen : std::exchange(pending_, {})) {
    const at::Tensor values = seen.values.to(c10::kCPU).contiguous();
    const auto stride = static_cast<int64_t>(seen.ids.size());
    for (size_t i = 0; i < seen.ids.size(); ++i) {
      const float* at = values.const_data_ptr<float>() + i;
      if (at[0] != at[0]) {
        unusable_ = seen.ids[i];
      } else {
        add(rows_[static_cast<size_t>(seen.ids[i])], at, stride);
      }
    }
  }
  TORCH_CHECK_VALUE(unusable_ < 0, "SampleStats: sample ", unusable_,
                    " has a label that is not a class of the scores, or scores that are NaN.");
}

std::vector<int64_t> SampleStats::presentations() {
  read_pending();
  std::vector<int64_t> result;
  for (const Row& row : rows_) result.push_back(row.presentations);
  return result;
}

std::vector<int64_t> SampleStats::forgetting_events() {
  read_pending();
  std::vector<int64_t> result;
  for (const Row& row : rows_) result.push_back(row.forgotten);
  return result;
}

std::vector<int64_t> SampleStats::learned_at() {
  read_pending();
  std::vector<int64_t> result;
  for (const Row& row : rows_) result.push_back(row.learned_at);
  return result;
}

std::vector<double> SampleStats::difficulty(Difficulty by) {
  read_pending();
  constexpr double most = std::numeric_limits<double>::infinity();
  const auto of = [&](const Row& row) {
    const auto n = static_cast<double>(row.presentations);
    switch (by) {
      case Difficulty::forgetting:
        return row.learned_at < 0 ? most : static_cast<double>(row.forgotten);
      case Difficulty::el2n:
        return row.el2n_sum / n;
      case Difficulty::loss:
        return row.loss_sum / n;
      case Difficulty::margin:
        return row.margin_sum / n;
      case Difficulty::entropy:
        return row.last_entropy;
    }
    return most;
  };
  std::vector<double> result;
  for (const Row& row : rows_) result.push_back(row.presentations == 0 ? most : of(row));
  return result;
}

NamedTensors SampleStats::state() {
  read_pending();
  static_assert(sizeof(Row) == 8 * sizeof(int64_t));
  const Row empty, *first = rows_.empty() ? &empty : rows_.data();
  const auto column = [&](const auto& member, at::ScalarType dtype) {
    return column_of(rows_.size(), &member, 8, dtype);
  };
  return {{"presentations", column(first->presentations, at::kLong)},
          {"forgotten", column(first->forgotten, at::kLong)},
          {"learned_at", column(first->learned_at, at::kLong)},
          {"was_right", column(first->was_right, at::kLong)},
          {"loss_sum", column(first->loss_sum, at::kDouble)},
          {"margin_sum", column(first->margin_sum, at::kDouble)},
          {"el2n_sum", column(first->el2n_sum, at::kDouble)},
          {"last_entropy", column(first->last_entropy, at::kDouble)}};
}

void SampleStats::load_state(const NamedTensors& state) {
  std::vector<Row> rows(rows_.size());
  const auto read = [&](const char* name, auto Row::*member) {
    using T = std::remove_reference_t<decltype(rows[0].*member)>;
    for (const auto& [known, tensor] : state) {
      if (known != name) continue;
      TORCH_CHECK_VALUE(tensor.dim() == 1 && tensor.size(0) == size(), "SampleStats: expected \"", name, "\" of ",
                        size(), " samples, got ", tensor.sizes(), ". The statistics belong to another dataset.");
      const at::Tensor values = tensor.to(c10::kCPU, c10::CppTypeToScalarType<T>::value).contiguous();
      for (size_t i = 0; i < rows.size(); ++i) rows[i].*member = values.template const_data_ptr<T>()[i];
      return;
    }
    TORCH_CHECK_VALUE(false, "SampleStats: the state has no entry \"", name, "\".");
  };
  read("presentations", &Row::presentations);
  read("forgotten", &Row::forgotten);
  read("learned_at", &Row::learned_at);
  read("was_right", &Row::was_right);
  read("loss_sum", &Row::loss_sum);
  read("margin_sum", &Row::margin_sum);
  read("el2n_sum", &Row::el2n_sum);
  read("last_entropy", &Row::last_entropy);
  rows_ = std::move(rows);
  pending_.clear();
}

void SampleStats::save(const std::string& path, const std::string& source) {
  io::save_safetensors(
      path, state(),
      {.metadata = {{"format", kKind}, {"version", std::to_string(kFormatVersion)}, {"source", source}}});
}

SavedStats load_sample_stats(const std::string& path) {
  const io::SafetensorsFile file(path);
  std::string kind, version, source;
  for (const auto& [key, value] : file.metadata()) {
    if (key == "format") kind = value;
    if (key == "version") version = value;
    if (key == "source") source = value;
  }
  TORCH_CHECK_VALUE(kind == kKind, "load_sample_stats: ", path, " contains no sample statistics. Train with ",
                    "sample_stats: true, so that the run folder gets the file sample_stats.safetensors.");
  TORCH_CHECK_VALUE(version == std::to_string(kFormatVersion), "load_sample_stats: ", path, " has version ", version,
                    ", but this program reads version ", kFormatVersion, ".");
  NamedTensors state;
  for (const auto& entry : file.entries()) state.emplace_back(entry.name, file.tensor(entry));
  TORCH_CHECK_VALUE(!state.empty() && state.front().second.dim() == 1, "load_sample_stats: ", path,
                    " contains no samples.");
  SavedStats saved{SampleStats(state.front().second.size(0)), source};
  saved.stats.load_state(state);
  return saved;
}

}  // namespace bellows::data
