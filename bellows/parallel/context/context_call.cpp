#include "bellows/parallel/context/context_call.h"

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <torch/version.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/core/version.h"
#include "bellows/parallel/tensor/divided_dropout.h"

namespace bellows::parallel {

namespace {

std::string tensor_text(const at::Tensor& x) {
  return x.defined() ? c10::str(x.scalar_type(), " [", c10::Join(", ", x.sizes()), "]") : std::string("none");
}

/// Returns what is wrong with the tensors of this rank, or "".
std::string shape_problem(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool grouped) {
  const std::string found =
      c10::str(", got query ", tensor_text(query), ", key ", tensor_text(key), ", value ", tensor_text(value), ".");
  const auto four_dims = [](const at::Tensor& x) { return x.defined() && x.is_floating_point() && x.dim() == 4; };
  if (!four_dims(query) || !four_dims(key) || !four_dims(value))
    return "expected floating-point tensors [N, heads, tokens, width]" + found;
  const auto is_like = [&](const at::Tensor& x) {
    return x.scalar_type() == query.scalar_type() && x.device() == query.device() && x.size(0) == query.size(0);
  };
  if (!is_like(key) || !is_like(value)) return "expected tensors of the same batch size, dtype and device" + found;
  if (key.size(1) != value.size(1) || key.size(2) != value.size(2) || key.size(3) != query.size(3))
    return "expected a value for each key, and keys as wide as queries" + found;
  if (query.numel() == 0 || key.numel() == 0 || value.numel() == 0) return "expected at least one token" + found;
  if (query.size(1) == key.size(1)) return "";
  if (!grouped) return "expected as many heads of keys as of queries, or the option `grouped`" + found;
  return query.size(1) % key.size(1) == 0 ? "" : "expected a number of query heads that the key heads divide" + found;
}

std::string mask_problem(const at::Tensor& mask, const at::Tensor& query, const at::Tensor& key, int ranks) {
  if (!mask.defined()) return "";
  const std::string found =
      c10::str(", got ", tensor_text(mask), " for ", key.size(2), " keys on each of ", ranks, " ranks.");
  if (mask.scalar_type() != at::kBool && mask.scalar_type() != query.scalar_type() && mask.scalar_type() != at::kFloat)
    return "expected a mask of dtype Bool or of the dtype of the query" + found;
  const auto fits = [&](int64_t dim, int64_t size) {
    const int64_t at = mask.dim() - dim;
    return at < 0 || mask.size(at) == 1 || mask.size(at) == size;
  };
  const int64_t keys = mask.dim() > 0 ? mask.size(-1) : 0;
  const bool for_keys = keys == key.size(2) || keys == key.size(2) * ranks;
  if (!for_keys || mask.dim() > 4 || !fits(2, 1) || !fits(3, query.size(1)) || !fits(4, query.size(0)))
    return "expected a mask [N or 1, heads or 1, 1, keys], the same for all queries, with the keys of this rank or of "
           "all ranks" +
           found;
  return mask.requires_grad() ? "masks that require a gradient are not supported" + found : "";
}

std::string option_problem(const at::Tensor& query, const at::Tensor& key, int ranks,
                           const ContextAttentionOptions& options) {
  const int64_t heads = key.size(1), queries = query.size(2), keys = key.size(2);
  if (options.dropout < 0 || options.dropout > 1)
    return c10::str("expected dropout in [0, 1], got ", options.dropout, ".");
  if (options.causal && queries != keys)
    return c10::str("causal attention needs as many keys as queries, got ", keys, " and ", queries, " per rank.");
  if (options.zigzag && ranks > 1 && (queries % 2 != 0 || keys % 2 != 0))
    return c10::str("zig-zag order needs two chunks of equal length on each rank, got ", queries, " queries and ", keys,
                    " keys per rank. Pad the sequence to a multiple of ", 2 * ranks, " tokens.");
  if (options.method == ContextMethod::all_to_all && heads % ranks != 0)
    return c10::str("all_to_all divides the heads, but ", ranks, " ranks do not divide ", heads,
                    " heads. Use the method ring.");
  return "";
}

std::string value_problem(const char* name, const at::Tensor& x) {
  const c10::NoGradGuard no_grad;
  if (x.isfinite().all().item<bool>()) return "";
  return c10::str("check_finite: expected finite numbers, got NaN or infinity in the ", name, " ", tensor_text(x), ".");
}

std::string problem_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int ranks,
                       const ContextAttentionOptions& options) {
  std::string problem = shape_problem(query, key, value, options.grouped);
  if (problem.empty()) problem = option_problem(query, key, ranks, options);
  if (problem.empty()) problem = mask_problem(options.mask, query, key, ranks);
  if (!options.check_finite) return problem;
  if (problem.empty()) problem = value_problem("query", query);
  if (problem.empty()) problem = value_problem("key", key);
  return problem.empty() ? value_problem("value", value) : problem;
}

std::string call_line(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const ContextAttentionOptions& options) {
  const std::string scale = options.scale ? c10::str(*options.scale) : "default";
  std::string line =
      c10::str("query ", tensor_text(query), ", key ", tensor_text(key), ", value ", tensor_text(value), ", mask ",
               tensor_text(options.mask), ", dropout ", options.dropout, options.causal ? ", causal" : "", ", scale ",
               scale, ", ", to_string(options.method), options.zigzag ? ", zig-zag" : "",
               options.check_finite ? ", check_finite" : "", ", Bellows " BELLOWS_VERSION ", libtorch " TORCH_VERSION);
  return options.dropout > 0 ? line + ", " + generator_line(options.generator) : line;
}

}  // namespace

const char* to_string(ContextMethod method) {
  if (method == ContextMethod::ring) return "ring";
  return method == ContextMethod::all_to_all ? "all_to_all" : "gather";
}

void check_context_call(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const comm::Group& group, const ContextAttentionOptions& options) {
  const std::string problem = problem_of(query, key, value, group.size(), options);
  TORCH_CHECK_VALUE(problem.empty() || group.size() > 1, "context_attention: ", problem);
  if (group.size() == 1) return;
  const std::string line = problem.empty() ? call_line(query, key, value, options) : "!" + problem;
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(line));
  const at::Tensor hashes = comm::all_gather(at::full({1}, hash, at::kLong), group);
  if (problem.empty() && hashes.eq(hash).all().item<bool>()) return;
  const std::vector<std::string> lines = comm::all_gather_strings(line, group);
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    TORCH_CHECK_VALUE(!lines[rank].starts_with('!'), "context_attention on rank ", rank, " of group ", group.name(),
                      ": ", lines[rank].substr(1));
  }
  for (size_t rank = 1; rank < lines.size(); ++rank) {
    TORCH_CHECK_VALUE(lines[rank] == lines[0], "context_attention: the ranks pass different arguments (group ",
                      group.name(), "). Rank ", rank, ": ", lines[rank], ". Rank 0: ", lines[0],
                      ". Pass tensors of the same shapes and the same options on every rank.");
  }
}

}  // namespace bellows::parallel
