#include "bellows/metrics/regression.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <limits>

namespace bellows::metrics {

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Sums over samples in float64, [D] each or [] for one output, and the number of samples.
class ErrorSums : public Totals {
 public:
  enum class Kind { squared, absolute, r2 };

  ErrorSums(std::string who, Kind kind, int64_t outputs)
      : Totals(std::move(who), c10::str("errors(kind=", static_cast<int>(kind), ", outputs=", outputs, ")"),
               entries(kind, outputs)),
        kind_(kind),
        outputs_(outputs) {
    TORCH_CHECK_VALUE(outputs >= 1, this->who(), ": expected num_outputs of at least 1, got ", outputs, ".");
  }

  at::Tensor samples() const { return read(0); }
  at::Tensor errors() const { return read(1); }
  at::Tensor targets() const { return read(2); }
  at::Tensor squared_targets() const { return read(3); }
  std::unique_ptr<Accumulator> clone() const override { return std::make_unique<ErrorSums>(*this); }

 protected:
  void add(const at::Tensor& preds, const at::Tensor& target) override {
    TORCH_CHECK_VALUE(
        target.defined() && preds.sizes() == target.sizes() && !preds.is_complex() && !target.is_complex(), who(),
        ".update: expected real preds and target of the same shape, got ", preds.sizes(), " of ", preds.scalar_type(),
        " and ", target.defined() ? c10::str(target.sizes()) : "none", ".");
    TORCH_CHECK_VALUE(outputs_ == 1 || (target.dim() == 2 && target.size(1) == outputs_), who(),
                      ".update: expected [N, ", outputs_, "] for num_outputs = ", outputs_, ", got ", target.sizes(),
                      ".");
    const at::Tensor y = target.to(at::kDouble), error = y - preds;
    total(0).add_(target.numel() / outputs_);
    total(1).add_(sum(kind_ == Kind::absolute ? error.abs() : error * error));
    if (kind_ != Kind::r2) return;
    total(2).add_(sum(y));
    total(3).add_(sum(y * y));
  }

 private:
  static std::vector<Entry> entries(Kind kind, int64_t outputs) {
    const std::vector<int64_t> sizes = outputs == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{outputs};
    std::vector<Entry> result = {{"samples", {}, at::kLong}, {"errors", sizes, at::kDouble}};
    if (kind == Kind::r2) {
      result.push_back({"targets", sizes, at::kDouble});
      result.push_back({"squared_targets", sizes, at::kDouble});
    }
    return result;
  }
  at::Tensor sum(const at::Tensor& x) const { return outputs_ == 1 ? x.sum() : x.sum(0); }

  Kind kind_;
  int64_t outputs_;
};

Metric mean_error(const char* who, ErrorSums::Kind kind, const RegressionOptions& o) {
  TORCH_CHECK_VALUE(o.multioutput != MultiOutput::variance_weighted, who,
                    ": expected uniform_average or raw_values. Only R2Score supports variance_weighted.");
  return Metric(std::make_unique<ErrorSums>(who, kind, o.num_outputs), [o](const ErrorSums& sums) {
    const at::Tensor mean = sums.errors() / sums.samples(), result = o.squared ? mean : mean.sqrt();
    return o.multioutput == MultiOutput::raw_values ? result : result.mean();
  });
}

at::Tensor r2_of(const ErrorSums& sums, MultiOutput how) {
  const at::Tensor spread = sums.squared_targets() - sums.targets() * sums.targets() / sums.samples();
  const at::Tensor varies = spread.gt(sums.squared_targets() * 1e-13);
  at::Tensor score = at::where(varies, 1 - sums.errors() / spread, sums.errors().eq(0).to(at::kDouble));
  if (how == MultiOutput::uniform_average) score = score.mean();
  if (how == MultiOutput::variance_weighted) {
    const at::Tensor weights = spread * varies;
    score = at::where(weights.sum().gt(0), (score * weights).sum() / weights.sum(), score.mean());
  }
  return score.masked_fill(sums.samples().lt(2), not_a_number);
}

}  // namespace

MeanSquaredError::MeanSquaredError(const RegressionOptions& o)
    : Metric(mean_error("MeanSquaredError", ErrorSums::Kind::squared, o)) {}

MeanAbsoluteError::MeanAbsoluteError(const RegressionOptions& o)
    : Metric(mean_error("MeanAbsoluteError", ErrorSums::Kind::absolute,
                        {.num_outputs = o.num_outputs, .multioutput = o.multioutput})) {}

R2Score::R2Score(const RegressionOptions& o)
    : Metric(std::make_unique<ErrorSums>("R2Score", ErrorSums::Kind::r2, o.num_outputs),
             [how = o.multioutput](const ErrorSums& sums) { return r2_of(sums, how); }) {}

}  // namespace bellows::metrics
