#include "bellows/metrics/perplexity.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <c10/util/Exception.h>

namespace bellows::metrics {

namespace {

class LogLikelihood : public Totals {
 public:
  explicit LogLikelihood(std::optional<int64_t> ignore_index)
      : Totals("Perplexity",
               c10::str("log likelihood(ignore_index=", ignore_index ? std::to_string(*ignore_index) : "none", ")"),
               {{"nll", {}, at::kDouble}, {"targets", {}, at::kLong}, {"invalid", {}, at::kLong}}),
        ignore_index_(ignore_index) {}

  at::Tensor mean() const { return read(0) / read(1); }
  at::Tensor invalid() const override { return read(2); }
  std::string invalid_text() const override { return "targets are outside the vocabulary and are not ignore_index"; }
  std::unique_ptr<Accumulator> clone() const override { return std::make_unique<LogLikelihood>(*this); }

 protected:
  void add(const at::Tensor& preds, const at::Tensor& target) override {
    TORCH_CHECK_VALUE(target.defined() && preds.is_floating_point() && !target.is_floating_point() &&
                          preds.dim() >= 2 &&
                          preds.sizes().slice(0, static_cast<size_t>(preds.dim() - 1)) == target.sizes(),
                      who(), ".update: expected logits [B, T, V] and integer targets [B, T], got ", preds.sizes(),
                      " of ", preds.scalar_type(), " and ", target.defined() ? c10::str(target.sizes()) : "none", ".");
    const auto dtype = preds.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor log_p = at::log_softmax(preds, -1, dtype), wanted = target.to(at::kLong);
    const at::Tensor used = wanted.clamp(0, preds.size(-1) - 1);
    at::Tensor valid = used.eq(wanted), wrong = ~valid;
    if (ignore_index_) {
      const at::Tensor kept = wanted.ne(*ignore_index_);
      valid.bitwise_and_(kept);
      wrong.bitwise_and_(kept);
    }
    const at::Tensor chosen = log_p.gather(-1, used.unsqueeze(-1)).squeeze(-1);
    total(0).sub_(chosen.masked_fill(~valid, 0).sum(at::kDouble));
    total(1).add_(valid.sum());
    total(2).add_(wrong.sum());
  }

 private:
  std::optional<int64_t> ignore_index_;
};

}  // namespace

Perplexity::Perplexity(const PerplexityOptions& options)
    : Metric(std::make_unique<LogLikelihood>(options.ignore_index),
             [](const LogLikelihood& seen) { return seen.mean().exp(); }) {}

}  // namespace bellows::metrics
