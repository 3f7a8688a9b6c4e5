#include "bellows/train/recipe/recipe.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <variant>

#include "bellows/core/error.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/system/file.h"
#include "bellows/train/run/run_log.h"
#include "bellows/train/run/step_trace.h"
#include "bellows/train/step/compiled_parts.h"

namespace bellows::train {

namespace {

constexpr double any = std::numeric_limits<double>::infinity();
constexpr double any_float = std::numeric_limits<float>::max();  // what fp32 weights are computed with

/// What a value may be: numbers a range, texts one of a list (empty: any).
struct Allowed {
  constexpr Allowed(double from, double to) : low(from), high(to) {}
  constexpr Allowed(const char* list = "") : choices(list) {}
  double low = 0, high = any;
  std::string_view choices;  ///< "fp32, bf16"
};

struct Row {
  const char* name;
  std::variant<int64_t Recipe::*, double Recipe::*, bool Recipe::*, std::string Recipe::*> member;
  Allowed allowed;
  const char* help;
  bool changes_bits = true;
};

/// The one table: parse, print, check and document.
constexpr Row table[] = {
    {"model", &Recipe::model, {}, "a model's name, or a TorchScript file"},
    {"num_classes",
     &Recipe::num_classes,
     {0, 1e6},
     "outputs of the model; 0: as many as the data set names, or has labels of"},
    {"data", &Recipe::data, {}, "folder with shards, a shard, or a pattern such as train-{000..015}.tar", false},
    {"eval_data",
     &Recipe::eval_data,
     {},
     "held-out data; empty: the test split of the folder `data`, or a tenth of it",
     false},
    {"subset", &Recipe::subset, {}, "file of `bellows select`: train on these samples only; empty: on all", false},
    {"weights", &Recipe::weights, {}, "safetensors or torch.save file to start from; empty: random weights", false},
    {"epochs", &Recipe::epochs, {1, 1e9}, "passes over the training data", false},
    {"batch_size", &Recipe::batch_size, {1, 1 << 20}, "samples a step, of all ranks together"},
    {"image_size", &Recipe::image_size, {0, 16384}, "scale images to this height and width; 0: as they are"},
    {"tokenizer",
     &Recipe::tokenizer,
     {},
     "how texts become tokens: bytes, a BERT's vocab.txt, or a GPT-2's tokenizer.json; empty: the data hold tokens",
     false},
    {"text_field", &Recipe::text_field, {}, "which part of a sample is the text; empty: the only one that can be"},
    {"sequence_length",
     &Recipe::sequence_length,
     {0, 1 << 20},
     "most tokens of a text, longer ones are cut; 0: what the model is meant for"},
    {"length_buckets",
     &Recipe::length_buckets,
     {},
     "texts of similar length share a batch, so that few places are empty"},
    {"optimizer", &Recipe::optimizer, "sgd, adam, adamw, rmsprop, adagrad, lion, adafactor", "which optimizer"},
    {"lr", &Recipe::lr, {0, any_float}, "learning rate"},
    {"momentum", &Recipe::momentum, {0, 1}, "of sgd and rmsprop"},
    {"weight_decay", &Recipe::weight_decay, {0, any_float}, "pull of the weights towards 0"},
    {"warmup_epochs", &Recipe::warmup_epochs, {0, any}, "epochs over which the learning rate rises in a straight line"},
    {"schedule", &Recipe::schedule, "constant, linear, cosine, step, inverse_sqrt, one_cycle, plateau",
     "of the learning rate, behind the warm-up. step: a tenth at 50 and 75 % of the epochs; plateau: a tenth after 3 "
     "evaluations without a better loss"},
    {"schedule_end", &Recipe::schedule_end, {0, 1}, "share of lr at which linear, cosine and one_cycle end"},
    {"accumulate", &Recipe::accumulate, {1, 1 << 20}, "batches whose gradients make one step: as one large batch"},
    {"accumulate_dtype", &Recipe::accumulate_dtype, "auto, fp32, bf16",
     "what gradients are added up in, on one process; auto: as the weights"},
    {"clip_norm", &Recipe::clip_norm, {0, any_float}, "largest norm of all gradients together; 0: not clipped"},
    {"clip_value", &Recipe::clip_value, {0, any_float}, "largest magnitude of a gradient's elements; 0: not clipped"},
    {"label_smoothing", &Recipe::label_smoothing, {0, 1}, "share of the label that is spread over all classes"},
    {"ema_decay", &Recipe::ema_decay, {0, 1}, "of the moving average of the weights, which is evaluated; 0: none"},
    {"sync_batch_norm",
     &Recipe::sync_batch_norm,
     {},
     "batch norm over the samples of all ranks, as one process has them"},
    {"batch_size_start",
     &Recipe::batch_size_start,
     {0, 1 << 20},
     "first batch size, doubled up to batch_size; 0: no growth"},
    {"image_size_start",
     &Recipe::image_size_start,
     {0, 16384},
     "first image size, grows up to image_size; 0: no growth"},
    {"growth_epochs", &Recipe::growth_epochs, {0, 10000}, "epochs after which batches and images have their full size"},
    {"augment", &Recipe::augment, "none, crop, crop_flip", "random shifts by up to 1/8 of the image, mirroring"},
    {"bad_samples", &Recipe::bad_samples, "fail, skip",
     "what a sample that cannot be used does: end the run, or be counted"},
    {"on_nan", &Recipe::on_nan, "stop, skip",
     "what a loss or gradient that is NaN or infinite does: end the run with its cause, or be left out and counted",
     false},
    {"seed", &Recipe::seed, {0, any}, "of weights, order, augmentation, dropout"},
    {"target_accuracy",
     &Recipe::target_accuracy,
     {0, 1},
     "stop when the held-out accuracy reaches this; 0: never",
     false},
    {"eval_every", &Recipe::eval_every, {0, any}, "steps between evaluations; 0: at the end of each epoch", false},
    {"patience", &Recipe::patience, {0, any}, "stop after so many evaluations without a better loss; 0: never", false},
    {"device", &Recipe::device, {}, "cpu, cuda, cuda:1"},
    {"precision", &Recipe::precision, "fp32, bf16, fp16", "of the products; fp16 scales the loss"},
    {"precision_level", &Recipe::precision_level, "O1, O2, O3",
     "with bf16 and fp16. O1: autocast over fp32 weights; O2: low weights, fp32 norms and master weights; O3: all low"},
    {"channels_last", &Recipe::channels_last, {}, "keep images and convolution weights in channels-last order"},
    {"optimizer_impl", &Recipe::optimizer_impl, "auto, loop, foreach, fused",
     "how the optimizer's step is carried out"},
    {"optimizer_state", &Recipe::optimizer_state, "auto, int8, int4",
     "bits of sgd's, adam's, adamw's and lion's moments, on the CPU: 8 or 4 with a scale a block; auto: as the "
     "weights"},
    {"loader_threads",
     &Recipe::loader_threads,
     {-1, 1024},
     "threads that make batches; 0: the training thread makes them; -1: as many as help",
     false},
    {"prefetch", &Recipe::prefetch, {1, 1024}, "batches made ahead", false},
    {"cache_mb", &Recipe::cache_mb, {0, 1 << 24}, "MiB of decoded images to keep; 0: none", false},
    {"keep_freed_memory",
     &Recipe::keep_freed_memory,
     {},
     "the process keeps memory that tensors free, and reuses it",
     false},
    {"compile", &Recipe::compile, "none, forward, step",
     "what is recorded and runs as generated code, on the CPU. forward: forward passes and evaluation; step: whole "
     "steps and evaluation; losses are then looked at when they are logged"},
    {"step_in_backward", &Recipe::step_in_backward, {}, "backward steps each weight, and drops its gradient at once"},
    {"recompute", &Recipe::recompute, "none, blocks",
     "what is computed again in backward instead of being kept: the blocks of a model that knows its blocks", false},
    {"recompute_keep",
     &Recipe::recompute_keep,
     {0, 1},
     "share of the blocks' bytes that is kept all the same, where it saves most time; 0: nothing",
     false},
    {"recompute_keep_mb", &Recipe::recompute_keep_mb, {0, 1 << 24}, "or so many MiB, not a share; 0: none", false},
    {"activations", &Recipe::activations, "full, bf16, int8, int4",
     "how what backward needs is kept: as it is, or in fewer bits; int8 and int4 on the CPU, elsewhere they are bf16"},
    {"offload_folder",
     &Recipe::offload_folder,
     {},
     "where what backward needs is written to until then: a folder on a fast disk; empty: it stays in memory",
     false},
    {"offload_reserve_mb",
     &Recipe::offload_reserve_mb,
     {0, 1 << 24},
     "MiB of that folder's disk that are taken before each step, so that missing room is not found within one; 0: none",
     false},
    {"data_parallel", &Recipe::data_parallel, "ddp, zero1, zero2",
     "what each of several ranks holds. ddp: everything; zero1: its share of the optimizer's state; zero2: also of the "
     "gradients"},
    {"gradient_compression", &Recipe::gradient_compression, "none, bf16, fp16, int8, power_sgd, top_k",
     "how gradients go from rank to rank; not with zero2"},
    {"bucket_mb", &Recipe::bucket_mb, {1, 4096}, "MiB of gradients that travel together"},
    {"run_folder", &Recipe::run_folder, {}, "where checkpoints, logs and traces go; empty: none are written", false},
    {"checkpoint_every",
     &Recipe::checkpoint_every,
     {0, any},
     "steps between checkpoints; 0: at the end of each epoch",
     false},
    {"keep_checkpoints", &Recipe::keep_checkpoints, {1, any}, "how many of the newest stay", false},
    {"keep_best",
     &Recipe::keep_best,
     {0, 1000},
     "how many of the best by held-out accuracy stay in run_folder/best",
     false},
    {"async_checkpoints", &Recipe::async_checkpoints, {}, "write checkpoints while training goes on", false},
    {"log",
     &Recipe::log,
     {},
     "what is logged into run_folder: csv, json, tensorboard, a list of them, or nothing",
     false},
    {"trace_steps", &Recipe::trace_steps, {}, "steps of which a Chrome trace is written: 10-12,50", false},
    {"log_every", &Recipe::log_every, {1, any}, "steps between readings of the loss, which wait for the device", false},
    {"train_metrics", &Recipe::train_metrics, "none, sync, device",
     "loss and accuracy of the training batches. sync: read after every step; device: only when they are shown", false},
    {"sample_stats",
     &Recipe::sample_stats,
     {},
     "note how hard each sample is, for `bellows select`: run_folder/sample_stats.safetensors",
     false},
};

/// Where a value came from, for messages.
struct Origin {
  std::string_view where;
  int line = 0;  ///< 0: unknown
  std::string text() const { return line > 0 ? c10::str(where, ", line ", line) : std::string(where); }
};

const char* type_of(const Row& row) {
  constexpr const char* names[] = {"integer", "number", "true or false", "text"};
  return names[row.member.index()];
}

std::string number_text(double value) {
  if (std::abs(value) < 1e15 && value == std::floor(value)) return std::to_string(static_cast<int64_t>(value));
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string allowed_of(const Row& row) {
  const auto& [low, high, choices] = row.allowed;
  if (row.member.index() > 1) return std::string(choices);
  return high >= any_float ? "at least " + number_text(low) : number_text(low) + " to " + number_text(high);
}

std::vector<std::string> choices_of(const Row& row) {
  std::vector<std::string> result;
  for (std::string_view rest = row.allowed.choices; !rest.empty();) {
    const size_t comma = rest.find(", ");
    result.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 2);
  }
  return result;
}

std::string expectation(const Row& row) {
  if (row.member.index() == 2) return "true or false";
  if (!row.allowed.choices.empty()) return "one of: " + allowed_of(row);
  return c10::str(row.member.index() == 0 ? "an integer" : "a number", " of ", allowed_of(row));
}

[[noreturn]] void refuse(const Row& row, std::string_view value, const Origin& origin, const std::string& hint = "") {
  C10_THROW_ERROR(ValueError, c10::str("recipe: ", origin.text(), ": ", row.name, " = \"", value, "\": expected ",
                                       expectation(row), ".", hint));
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

void check(const Row& row, const Recipe& recipe, const Origin& origin) {
  std::visit(
      [&](auto member) {
        const auto& value = recipe.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          const auto choices = choices_of(row);
          const bool known = choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end();
          if (!known) refuse(row, value, origin, did_you_mean(value, choices));
        } else if constexpr (!std::is_same_v<T, bool>) {
          const auto number = static_cast<double>(value);
          if (!(number >= row.allowed.low && number <= row.allowed.high) || std::isinf(number))
            refuse(row, number_text(number), origin, number > any_float ? " Larger numbers do not fit into fp32." : "");
        }
      },
      row.member);
}

void assign(const Row& row, Recipe& recipe, const std::string& text, const Origin& origin) {
  std::visit(
      [&](auto member) {
        auto& value = recipe.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          value = text;
        } else if constexpr (std::is_same_v<T, bool>) {
          if (text != "true" && text != "false") refuse(row, text, origin);
          value = text == "true";
        } else if (!parse_number(text, value)) {
          refuse(row, text, origin);
        }
      },
      row.member);
  check(row, recipe, origin);
}

const Row& find_row(const std::string& key, const Origin& origin) {
  std::vector<std::string> names;
  std::string all;
  for (const Row& row : table) {
    if (row.name == key) return row;
    names.emplace_back(row.name);
    all += (all.empty() ? "" : ", ") + names.back();
  }
  const std::string nearest = did_you_mean(key, names);
  C10_THROW_ERROR(ValueError, c10::str("recipe: ", origin.text(), ": there is no key \"", key, "\".",
                                       nearest.empty() ? " Known keys: " + all + "." : nearest));
}

// ---- values in YAML

/// True for text that YAML reads back as it stands.
bool plain_in_yaml(const std::string& text) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./";
  return !text.empty() && letters.find(text[0]) != std::string_view::npos && YAML::Load(text).IsScalar() &&
         text.find_first_not_of(std::string(letters) + "-{},") == std::string::npos;
}

constexpr const char* binary_tag = "tag:yaml.org,2002:binary";

/// File names may hold any bytes; YAML text is UTF-8.
std::string quoted_in_yaml(const std::string& text) {
  YAML::Emitter emitter;
  if (!io::is_utf8(text)) {
    emitter << YAML::Binary(reinterpret_cast<const unsigned char*>(text.data()), text.size());
    return emitter.c_str();
  }
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

/// The text of a scalar, "" of null.
std::string text_in_yaml(const YAML::Node& value) {
  if (value.IsNull()) return "";
  if (value.Tag() != binary_tag) return value.Scalar();
  const auto bytes = value.as<YAML::Binary>();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string value_text(const Row& row, const Recipe& recipe) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = recipe.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return plain_in_yaml(value) ? value : quoted_in_yaml(value);
        } else if constexpr (std::is_same_v<T, bool>) {
          return value ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          return number_text(value);
        } else {
          return std::to_string(value);
        }
      },
      row.member);
}

// ---- keys that go together, or do not

void check_course_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.warmup_epochs <= static_cast<double>(recipe.epochs), "recipe: ", where,
                    ": warmup_epochs = ", recipe.warmup_epochs, " is more than epochs = ", recipe.epochs,
                    ": the learning rate would never be reached.");
  const bool grows = recipe.batch_size_start > 0 || recipe.image_size_start > 0;
  TORCH_CHECK_VALUE(!grows || recipe.growth_epochs > 0, "recipe: ", where,
                    ": batch_size_start and image_size_start need growth_epochs, the epochs until the full size.");
  TORCH_CHECK_VALUE(recipe.batch_size_start <= recipe.batch_size, "recipe: ", where,
                    ": batch_size_start = ", recipe.batch_size_start, " is more than batch_size = ", recipe.batch_size);
  TORCH_CHECK_VALUE(recipe.image_size_start == 0 || recipe.image_size_start <= recipe.image_size, "recipe: ", where,
                    ": image_size_start = ", recipe.image_size_start, " needs an image_size of at least that, got ",
                    recipe.image_size, ".");
  TORCH_CHECK_VALUE(recipe.schedule != "one_cycle" || recipe.warmup_epochs == 0, "recipe: ", where,
                    ": schedule one_cycle rises by itself: set warmup_epochs to 0, got ", recipe.warmup_epochs, ".");
}

void check_precision_keys(const Recipe& recipe, const std::string& where) {
  const bool looks_at_gradients = recipe.clip_norm > 0 || recipe.clip_value > 0 || recipe.accumulate > 1;
  TORCH_CHECK_VALUE(recipe.precision != "fp16" || recipe.precision_level == "O1" || !looks_at_gradients,
                    "recipe: ", where,
                    ": clip_norm, clip_value and accumulate need fp32 gradients, and fp16 with precision_level ",
                    recipe.precision_level, " has fp16 ones. Use O1, or bf16.");
  const bool fused = recipe.optimizer_impl == "fused" || recipe.optimizer_impl == "auto";
  TORCH_CHECK_VALUE(recipe.precision != "fp16" || recipe.precision_level != "O2" || fused, "recipe: ", where,
                    ": fp16 with precision_level O2 needs optimizer_impl fused or auto, got ", recipe.optimizer_impl,
                    ": only a fused step unscales fp16 gradients in fp32.");
}

void check_recompute_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.recompute_keep == 0 || recipe.recompute_keep_mb == 0, "recipe: ", where,
                    ": expected recompute_keep, a share, or recompute_keep_mb, got ", recipe.recompute_keep, " and ",
                    recipe.recompute_keep_mb, ". Set one of them to 0.");
  const bool by_share = recipe.recompute_keep > 0;
  const char* key = by_share ? "recompute_keep" : "recompute_keep_mb";
  const double kept = by_share ? recipe.recompute_keep : static_cast<double>(recipe.recompute_keep_mb);
  TORCH_CHECK_VALUE(kept == 0 || recipe.recompute == "blocks", "recipe: ", where, ": ", key, " = ", kept,
                    " is a part of what `recompute: blocks` computes again, got recompute = ", recipe.recompute,
                    ". Set recompute: blocks, or ", key, ": 0.");
  TORCH_CHECK_VALUE(recipe.offload_reserve_mb == 0 || !recipe.offload_folder.empty(), "recipe: ", where,
                    ": offload_reserve_mb = ", recipe.offload_reserve_mb,
                    " needs offload_folder, whose disk has to have the room. Name one, or set offload_reserve_mb: 0.");
  // Otherwise two runs would round different tensors.
  TORCH_CHECK_VALUE(kept == 0 || recipe.activations == "full", "recipe: ", where,
                    ": activations = ", recipe.activations, " needs ", key, " = 0, got ", kept,
                    ": what it keeps is chosen by measured times, so no run would round as another does.");
}

void check_memory_keys(const Recipe& recipe, const std::string& where) {
  const bool knows_bits = recipe.optimizer == "sgd" || recipe.optimizer == "adam" || recipe.optimizer == "adamw" ||
                          recipe.optimizer == "lion";
  TORCH_CHECK_VALUE(recipe.optimizer_state == "auto" || knows_bits, "recipe: ", where,
                    ": optimizer_state = ", recipe.optimizer_state,
                    " goes with sgd, adam, adamw and lion, got optimizer = ", recipe.optimizer, ".");
  const bool fused = recipe.optimizer_impl == "fused" || recipe.optimizer_impl == "auto";
  TORCH_CHECK_VALUE(recipe.optimizer_state == "auto" || fused, "recipe: ", where,
                    ": optimizer_state = ", recipe.optimizer_state, " needs optimizer_impl fused or auto, got ",
                    recipe.optimizer_impl, ".");
  check_recompute_keys(recipe, where);
  const std::string conflict = recipe.step_in_backward ? step_in_backward_conflict(recipe) : "";
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": step_in_backward = true, but ", conflict,
                    ". Set step_in_backward: false, or change that.");
}

/// Checks what must hold between several members. Params: where – for messages: a path
void check_together(const Recipe& recipe, const std::string& where) {
  check_course_keys(recipe, where);
  check_precision_keys(recipe, where);
  check_memory_keys(recipe, where);
  const std::string conflict = recipe.compile == "none" ? "" : compile_conflict(recipe);
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": compile = ", recipe.compile, ", but ", conflict,
                    ". Set compile: none, or change that.");
  TORCH_CHECK_VALUE(
      recipe.data_parallel != "zero2" || recipe.gradient_compression == "none", "recipe: ", where,
      ": gradient_compression = ", recipe.gradient_compression,
      " goes with data_parallel ddp and zero1: zero2 shares gradients out without a hook. Use zero1, or none.");
  parse_log_kinds(recipe.log);
  parse_steps(recipe.trace_steps);
}

}  // namespace

Recipe Recipe::parse(std::string_view text, std::string_view where) {
  TORCH_CHECK_VALUE(text.find('\0') == std::string_view::npos, "recipe: ", where, ": this is no text file.");
  YAML::Node root;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    TORCH_CHECK_VALUE(documents.size() <= 1, "recipe: ", where, ": expected one YAML document, found ",
                      documents.size(), ", divided by `---`. Keep one.");
    if (!documents.empty()) root = documents.front();
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, "recipe: ", where, ", line ", error.mark.line + 1, ": this is not YAML: ", error.msg, ".");
  }
  Recipe recipe;
  if (root.IsNull()) return recipe;
  TORCH_CHECK_VALUE(root.IsMap(), "recipe: ", where, ": expected lines of the form `key: value`, got something else.");
  std::set<std::string> seen;
  for (const auto& item : root) {
    const Origin origin{where, item.first.Mark().line + 1};
    TORCH_CHECK_VALUE(item.first.IsScalar(), "recipe: ", origin.text(), ": expected a key, got a list or a map.");
    const std::string& key = item.first.Scalar();
    const Row& row = find_row(key, origin);
    TORCH_CHECK_VALUE(seen.insert(key).second, "recipe: ", origin.text(), ": the key \"", key,
                      "\" stands there twice.");
    TORCH_CHECK_VALUE(item.second.IsScalar() || item.second.IsNull(), "recipe: ", origin.text(), ": ", key,
                      ": expected one value (", type_of(row), "), got a list or a map.");
    assign(row, recipe, text_in_yaml(item.second), origin);
  }
  check_together(recipe, std::string(where));
  return recipe;
}

Recipe Recipe::load(const std::string& path) {
  const std::string text = read_text_file(path);
  TORCH_CHECK_VALUE(text.find(':') != std::string::npos, "recipe: ", path,
                    ": expected lines of the form `key: value`, ", text.empty() ? "the file is empty." : "found none.");
  return parse(text, path);
}

void Recipe::set(std::string_view key_equals_value) {
  const size_t equals = key_equals_value.find('=');
  const Origin origin{"command line"};
  TORCH_CHECK_VALUE(equals != std::string_view::npos, "recipe: ", origin.where, ": expected key=value, got \"",
                    key_equals_value, "\".");
  const Row& row = find_row(std::string(key_equals_value.substr(0, equals)), origin);
  assign(row, *this, std::string(key_equals_value.substr(equals + 1)), origin);
}

void Recipe::validate() const {
  for (const Row& row : table) check(row, *this, {"as set"});
  check_together(*this, "as set");
}

std::string Recipe::to_yaml(bool comments) const {
  std::string text;
  for (const Row& row : table) {
    if (comments) {
      const std::string allowed = allowed_of(row);
      text += c10::str("# ", row.help, allowed.empty() ? "" : " (" + allowed + ")", "\n");
    }
    text += c10::str(row.name, ": ", value_text(row, *this), "\n");
  }
  return text;
}

std::vector<RecipeField> recipe_fields() {
  const Recipe defaults;
  std::vector<RecipeField> fields;
  for (const Row& row : table) {
    fields.push_back({row.name, type_of(row), allowed_of(row), value_text(row, defaults), row.help, row.changes_bits});
  }
  return fields;
}

std::string step_in_backward_conflict(const Recipe& recipe) {
  if (recipe.accumulate > 1) return c10::str("accumulate = ", recipe.accumulate, " adds up gradients");
  if (recipe.accumulate_dtype != "auto") return "accumulate_dtype = " + recipe.accumulate_dtype + " keeps gradients";
  if (recipe.clip_norm > 0) return c10::str("clip_norm = ", recipe.clip_norm, " needs the norm of all gradients");
  if (recipe.clip_value > 0) return c10::str("clip_value = ", recipe.clip_value, " looks at gradients behind backward");
  if (recipe.precision == "fp16") return "fp16 looks at all gradients before it takes a step";
  return recipe.on_nan == "skip" ? "on_nan = skip looks at all gradients before it takes a step" : "";
}

}  // namespace bellows::train
