#include "bellows/train/data/selection.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "bellows/checkpoint/folder.h"
#include "bellows/checkpoint/rng.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/seed.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/order/labels.h"
#include "bellows/data/select/active.h"
#include "bellows/data/select/sample_stats.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/job.h"

namespace bellows::train {

namespace {

const std::vector<std::string> kStrategies = {"least_confidence", "margin", "entropy", "bald", "k_center", "random"};
const std::vector<std::string> kHardness = {"forgetting", "el2n", "loss", "margin", "entropy", "random"};

void check_rule(const std::string& by, const std::vector<std::string>& rules, const char* what) {
  const bool known = std::find(rules.begin(), rules.end(), by) != rules.end();
  TORCH_CHECK_VALUE(known, "select: no rule ", what, " has the name \"", by, "\".", did_you_mean(by, rules),
                    " The rules are: ", c10::Join(", ", rules), ".");
}

struct PoolOutputs {
  std::vector<int64_t> ids;
  at::Tensor logits;  ///< [N, C], fp32 on the CPU
};

PoolOutputs outputs_of(const Model& model, data::Loader& loader) {
  const inference_mode no_graph;
  PoolOutputs outputs;
  std::vector<at::Tensor> parts;
  const c10::Device device = model.parameters().empty() ? c10::Device(c10::kCPU) : model.parameters().front().device();
  loader.start(0);
  while (const auto batch = loader.next()) {
    parts.push_back(model.forward(model_input(*batch).to(device)).to(at::kCPU, at::kFloat));
    outputs.ids.insert(outputs.ids.end(), batch->ids().begin(), batch->ids().end());
  }
  outputs.logits = at::cat(parts);
  return outputs;
}

/// Enables dropout, but not updates of running statistics, for BALD.
void turn_dropout_on(const Model& model) {
  model.train();
  if (const auto module = model.module_or_null()) {
    for (const auto& part : module->modules()) {
      const std::string type = part->name();
      if (type.find("BatchNorm") != std::string::npos || type.find("InstanceNorm") != std::string::npos)
        part->train(false);
    }
  }
}

at::Tensor bald_scores(const Model& model, data::Loader& loader, int64_t passes, uint64_t seed) {
  std::vector<at::Tensor> probabilities;
  {
    const checkpoint::RngGuard restores_generators;
    seed_everything(seed);
    turn_dropout_on(model);
    for (int64_t pass = 0; pass < passes; ++pass)
      probabilities.push_back(at::softmax(outputs_of(model, loader).logits, 1));
  }
  const at::Tensor all = at::stack(probabilities);
  TORCH_CHECK_VALUE(!at::equal(all[0], all[1]), "select: bald needs a model with dropout; two passes through \"",
                    model.name(), "\" returned the same result. Use entropy or margin.");
  return data::bald(all);
}

/// Higher scores are more informative.
at::Tensor scores_for(const std::string& by, const at::Tensor& logits) {
  const at::Tensor p = at::softmax(logits, 1);
  return by == "least_confidence" ? data::least_confidence(p)
         : by == "margin"         ? data::small_margin(p)
                                  : data::entropy(p);
}

std::vector<double> as_doubles(const at::Tensor& values) {
  const at::Tensor flat = values.to(at::kCPU, at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

std::vector<int64_t> pick(const std::vector<int64_t>& from, const std::vector<int64_t>& rows) {
  std::vector<int64_t> ids;
  for (const int64_t row : rows) ids.push_back(from[static_cast<size_t>(row)]);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<int64_t> rest_of(int64_t size, std::vector<int64_t> without) {
  std::sort(without.begin(), without.end());
  std::vector<int64_t> rest;
  for (int64_t id = 0; id < size; ++id) {
    if (!std::binary_search(without.begin(), without.end(), id)) rest.push_back(id);
  }
  return rest;
}

int64_t position_of(int64_t id, const std::vector<int64_t>& ascending) {
  return std::lower_bound(ascending.begin(), ascending.end(), id) - ascending.begin();
}

/// The samples to choose from, and the run that provides the model.
struct SelectionOrigin {
  ResolvedJob job;
  std::string source;                ///< fingerprint of the data
  std::vector<int64_t> trainable;    ///< samples that are not held out
  std::vector<int64_t> in_training;  ///< samples of the run's subset; all if it has none

  const Recipe& recipe() const { return job.recipe; }
  const data::Dataset& whole() const { return job.split().whole; }
};

SelectionOrigin origin_of(const Selection& selection) {
  Recipe recipe;
  if (!selection.run.empty()) {
    recipe = Recipe::load(selection.run + "/recipe.yaml");
  } else {
    recipe.data = selection.data;
  }
  ResolvedJob job = selection.split.empty() ? resolve(recipe) : resolve_model(recipe);
  if (!job.data) job.data = DataSplit{data::open(recipe.data, {.split = selection.split}), {}, ""};
  const DataSplit& split = job.split();
  std::string source = data::fingerprint(split.whole);
  std::vector<int64_t> trainable = split.trained(), in_training = trainable;
  if (!recipe.subset.empty()) in_training = split.trained(data::load_subset(recipe.subset).ids);
  return {std::move(job), std::move(source), std::move(trainable), std::move(in_training)};
}

int64_t wanted_count(const Selection& selection, int64_t of) {
  if (selection.keep == 0) return selection.count + selection.add;
  return std::max<int64_t>(1, std::llround(selection.keep * static_cast<double>(of)));
}

/// Difficulty of all samples from the run's statistics; equal for `random`.
std::vector<double> hardness(const Selection& selection, const SelectionOrigin& origin) {
  if (selection.by == "random") return std::vector<double>(static_cast<size_t>(origin.whole().size()));
  const data::Difficulty by = data::parse_difficulty(selection.by);
  data::SavedStats saved = data::load_sample_stats(selection.run + "/sample_stats.safetensors");
  TORCH_CHECK_VALUE(saved.source == origin.source && saved.stats.size() == origin.whole().size(),
                    "select: ", selection.run, " was trained on different data (", saved.source, ") than ",
                    origin.recipe().data, " is now (", origin.source, ").");
  return saved.stats.difficulty(by);
}

Model model_of(const std::string& run, const ResolvedJob& job) {
  const Model model = make_model(job);
  const auto newest = checkpoint::Folder(run, job.recipe.save_total_limit).newest();
  TORCH_CHECK_VALUE(newest, "select: ", run, " contains no checkpoint.");
  checkpoint::restore_model(model, newest->model);
  return model;
}

std::vector<int64_t> with_next_to_label(const Selection& selection, SelectionOrigin origin) {
  TORCH_CHECK_VALUE(!origin.recipe().subset.empty(), "select: ", selection.run,
                    " was trained on all samples, so no sample is ",
                    "left to label. First train on a subset that contains the samples with labels.");
  Recipe plain = origin.recipe();
  plain.augment = "none";
  plain.subset.clear();
  const data::Dataset pool = open_train_data(plain).sequential();
  std::vector<int64_t> labelled;
  labelled.reserve(origin.in_training.size());
  for (const int64_t id : origin.in_training) labelled.push_back(position_of(id, origin.trainable));
  std::vector<int64_t> ids =
      pick(origin.trainable,
           choose_to_label(
               model_of(selection.run, origin.job), pool, labelled,
               {.by = selection.by, .count = selection.add, .passes = selection.passes, .seed = selection.seed}));
  ids.insert(ids.end(), origin.in_training.begin(), origin.in_training.end());
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

std::vector<int64_t> choose_to_label(const Model& model, const data::Dataset& pool,
                                     const std::vector<int64_t>& labelled, const PoolChoice& choice) {
  check_rule(choice.by, kStrategies, "for samples to label");
  const std::vector<int64_t> left = rest_of(pool.size(), labelled);
  TORCH_CHECK_VALUE(choice.count > 0 && choice.count <= static_cast<int64_t>(left.size()),
                    "select: expected to add 1 to ", left.size(), " samples, got ", choice.count, ".");
  TORCH_CHECK_VALUE(choice.passes > 1, "select: expected at least 2 passes, got ", choice.passes, ".");
  const auto best = [&](const std::vector<double>& values) {
    return pick(left, data::greatest(values, choice.count, choice.seed));
  };
  if (choice.by == "random") return best(std::vector<double>(left.size()));
  const EvalMode restores_the_mode(model);
  if (choice.by == "k_center") {
    data::Loader all = pool.sequential().loader();
    const PoolOutputs outputs = outputs_of(model, all);
    TORCH_CHECK_VALUE(static_cast<int64_t>(outputs.ids.size()) == pool.size(),
                      "select: k_center needs every sample, but ",
                      pool.size() - static_cast<int64_t>(outputs.ids.size()), " samples cannot be used.");
    std::vector<int64_t> rows = data::k_center(outputs.logits, labelled, choice.count);
    std::sort(rows.begin(), rows.end());
    return rows;
  }
  data::Loader loader = pool.subset(left).sequential().loader();
  const at::Tensor scores = choice.by == "bald" ? bald_scores(model, loader, choice.passes, choice.seed)
                                                : scores_for(choice.by, outputs_of(model, loader).logits);
  TORCH_CHECK_VALUE(scores.numel() == static_cast<int64_t>(left.size()),
                    "select: ", static_cast<int64_t>(left.size()) - scores.numel(),
                    " samples of the pool cannot be used.");
  return best(as_doubles(scores));
}

void check_selection(const Selection& selection) {
  check_rule(selection.by, selection.add > 0 ? kStrategies : kHardness,
             selection.add > 0 ? "for samples to label" : "for samples with labels");
  TORCH_CHECK_VALUE(selection.run.empty() != selection.data.empty(), "select: expected either `run` or `data`, got ",
                    selection.run.empty() ? "neither." : "both.");
  const int ways = (selection.keep != 0) + (selection.count != 0) + (selection.add != 0);
  TORCH_CHECK_VALUE(ways == 1, "select: expected exactly one of `keep`, `count` and `add`, got ", ways, " of them.");
  TORCH_CHECK_VALUE(selection.count >= 0 && selection.add >= 0, "select: expected a number of samples above 0.");
  TORCH_CHECK_VALUE(selection.keep >= 0 && selection.keep <= 1, "select: expected to keep a share in (0, 1], got ",
                    selection.keep, ".");
  TORCH_CHECK_VALUE(!selection.run.empty() || selection.add == 0,
                    "select: the model of a run chooses the samples to label. Set `run` to the folder of a run.");
  TORCH_CHECK_VALUE(!selection.run.empty() || selection.by == "random", "select: ", selection.by,
                    " needs the folder of a run with sample_stats: true. Without such a run, use the rule random.");
  TORCH_CHECK_VALUE(selection.split.empty() || selection.run.empty(),
                    "select: `split` works only with `data`, because a run has its own split.");
}

data::Subset select_samples(const Selection& selection) {
  check_selection(selection);
  SelectionOrigin origin = origin_of(selection);
  const auto of = static_cast<int64_t>(origin.in_training.size());
  const int64_t size = origin.whole().size(), wanted = wanted_count(selection, of);
  data::Subset subset{.source = origin.source, .rule = {}, .of = size, .ids = {}};
  if (selection.add > 0) {
    subset.rule = c10::str("to label: ", selection.add, " more by ", selection.by, ", seed ", selection.seed);
    subset.ids = with_next_to_label(selection, std::move(origin));
    return subset;
  }
  subset.rule = c10::str(wanted, " of ", of, selection.by == "random" ? " at " : " hardest by ", selection.by,
                         selection.per_class ? ", per class" : "", ", seed ", selection.seed);
  const std::vector<double> all = hardness(selection, origin);
  std::vector<double> values;
  for (const int64_t id : origin.in_training) values.push_back(all[static_cast<size_t>(id)]);
  std::vector<int64_t> labels;
  if (selection.per_class) labels = data::read_labels(*origin.whole().subset(origin.in_training).source());
  subset.ids =
      pick(origin.in_training, selection.per_class ? data::greatest_per_class(values, labels, wanted, selection.seed)
                                                   : data::greatest(values, wanted, selection.seed));
  return subset;
}

}  // namespace bellows::train
