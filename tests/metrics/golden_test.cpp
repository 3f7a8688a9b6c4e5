#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support.h"

namespace bellows::metrics {

namespace {

using nlohmann::json;

const json& goldens() {
  static const json content = test::read_goldens();
  return content;
}

template <class Enum>
Enum named(const std::string& name, const std::map<std::string, Enum>& names) {
  TORCH_CHECK(names.count(name), "unknown option in the goldens: ", name);
  return names.at(name);
}

Average average_of(const json& o, Average standard) {
  if (!o.contains("average")) return standard;
  return named<Average>(
      o["average"],
      {{"none", Average::none}, {"micro", Average::micro}, {"macro", Average::macro}, {"weighted", Average::weighted}});
}

Task task_of(const json& o) {
  return named<Task>(o["task"],
                     {{"binary", Task::binary}, {"multiclass", Task::multiclass}, {"multilabel", Task::multilabel}});
}

std::optional<int64_t> ignore_of(const json& o) {
  return o.contains("ignore_index") ? std::optional<int64_t>(o["ignore_index"].get<int64_t>()) : std::nullopt;
}

int64_t classes_of(Task task) {
  return task == Task::multiclass ? 5 : task == Task::multilabel ? 3 : 0;
}

ClassificationOptions classification_options(const json& o) {
  return {.task = task_of(o),
          .num_classes = classes_of(task_of(o)),
          .average = average_of(o, Average::macro),
          .top_k = o.value("top_k", 1),
          .threshold = o.value("threshold", 0.5),
          .ignore_index = ignore_of(o),
          .zero_division = o.value("zero_division", 0.0)};
}

CurveOptions curve_options(const json& o) {
  std::vector<double> thresholds;
  if (o.contains("thresholds")) {
    thresholds = o["thresholds"].is_array() ? o["thresholds"].get<std::vector<double>>()
                                            : even_thresholds(o["thresholds"].get<int64_t>());
  }
  return {.task = task_of(o),
          .num_classes = classes_of(task_of(o)),
          .average = average_of(o, Average::macro),
          .thresholds = thresholds,
          .ignore_index = ignore_of(o)};
}

RegressionOptions regression_options(const json& o) {
  return {.num_outputs = o.value("num_outputs", 1),
          .multioutput = named<MultiOutput>(o.value("multioutput", "uniform_average"),
                                            {{"uniform_average", MultiOutput::uniform_average},
                                             {"raw_values", MultiOutput::raw_values},
                                             {"variance_weighted", MultiOutput::variance_weighted}}),
          .squared = o.value("squared", true)};
}

Normalize normalize_of(const json& o) {
  return named<Normalize>(o["normalize"], {{"none", Normalize::none},
                                           {"true", Normalize::target},
                                           {"pred", Normalize::predicted},
                                           {"all", Normalize::all}});
}

Metric make_metric(const json& golden) {
  const std::string name = golden["metric"];
  const json& o = golden["options"];
  if (name == "accuracy") return Accuracy(classification_options(o));
  if (name == "precision") return Precision(classification_options(o));
  if (name == "recall") return Recall(classification_options(o));
  if (name == "f1") return F1Score(classification_options(o));
  if (name == "fbeta") return FBetaScore(2, classification_options(o));
  if (name == "iou") return JaccardIndex(classification_options(o));
  if (name == "confusion") return ConfusionMatrix(classification_options(o), normalize_of(o));
  if (name == "auroc") return AUROC(curve_options(o));
  if (name == "average_precision") return AveragePrecision(curve_options(o));
  if (name == "mse") return MeanSquaredError(regression_options(o));
  if (name == "mae") return MeanAbsoluteError(regression_options(o));
  if (name == "r2") return R2Score(regression_options(o));
  if (name == "mean") return Mean();
  if (name == "perplexity") return Perplexity({.ignore_index = ignore_of(o)});
  throw std::runtime_error("unknown metric in the goldens: " + name);
}

void flatten(const json& value, std::vector<double>& into) {
  if (value.is_array()) {
    for (const json& part : value) flatten(part, into);
  } else {
    into.push_back(value.is_string() ? std::nan("") : value.get<double>());
  }
}

/// "" when `actual` has the expected values. torchmetrics computes in float32: 2e-6, relative or absolute.
std::string difference(const at::Tensor& actual, const json& expected) {
  std::vector<double> wanted;
  flatten(expected, wanted);
  const at::Tensor flat = actual.to(at::kDouble).reshape(-1).contiguous();
  if (flat.numel() != static_cast<int64_t>(wanted.size())) return "another number of results";
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double x = flat.const_data_ptr<double>()[i], y = wanted[i];
    const bool same = std::isnan(y) ? std::isnan(x) : std::abs(x - y) <= 2e-6 * std::max(1.0, std::abs(y));
    if (!same) return c10::str("result ", i, " is ", x, ", expected ", y);
  }
  return "";
}

TEST(MetricsGoldens, EqualTorchmetricsAndScikitLearn) {
  int64_t compared = 0;
  for (const json& golden : goldens()["cases"]) {
    Metric metric = make_metric(golden);
    for (const auto& [preds, target] : test::golden_batches(goldens(), golden["data"])) metric.update(preds, target);
    const at::Tensor result = metric.compute();
    const std::string follows = golden.value("follows", "both");
    for (const char* reference : {"torchmetrics", "sklearn"}) {
      if (!golden.contains(reference) || (follows != "both" && follows != reference)) continue;
      EXPECT_EQ(difference(result, golden[reference]), "")
          << reference << ": " << golden["metric"] << " " << golden["options"] << " on " << golden["data"];
      ++compared;
    }
  }
  EXPECT_GT(compared, 1400);
}

/// Many classes are counted in vectors instead of a matrix: the same results.
TEST(MetricsGoldens, VectorsOfCountsGiveTheSame) {
  int64_t compared = 0;
  for (const json& golden : goldens()["cases"]) {
    const json& o = golden["options"];
    if (o.value("task", "") != "multiclass" || !o.contains("average") || o.contains("thresholds")) continue;
    if (golden["metric"] == "auroc" || golden["metric"] == "average_precision") continue;
    const ClassificationOptions few = classification_options(o);
    if (few.average == Average::none) continue;
    ClassificationOptions many = few;
    many.num_classes = 1000;
    Metric metric = golden["metric"] == "accuracy"    ? Metric(Accuracy(many))
                    : golden["metric"] == "precision" ? Metric(Precision(many))
                    : golden["metric"] == "recall"    ? Metric(Recall(many))
                    : golden["metric"] == "f1"        ? Metric(F1Score(many))
                    : golden["metric"] == "fbeta"     ? Metric(FBetaScore(2, many))
                                                      : Metric(JaccardIndex(many));
    for (auto [preds, target] : test::golden_batches(goldens(), golden["data"])) {
      if (preds.is_floating_point()) {
        std::vector<int64_t> rest = preds.sizes().vec();
        rest[1] = 995;
        preds = at::cat({preds, at::full(rest, -100.0F)}, 1);
      }
      metric.update(preds, target);
    }
    EXPECT_EQ(difference(metric.compute(), golden["torchmetrics"]), "")
        << golden["metric"] << " " << o << " on " << golden["data"];
    ++compared;
  }
  EXPECT_GT(compared, 150);
}

}  // namespace

}  // namespace bellows::metrics
