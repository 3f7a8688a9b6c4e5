// How much does a teacher help a small student, and what does the student save? A ResNet teaches smaller ResNets on the
// digits, and each of them is deployed in several forms.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "bellows/amp/policy.h"
#include "bellows/compile/compile.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/weight_bytes.h"
#include "bellows/data/dataset.h"
#include "bellows/data/select/subset.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/registry.h"
#include "bellows/models/resnet.h"
#include "bellows/quant/quantize.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/distillation.h"
#include "bellows/train/job.h"
#include "bellows/train/trainer.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using train::Recipe;

constexpr int64_t latency_batch = 128;

using Forward = std::function<at::Tensor(const at::Tensor& images)>;

/// A trained model in the form in which it runs after training.
struct Deployed {
  Forward forward;
  int64_t bytes = 0;  ///< of the weights
};

/// A way to deploy a model. To add another one, add a row to `forms`.
/// Params: model      – trained, in evaluation mode; a copy that the form may change
///         calibration – images [N, 1, 8, 8] of the training data
struct Form {
  const char* name;
  Deployed (*deploy)(const Model& model, const at::Tensor& calibration);
};

Deployed as_trained(const Model& model, const at::Tensor&) {
  return {[model](const at::Tensor& x) { return model.forward(x); }, weight_bytes(model)};
}

Deployed compiled(const Model& model, const at::Tensor&) {
  return {compile([model](const at::Tensor& x) { return model.forward(x); }, {.frozen = model}), weight_bytes(model)};
}

Deployed in_bf16(const Model& model, const at::Tensor&) {
  const Model low =
      amp::apply(
          model,
          {.name = "bf16 weights", .dtype = at::kBFloat16, .autocast = true, .low_weights = true, .norms_fp32 = true})
          .model;
  return as_trained(low, {});
}

Deployed in_int8(const Model& model, const at::Tensor& calibration) {
  const Model int8 = quant::quantize(model, {}, std::vector<std::vector<at::Tensor>>{{calibration}}).model;
  return {compile([int8](const at::Tensor& x) { return int8.forward(x); }, {.frozen = int8}), weight_bytes(int8)};
}

const std::vector<Form> forms = {
    {"fp32", as_trained}, {"fp32, compiled", compiled}, {"bf16 weights", in_bf16}, {"static int8, compiled", in_int8}};

struct Subject {
  std::string title;
  int64_t width = 0;  ///< of digits_resnet()
  bool taught = false;
};

struct Setting {
  std::string folder;          ///< for weights, the cache and the subset
  std::string data;            ///< folder of the digits
  int64_t student_epochs = 0;  ///< over a subset of the training data
  int64_t teacher_epochs = 0;  ///< over all training data
};

std::string model_of(int64_t width) {
  return "digits_resnet_w" + std::to_string(width);
}

/// Registers the ResNet in this width.
void add_model(int64_t width) {
  models::ModelEntry entry = models::model_entry("digits_resnet");
  entry.name = model_of(width);
  entry.make = [width](int64_t classes, int64_t channels) {
    return models::digits_resnet({.num_classes = classes, .in_channels = channels, .width = width});
  };
  models::register_model(std::move(entry));
}

Recipe recipe_for(const Setting& setting, int64_t width, int64_t seed) {
  Recipe recipe;
  recipe.model = model_of(width);
  recipe.data = setting.data;
  recipe.subset = setting.folder + "/subset.json";
  recipe.epochs = setting.student_epochs;
  recipe.lr_schedule = "one_cycle";
  recipe.lr = 0.1;
  recipe.seed = seed;
  recipe.num_workers = 0;
  return recipe;
}

Model trained(const Recipe& recipe) {
  train::Job job = train::make_job(recipe);
  const Model model = job.model;
  train::Trainer(recipe).fit(std::move(job));
  model.eval();
  return model;
}

/// Chooses the samples of the students.
void choose_samples(const Setting& setting, int64_t count) {
  const int64_t all = data::open(setting.data, {.split = "train"}).size();
  data::save_subset(setting.folder + "/subset.json",
                    {.source = "", .rule = "random", .of = all, .ids = data::random_subset(all, count, 1)});
}

/// Returns the teacher's weights as a file.
std::string train_teacher(const Setting& setting, int64_t width) {
  Recipe recipe = recipe_for(setting, width, 1);
  recipe.subset = "";
  recipe.epochs = setting.teacher_epochs;
  const std::string path = setting.folder + "/teacher.safetensors";
  io::save_safetensors(path, trained(recipe).state_dict());
  return path;
}

struct Images {
  at::Tensor images, labels;
};

Images read(const data::Dataset& dataset) {
  std::vector<at::Tensor> images, labels;
  data::Loader loader = dataset.sequential().loader();
  for (const data::Batch& batch : loader.epoch(0)) {
    images.push_back(batch["image"].clone());
    labels.push_back(batch["label"].clone());
  }
  return {at::cat(images), at::cat(labels)};
}

double accuracy(const Forward& forward, const Images& held_out) {
  const no_grad guard;
  const at::Tensor right = forward(held_out.images).argmax(1).eq(held_out.labels);
  return 100 * right.to(at::kDouble).mean().item<double>();
}

/// Microseconds per call of each forward. They run in turns, and the fastest window of each counts, because other programs may use
/// the machine, too.
std::vector<double> latencies_us(const std::vector<Deployed>& sides, const at::Tensor& images, bool quick) {
  const no_grad guard;
  std::vector<Contestant> contestants;
  for (const Deployed& side : sides) {
    for (int i = 0; i < 3; ++i) side.forward(images);  // compiles
    contestants.push_back(timed_contestant("forward", [&] { side.forward(images); }));
  }
  const Comparison timed = compare(contestants, {.window_s = 0.02, .windows = quick ? 3 : 21});
  std::vector<double> latencies;
  for (const Side& side : timed.sides) latencies.push_back(1e6 * *std::ranges::min_element(side.windows));
  return latencies;
}

/// What the seeds of a subject found in one form.
struct Found {
  std::vector<double> accuracies, latencies_us, batch_latencies_us;
  int64_t bytes = 0, parameters = 0;
};

Model copy_of(const Model& model, int64_t width) {
  const Model copy = models::model_entry(model_of(width)).make(10, 1);
  load_state_dict(copy, model.state_dict());
  copy.eval();
  return copy;
}

/// Deploys a model in all forms and adds their accuracies to `found`.
std::vector<Deployed> deploy(const Model& model, int64_t width, const Images& train, const Images& held_out,
                             std::vector<Found>& found) {
  found.resize(forms.size());
  std::vector<Deployed> all;
  for (size_t i = 0; i < forms.size(); ++i) {
    all.push_back(forms[i].deploy(copy_of(model, width), train.images));
    found[i].accuracies.push_back(accuracy(all.back().forward, held_out));
    found[i].bytes = all.back().bytes;
    found[i].parameters = 0;
    for (const at::Tensor& parameter : model.parameters()) found[i].parameters += parameter.numel();
  }
  return all;
}

/// Times all forms of a student alone and of the same student with a teacher, side by side.
void time_forms(std::vector<Deployed> sides, const std::vector<Deployed>& more, const Images& held_out, bool quick,
                std::vector<Found>& found, std::vector<Found>& found_more) {
  sides.insert(sides.end(), more.begin(), more.end());
  const std::vector<double> one = latencies_us(sides, held_out.images.narrow(0, 0, 1), quick);
  const std::vector<double> batch = latencies_us(sides, held_out.images.narrow(0, 0, latency_batch), quick);
  for (size_t i = 0; i < sides.size(); ++i) {
    Found& of = i < forms.size() ? found[i] : found_more[i - forms.size()];
    of.latencies_us.push_back(one[i]);
    of.batch_latencies_us.push_back(batch[i]);
  }
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Standard deviation over the seeds; 0 for one seed.
double spread_of(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  double squares = 0;
  for (const double value : values) squares += (value - mean_of(values)) * (value - mean_of(values));
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::string note_of(const Found& found) {
  char text[240];
  std::snprintf(
      text, sizeof text,
      "%lld parameters, %.1f KiB; one image: %.1f +- %.1f us; %lld images: %.0f +- %.0f us; standard deviation "
      "%.2f points; seeds:",
      static_cast<long long>(found.parameters), static_cast<double>(found.bytes) / 1024, mean_of(found.latencies_us),
      spread_of(found.latencies_us), static_cast<long long>(latency_batch), mean_of(found.batch_latencies_us),
      spread_of(found.batch_latencies_us), spread_of(found.accuracies));
  std::string note = text;
  for (const double value : found.accuracies) {
    std::snprintf(text, sizeof text, " %.2f", value);
    note += text;
  }
  return note;
}

/// One row per form. The peer of a taught student is the same student without a teacher.
void report_rows(const Subject& subject, const std::vector<Found>& found, const std::vector<Found>* alone,
                 Report& report) {
  for (size_t i = 0; i < forms.size(); ++i) {
    Row row{.work = subject.title + ", " + forms[i].name, .metric = "held-out accuracy", .unit = "%"};
    row.ours = mean_of(found[i].accuracies);
    row.note = note_of(found[i]);
    row.equal = true;
    if (alone) {
      const double without = mean_of((*alone)[i].accuracies);
      row.peers = {{"without a teacher", without}};
      row.ratio_to_best_peer = row.ours / without;
      const bool few = found[i].accuracies.size() < 3;  // one seed says little
      row.equal = few || row.ours >= without + 1;       // the student must gain a point
    }
    report.add(row);
  }
}

Recipe taught(Recipe recipe, const Setting& setting, int64_t teacher_width, const std::string& weights) {
  recipe.teacher = model_of(teacher_width);
  recipe.teacher_weights = weights;
  recipe.teacher_cache = setting.folder + "/outputs.safetensors";
  recipe.distill = 0.9;
  recipe.distill_temperature = 4;
  return recipe;
}

void measure(const Setting& setting, int64_t teacher_width, const std::vector<int64_t>& widths, int64_t seeds,
             bool quick, Report& report) {
  add_model(teacher_width);
  const Recipe first = recipe_for(setting, teacher_width, 1);
  const Images train = read(train::open_train_data(first)), held_out = read(*train::open_eval_data(first));
  const std::string weights = train_teacher(setting, teacher_width);
  const Model teacher = models::model_entry(model_of(teacher_width)).make(10, 1);
  load_state_dict(teacher, io::load_safetensors(weights));
  teacher.eval();
  std::vector<Found> found, none;
  time_forms(deploy(teacher, teacher_width, train, held_out, found), {}, held_out, quick, found, none);
  report_rows({"teacher (width " + std::to_string(teacher_width) + ")"}, found, nullptr, report);
  for (const int64_t width : widths) {
    add_model(width);
    std::vector<Found> alone, with;
    for (int64_t seed = 1; seed <= seeds; ++seed) {
      const Recipe recipe = recipe_for(setting, width, seed);
      const std::vector<Deployed> first_forms = deploy(trained(recipe), width, train, held_out, alone);
      time_forms(first_forms,
                 deploy(trained(taught(recipe, setting, teacher_width, weights)), width, train, held_out, with),
                 held_out, quick, alone, with);
    }
    const std::string title = "student (width " + std::to_string(width) + ")";
    report_rows({title + " alone"}, alone, nullptr, report);
    report_rows({title + " distilled"}, with, &alone, report);
  }
}

int run(const Options& options) {
  Report report("distill", options);
  std::string folder = (std::filesystem::temp_directory_path() / "bench-distill-XXXXXX").string();
  TORCH_CHECK(mkdtemp(folder.data()), "bench distill: cannot create ", folder, ".");
  const Setting setting{.folder = folder,
                        .data = options.data,
                        .student_epochs = options.quick ? 5 : std::stoll(options.extra.at("epochs")),
                        .teacher_epochs = options.quick ? 4 : 12};
  choose_samples(setting, std::stoll(options.extra.at("samples")));
  std::vector<int64_t> widths = {4};
  if (!options.quick) widths = {2, 4, 8};  // the last one has a quarter of the teacher's parameters
  measure(setting, 16, widths, options.quick ? 1 : std::stoll(options.extra.at("seeds")), options.quick, report);
  std::filesystem::remove_all(folder);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Trains a ResNet on the digits, and smaller ResNets on a quarter of the digits, with and without the large one "
      "as "
      "their teacher.\nFor each model and form (fp32, compiled, bf16, int8), it reports the held-out accuracy, the "
      "number of "
      "parameters, the size and the latency (mean and standard deviation over the seeds).\n--seeds: number of seeds "
      "per student. --epochs: epochs of the students. "
      "--samples: digits on which they train. "
      "--quick: one seed and fewer epochs.",
      run, {{"seeds", "3"}, {"epochs", "10"}, {"samples", "360"}});
}
