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
#include "bellows/train/recipe/key_checks.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/recipe/recipe_overlay.h"
#include "bellows/train/recipe/tensor_keys.h"

namespace bellows::train {

namespace {

constexpr double any = std::numeric_limits<double>::infinity();
constexpr double any_float = std::numeric_limits<float>::max();  // fp32 weights are computed with it

/// The allowed values: a range of numbers, or one text of a list (empty: any).
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
  /// For a text that is written as a map in YAML: returns the map without braces, or "" if the value is no map.
  std::string (*as_map)(const std::string& value) = nullptr;
};

std::string mesh_as_map(const std::string& mesh) {
  return mesh_text(parse_mesh(mesh));
}

std::string tensor_plan_as_map(const std::string& plan) {
  return tensor_plan_text(parse_tensor_plan(plan));
}

/// The table by which recipes are parsed, printed, checked and documented.
constexpr Row table[] = {
    {"model", &Recipe::model, {}, "name of a registered model, or path of a config.json, TorchScript or .pt2 file"},
    {"num_classes",
     &Recipe::num_classes,
     {0, 1e6},
     "number of model outputs. 0: from the classes or labels of the data"},
    {"data",
     &Recipe::data,
     {},
     "training data: a folder of shards, one shard, or a pattern such as train-{000..015}.tar",
     false},
    {"eval_data", &Recipe::eval_data, {}, "evaluation data. Empty: see eval_split", false},
    {"eval_split",
     &Recipe::eval_split,
     {},
     "if eval_data is empty: a share of the training data to hold out, such as 0.1, the name of a split, or none. "
     "Empty: the test split of the data folder, or a tenth of the folder",
     false},
    {"subset",
     &Recipe::subset,
     {},
     "file from `bellows select`. Only its samples are used for training. Empty: all samples",
     false},
    {"weights",
     &Recipe::weights,
     {},
     "safetensors or torch.save file with the initial weights. Empty: random initialization",
     false},
    {"epochs", &Recipe::epochs, {1, 1e9}, "number of passes over the training data", false},
    {"batch_size", &Recipe::batch_size, {1, 1 << 20}, "samples per batch, over all ranks together"},
    {"batch_size_per_rank",
     &Recipe::batch_size_per_rank,
     {0, 1 << 20},
     "samples per batch on each rank. It replaces batch_size, and more ranks then make larger batches. 0: use "
     "batch_size"},
    {"image_size",
     &Recipe::image_size,
     {0, 16384},
     "height and width to which images are resized. 0: images are not resized"},
    {"tokenizer",
     &Recipe::tokenizer,
     {},
     "tokenizer: bytes, a vocab.txt (BERT) or a tokenizer.json (GPT-2). Empty: the samples contain tokens",
     false},
    {"text_field",
     &Recipe::text_field,
     {},
     "field that contains the text. Empty: the only field that can contain a text"},
    {"max_length",
     &Recipe::max_length,
     {0, 1 << 20},
     "maximum sequence length in tokens; longer texts are truncated. 0: the default of the model"},
    {"length_buckets",
     &Recipe::length_buckets,
     {},
     "put texts of similar length into one batch, which reduces padding"},
    {"features",
     &Recipe::features,
     {},
     "numeric input fields of the model, separated by commas. all: every number except the target. Empty: the default "
     "of the model"},
    {"target",
     &Recipe::target,
     {},
     "field to predict. Several fields, separated by commas, are predicted together. Empty: the label, or the field "
     "target"},
    {"loss", &Recipe::loss, "auto, cross_entropy, next_token, mse, huber, bce",
     "loss function. auto: next_token for language models, cross_entropy for all other models. bce: several labels per "
     "sample"},
    {"metrics",
     &Recipe::metrics,
     {},
     "metrics of each evaluation in addition to loss and accuracy, separated by commas. Empty: the default metrics of "
     "the loss",
     false},
    {"optimizer", &Recipe::optimizer,
     "auto, sgd, larc, adam, adamw, rmsprop, adagrad, lion, lamb, novograd, muon, adafactor",
     "optimizer. auto: sgd for image models, adamw for all other models. larc: sgd with LARC"},
    {"lr",
     &Recipe::lr,
     {0, any_float},
     "base learning rate, which lr_schedule and warmup_epochs scale. 0: 0.05 for sgd; otherwise 5e-4 for text models "
     "(5e-5 with weights) and 1e-3 for all other models"},
    {"momentum", &Recipe::momentum, {0, 1}, "momentum of sgd, larc, rmsprop and muon"},
    {"weight_decay", &Recipe::weight_decay, {0, any_float}, "weight decay coefficient. 0: no weight decay"},
    {"warmup_epochs", &Recipe::warmup_epochs, {0, any}, "number of epochs with linear learning rate warmup"},
    {"lr_schedule", &Recipe::lr_schedule, "constant, linear, cosine, step, inverse_sqrt, one_cycle, plateau",
     "learning rate schedule after the warmup. step: multiplies the rate by 0.1 after 50 % and 75 % of the epochs. "
     "plateau: multiplies the rate by 0.1 if the loss does not decrease in more than 3 evaluations in a row"},
    {"lr_schedule_end",
     &Recipe::lr_schedule_end,
     {0, 1},
     "final learning rate as a fraction of lr, for linear, cosine and one_cycle"},
    {"gradient_accumulation_steps",
     &Recipe::gradient_accumulation_steps,
     {1, 1 << 20},
     "number of batches whose gradients are accumulated before each optimizer step"},
    {"gradient_accumulation_dtype", &Recipe::gradient_accumulation_dtype, "auto, fp32, bf16",
     "dtype of the accumulated gradients, for one process only. auto: the dtype of the weights"},
    {"max_grad_norm",
     &Recipe::max_grad_norm,
     {0, any_float},
     "maximum norm of all gradients together, for gradient clipping. 0: no clipping"},
    {"max_grad_value",
     &Recipe::max_grad_value,
     {0, any_float},
     "maximum absolute value of each gradient element. 0: no clipping"},
    {"label_smoothing",
     &Recipe::label_smoothing,
     {0, 1},
     "fraction of the target that is spread over all classes. 0: no label smoothing"},
    {"teacher",
     &Recipe::teacher,
     {},
     "model from whose outputs the model learns, too: a registered model, or the path of a config.json or a "
     "TorchScript file. Empty: no teacher"},
    {"teacher_weights",
     &Recipe::teacher_weights,
     {},
     "safetensors or torch.save file with the teacher's weights",
     false},
    {"distill",
     &Recipe::distill,
     {0, 1},
     "with a teacher: weight of the teacher's loss. The loss of the targets has the rest"},
    {"distill_temperature",
     &Recipe::distill_temperature,
     {0.01, 1000},
     "with a teacher: divides the logits of both models before they are compared"},
    {"distill_init",
     &Recipe::distill_init,
     {},
     "teacher layers whose weights the model's layers start from: none, every_second, or numbers such as 0,2,4"},
    {"teacher_dtype", &Recipe::teacher_dtype, "auto, bf16",
     "dtype of the teacher's weights. auto: the dtype of the model. bf16: half the memory; norm layers stay in fp32"},
    {"teacher_compile",
     &Recipe::teacher_compile,
     {},
     "compile the teacher with constant weights, on the CPU. With compile = step and forward, the teacher is already "
     "compiled as a part of the model's step"},
    {"teacher_cache",
     &Recipe::teacher_cache,
     {},
     "file with the teacher's outputs for all training samples. If it does not exist, it is computed before the first "
     "step. Empty: the teacher runs in each step"},
    {"teacher_top",
     &Recipe::teacher_top,
     {0, 1e6},
     "with teacher_cache: number of largest logits that are stored. All other classes count as one class. 0: all "
     "logits"},
    {"quantize", &Recipe::quantize, "none, int8",
     "quantization-aware training. int8: linears and convolutions compute with weights and inputs that are rounded to "
     "8 bits, as the model from `bellows quantize` does"},
    {"quantize_scales", &Recipe::quantize_scales, "observed, learned",
     "with quantize: how the distance between two rounded values is chosen. observed: from the weights, and from a "
     "moving "
     "average of the inputs' range. learned: trained with the gradient of the loss, for one process only"},
    {"quantize_start_step",
     &Recipe::quantize_start_step,
     {0, any},
     "with quantize: number of optimizer steps without quantization at the start of training"},
    {"batch_norm_freeze_step",
     &Recipe::batch_norm_freeze_step,
     {0, any},
     "number of optimizer steps after which batch norms no longer update their running statistics, and normalize with "
     "them. 0: never"},
    {"ema_decay",
     &Recipe::ema_decay,
     {0, 1},
     "decay of the exponential moving average of the weights. Evaluation uses the average. 0: no average"},
    {"sync_batch_norm",
     &Recipe::sync_batch_norm,
     {},
     "synchronize batch norm statistics across all ranks (SyncBatchNorm)"},
    {"batch_size_start",
     &Recipe::batch_size_start,
     {0, 1 << 20},
     "initial batch size, which is doubled until it reaches batch_size. 0: constant batch size"},
    {"image_size_start",
     &Recipe::image_size_start,
     {0, 16384},
     "initial image size, which is increased until it reaches image_size. 0: constant image size"},
    {"growth_epochs",
     &Recipe::growth_epochs,
     {0, 10000},
     "number of epochs after which batch size and image size have their final values"},
    {"augment", &Recipe::augment, "none, crop, crop_flip",
     "data augmentation. crop: random shifts by up to 1/8 of the image. crop_flip: also random horizontal flips"},
    {"bad_samples", &Recipe::bad_samples, "fail, skip",
     "handling of samples that cannot be used. fail: stop the run. skip: leave them out and count them"},
    {"on_nan", &Recipe::on_nan, "stop, skip",
     "handling of a loss or gradient that is NaN or infinite. stop: end the run and report the cause. skip: skip the "
     "optimizer step and count it",
     false},
    {"seed", &Recipe::seed, {0, any}, "random seed of weight initialization, data order, augmentation and dropout"},
    {"target_accuracy",
     &Recipe::target_accuracy,
     {0, 1},
     "stop when the evaluation accuracy reaches this value. 0: never",
     false},
    {"eval_steps",
     &Recipe::eval_steps,
     {0, any},
     "optimizer steps between evaluations. 0: evaluate only at the end of each epoch",
     false},
    {"early_stopping_patience",
     &Recipe::early_stopping_patience,
     {0, any},
     "stop after this many evaluations in a row without a lower loss. 0: no early stopping",
     false},
    {"device", &Recipe::device, {}, "device to train on, such as cpu, cuda or cuda:1"},
    {"precision", &Recipe::precision, "fp32, bf16, fp16",
     "precision of matmuls and convolutions. bf16 and fp16: mixed precision; fp16 uses loss scaling"},
    {"amp_level", &Recipe::amp_level, "O1, O2, O3",
     "level of mixed precision. O1: autocast with fp32 weights. O2: 16-bit weights, fp32 norm layers, fp32 master "
     "weights. O3: everything in 16 bits"},
    {"channels_last",
     &Recipe::channels_last,
     {},
     "use the channels-last memory format for images and convolution weights"},
    {"optimizer_impl", &Recipe::optimizer_impl, "auto, loop, foreach, fused",
     "implementation of the optimizer step, as in PyTorch. loop: one parameter at a time. foreach: operators on lists "
     "of tensors. fused: one kernel. auto: the fastest implementation that the optimizer has"},
    {"optimizer_state", &Recipe::optimizer_state, "auto, int8, int4",
     "dtype of the moments of sgd, adam, adamw and lion, on the CPU. auto: the dtype of the weights. int8, int4: "
     "quantized with one scale per block"},
    {"num_workers",
     &Recipe::num_workers,
     {-1, 1024},
     "number of threads that load data. 0: the training thread loads the data. -1: the loader chooses the number",
     false},
    {"prefetch", &Recipe::prefetch, {1, 1024}, "number of batches that are loaded in advance", false},
    {"image_cache_mb",
     &Recipe::image_cache_mb,
     {0, 1 << 24},
     "size of the cache for decoded images, in MiB. 0: no cache",
     false},
    {"allocator_reuse",
     &Recipe::allocator_reuse,
     {},
     "keep freed tensor memory in the process and reuse it, on the CPU",
     false},
    {"fast_random",
     &Recipe::fast_random,
     {},
     "draw random numbers, such as those of dropout, with faster kernels of the same values, on the CPU",
     false},
    {"deterministic",
     &Recipe::deterministic,
     {},
     "use only deterministic kernels in steps and evaluations. An operator without such a kernel is an error"},
    {"require_seed",
     &Recipe::require_seed,
     {},
     "recipe files must contain the key seed, and drawing random numbers before a seed is set is an error",
     false},
    {"compile", &Recipe::compile, "none, forward, step",
     "what to compile, on the CPU. forward: evaluation and the forward pass. step: evaluation and the complete "
     "training step. With step, the loss is checked for NaN only when it is logged"},
    {"memory_budget",
     &Recipe::memory_budget,
     {0, 1},
     "with compile = step: maximum peak memory of activations, as a fraction of the peak without this key. The "
     "compiled "
     "step frees activations and computes them again. 1: no recomputation",
     false},
    {"optimizer_in_backward",
     &Recipe::optimizer_in_backward,
     {},
     "update each parameter during the backward pass and free its gradient immediately"},
    {"recompute", &Recipe::recompute, "none, blocks",
     "activation checkpointing. blocks: recompute the model blocks in the backward pass instead of saving their "
     "activations. The model must name its blocks",
     false},
    {"activation_memory_budget",
     &Recipe::activation_memory_budget,
     {0, 1},
     "with recompute = blocks: fraction of the activation bytes of the blocks that is saved. The activations that take "
     "longest to recompute are saved first. 0: none",
     false},
    {"activation_memory_budget_mb",
     &Recipe::activation_memory_budget_mb,
     {0, 1 << 24},
     "the same budget in MiB instead of a fraction. 0: none",
     false},
    {"activation_dtype", &Recipe::activation_dtype, "full, bf16, int8, int4",
     "dtype in which activations are saved for the backward pass. full: unchanged. int8, int4: quantized, on the CPU "
     "only; other devices use bf16"},
    {"offload_folder",
     &Recipe::offload_folder,
     {},
     "folder on a fast disk to which activations are offloaded until the backward pass. Empty: no offloading",
     false},
    {"offload_reserve_mb",
     &Recipe::offload_reserve_mb,
     {0, 1 << 24},
     "disk space in MiB that is reserved in offload_folder before each step. 0: no space is reserved",
     false},
    {"data_parallel", &Recipe::data_parallel, "ddp, zero1, zero2, zero3, dp",
     "strategy of data parallel training. ddp: every rank holds the complete state. zero1: shards the optimizer state. "
     "zero2: shards the optimizer state and the gradients. zero3: also shards the parameters. dp: replicas of the "
     "model "
     "in one process, which share each batch"},
    {"replicas",
     &Recipe::replicas,
     {0, 1024},
     "with data_parallel = dp: number of replicas, on the visible devices in turn. 0: one per visible CUDA device, or "
     "2 "
     "on the CPU"},
    {"gradient_compression", &Recipe::gradient_compression, "none, bf16, fp16, int8, power_sgd, top_k",
     "compression of gradients in the all-reduce (DDP communication hook); not with zero2 and zero3"},
    {"bucket_mb", &Recipe::bucket_mb, {1, 4096}, "size of the gradient buckets for communication, in MiB"},
    {"shard_units",
     &Recipe::shard_units,
     {},
     "patterns for names of modules, separated by commas, such as bert.encoder.layer.*. With zero2 and zero3, the "
     "parameters of each module that matches are one bucket",
     false},
    {"reshard_after_forward",
     &Recipe::reshard_after_forward,
     {},
     "with zero3, free parameters in forward, and gather them again in backward. false: more memory, and less "
     "communication",
     false},
    {"sync_each_batch",
     &Recipe::sync_each_batch,
     {},
     "with zero2 and zero3, exchange the gradients of each batch. false: with gradient_accumulation_steps, exchange "
     "them once per step, which needs memory for all gradients on each rank",
     false},
    {"shard_frozen",
     &Recipe::shard_frozen,
     {},
     "with zero3, also shard the parameters that are not trained. false: they are complete on every rank",
     false},
    {"mesh",
     &Recipe::mesh,
     {},
     "how the ranks divide the work. Hybrid sharding with zero1 to zero3, such as {data: 2, shard: 4}. shard: number "
     "of ranks that divide the state. data: number of such groups, which hold the same state. Tensor parallelism with "
     "ddp or zero1 to zero3, such as {data: 2, tensor: 2}. tensor: number of ranks that divide each layer and read the "
     "same samples. Pipeline parallelism with ddp or zero1, such as {data: 2, pipeline: 2}. pipeline: number of ranks "
     "that divide the model into stages and read the same samples. Context parallelism with ddp or zero1 to zero3, "
     "such as {data: 2, context: 2}. context: number of ranks that divide each sequence. Empty: all ranks read "
     "different samples",
     true,
     mesh_as_map},
    {"shard_state_over_all",
     &Recipe::shard_state_over_all,
     {},
     "with a mesh and zero2 or zero3, divide the optimizer state over all ranks, not only over the axis shard"},
    {"tensor_plan",
     &Recipe::tensor_plan,
     {},
     "with an axis tensor in mesh, patterns of layers and how they are divided (column, row, vocabulary), such as "
     "{\"*.query\": column, \"*.output\": row}. auto: the plan for bert, distilbert, gpt and encoder_decoder",
     true,
     tensor_plan_as_map},
    {"sequence_parallel",
     &Recipe::sequence_parallel,
     {},
     "with an axis tensor in mesh, also divide norms, dropout and residuals along the sequence, which needs less "
     "memory"},
    {"context_method", &Recipe::context_method, "ring, all_to_all, gather",
     "with an axis context in mesh, how ranks compute attention. ring: keys and values travel around the ring. "
     "all_to_all: each rank computes some heads of complete sequences. gather: each rank gathers all keys and values"},
    {"pipeline_schedule",
     &Recipe::pipeline_schedule,
     {},
     "with an axis pipeline in mesh, the order in which stages compute micro-batches: 1f1b, gpipe, interleaved, "
     "zero_bubble, or the path of a schedule file"},
    {"micro_batches",
     &Recipe::micro_batches,
     {0, 1 << 20},
     "with an axis pipeline in mesh, the parts of a batch that pass through the stages one after the other. 0: four "
     "per rank of the axis, but at most one per sample"},
    {"pipeline_stages",
     &Recipe::pipeline_stages,
     {1, 1024},
     "with pipeline_schedule interleaved, the number of stages of each rank"},
    {"offload_parameters", &Recipe::offload_parameters, "none, host, file",
     "with zero3, where shards of parameters are stored between uses. host: memory of the host, no change on the CPU. "
     "file: a scratch file in offload_shard_folder",
     false},
    {"offload_state", &Recipe::offload_state, "none, host, file",
     "with zero1 to zero3, where optimizer state and shards of gradients are stored. host: memory of the host, no "
     "change on the CPU. file: a scratch file in offload_shard_folder",
     false},
    {"offload_shard_folder",
     &Recipe::offload_shard_folder,
     {},
     "folder on a fast disk for the scratch files of offload_parameters and offload_state. Each rank may use another "
     "folder",
     false},
    {"reproducible_ranks",
     &Recipe::reproducible_ranks,
     {0, 1024},
     "number of parts of a batch, whose gradients are added in a fixed order. The weights are then bit-identical on "
     "any "
     "power of two of ranks up to this number. 0: off"},
    {"run_folder",
     &Recipe::run_folder,
     {},
     "folder for checkpoints, logs and traces. Empty: no files are written",
     false},
    {"save_steps",
     &Recipe::save_steps,
     {0, any},
     "optimizer steps between checkpoints. 0: at the end of each epoch",
     false},
    {"save_total_limit", &Recipe::save_total_limit, {1, any}, "number of newest checkpoints to keep", false},
    {"save_top_k",
     &Recipe::save_top_k,
     {0, 1000},
     "number of checkpoints with the best evaluation accuracy to keep in run_folder/best",
     false},
    {"async_checkpoints",
     &Recipe::async_checkpoints,
     {},
     "write checkpoints in the background while training continues. Not with offload_shard_folder, because the copy "
     "of the state would be in memory",
     false},
    {"log", &Recipe::log, {}, "log formats, separated by commas: csv, json, tensorboard. Empty: no log", false},
    {"trace_steps",
     &Recipe::trace_steps,
     {},
     "steps to record as a Chrome trace, such as 10-12,50. Empty: no trace",
     false},
    {"logging_steps",
     &Recipe::logging_steps,
     {1, any},
     "optimizer steps between log entries. Reading the loss waits for the device",
     false},
    {"train_metrics", &Recipe::train_metrics, "none, sync, device",
     "loss and accuracy on the training batches. sync: read after every step. device: read only when they are shown",
     false},
    {"sample_stats",
     &Recipe::sample_stats,
     {},
     "record statistics of each sample, for `bellows select`, in run_folder/sample_stats.safetensors",
     false},
};

struct RenamedKey {
  std::string_view former, now;
};

/// Keys that have another name in older recipes.
constexpr RenamedKey renamed_keys[] = {
    {"accumulate", "gradient_accumulation_steps"},
    {"accumulate_dtype", "gradient_accumulation_dtype"},
    {"clip_norm", "max_grad_norm"},
    {"clip_value", "max_grad_value"},
    {"checkpoint_every", "save_steps"},
    {"eval_every", "eval_steps"},
    {"keep_checkpoints", "save_total_limit"},
    {"keep_best", "save_top_k"},
    {"log_every", "logging_steps"},
    {"schedule", "lr_schedule"},
    {"schedule_end", "lr_schedule_end"},
    {"sequence_length", "max_length"},
    {"loader_threads", "num_workers"},
    {"precision_level", "amp_level"},
    {"recompute_keep", "activation_memory_budget"},
    {"recompute_keep_mb", "activation_memory_budget_mb"},
    {"activations", "activation_dtype"},
    {"patience", "early_stopping_patience"},
    {"cache_mb", "image_cache_mb"},
    {"keep_freed_memory", "allocator_reuse"},
    {"step_in_backward", "optimizer_in_backward"},
};

std::string former_name_of(std::string_view key) {
  for (const RenamedKey& renamed : renamed_keys) {
    if (renamed.now == key) return std::string(renamed.former);
  }
  return "";
}

/// The origin of a value, for messages.
struct Origin {
  std::string_view where;
  int line = 0;  ///< 0 if unknown
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
  for (const RenamedKey& renamed : renamed_keys) {
    TORCH_CHECK_VALUE(renamed.former != key, "recipe: ", origin.text(), ": unknown key \"", key,
                      "\". The key is now called ", renamed.now, ".");
  }
  const std::string nearest = did_you_mean(key, names);
  C10_THROW_ERROR(ValueError, c10::str("recipe: ", origin.text(), ": unknown key \"", key, "\".",
                                       nearest.empty() ? " Known keys: " + all + "." : nearest));
}

// ---- values in YAML

/// Whether YAML reads the text back unchanged without quotes.
bool plain_in_yaml(const std::string& text) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./";
  return !text.empty() && letters.find(text[0]) != std::string_view::npos && YAML::Load(text).IsScalar() &&
         text.find_first_not_of(std::string(letters) + "-{},") == std::string::npos;
}

constexpr const char* binary_tag = "tag:yaml.org,2002:binary";

/// File names may contain any bytes, but YAML text is UTF-8.
std::string quoted_in_yaml(const std::string& text) {
  YAML::Emitter emitter;
  if (!io::is_utf8(text)) {
    emitter << YAML::Binary(reinterpret_cast<const unsigned char*>(text.data()), text.size());
    return emitter.c_str();
  }
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

/// The text of a scalar; "" for null.
std::string text_in_yaml(const YAML::Node& value) {
  if (value.IsNull()) return "";
  if (value.Tag() != binary_tag) return value.Scalar();
  const auto bytes = value.as<YAML::Binary>();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// "a: 1, b: 2" for a map.
std::string map_in_yaml(const YAML::Node& map) {
  std::string text;
  for (const auto& item : map)
    text += c10::str(text.empty() ? "" : ", ", item.first.as<std::string>(""), ": ", item.second.as<std::string>(""));
  return text;
}

std::string value_text(const Row& row, const Recipe& recipe) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = recipe.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          const std::string map = row.as_map ? row.as_map(value) : "";
          if (!map.empty()) return "{" + map + "}";
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

/// Returns `recipe` with the settings in the text.
Recipe parse_over(Recipe recipe, std::string_view text, std::string_view where) {
  TORCH_CHECK_VALUE(text.find('\0') == std::string_view::npos, "recipe: ", where, ": the file is not a text file.");
  YAML::Node root;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    TORCH_CHECK_VALUE(documents.size() <= 1, "recipe: ", where, ": expected one YAML document, found ",
                      documents.size(), ", separated by `---`. Keep only one.");
    if (!documents.empty()) root = documents.front();
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, "recipe: ", where, ", line ", error.mark.line + 1,
                      ": the file is not valid YAML: ", error.msg, ".");
  }
  if (root.IsNull()) return recipe;
  TORCH_CHECK_VALUE(root.IsMap(), "recipe: ", where, ": expected lines of the form `key: value`, found other content.");
  std::set<std::string> seen;
  for (const auto& item : root) {
    const Origin origin{where, item.first.Mark().line + 1};
    TORCH_CHECK_VALUE(item.first.IsScalar(), "recipe: ", origin.text(), ": expected a key, got a list or a map.");
    const std::string& key = item.first.Scalar();
    const Row& row = find_row(key, origin);
    TORCH_CHECK_VALUE(seen.insert(key).second, "recipe: ", origin.text(), ": the key \"", key, "\" occurs twice.");
    const bool is_map = item.second.IsMap() && row.as_map;
    TORCH_CHECK_VALUE(is_map || item.second.IsScalar() || item.second.IsNull(), "recipe: ", origin.text(), ": ", key,
                      ": expected one value (", type_of(row), "), got a list or a map.");
    assign(row, recipe, is_map ? map_in_yaml(item.second) : text_in_yaml(item.second), origin);
  }
  TORCH_CHECK_VALUE(!seen.contains("require_seed") || !recipe.require_seed || seen.contains("seed"), "recipe: ", where,
                    ": require_seed = true, but the key seed is missing. Add a line such as `seed: 1`.");
  check_keys_together(recipe, std::string(where));
  return recipe;
}

std::string recipe_text(const std::string& path) {
  std::string text = read_text_file(path);
  TORCH_CHECK_VALUE(text.find(':') != std::string::npos, "recipe: ", path,
                    ": expected lines of the form `key: value`, ", text.empty() ? "the file is empty." : "found none.");
  return text;
}

}  // namespace

Recipe Recipe::parse(std::string_view text, std::string_view where) {
  return parse_over({}, text, where);
}

Recipe Recipe::load(const std::string& path) {
  return parse_over({}, recipe_text(path), path);
}

Recipe load_over(const Recipe& base, const std::string& path) {
  return parse_over(base, recipe_text(path), path);
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
  for (const Row& row : table) check(row, *this, {"combined settings"});
  check_keys_together(*this, "combined settings");
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
    fields.push_back({row.name, type_of(row), allowed_of(row), value_text(row, defaults), row.help, row.changes_bits,
                      former_name_of(row.name)});
  }
  return fields;
}

std::string optimizer_in_backward_conflict(const Recipe& recipe) {
  if (recipe.data_parallel == "dp") return "data_parallel = dp adds the gradients of the replicas after backward";
  if (recipe.gradient_accumulation_steps > 1)
    return c10::str("gradient_accumulation_steps = ", recipe.gradient_accumulation_steps, " accumulates gradients");
  if (recipe.gradient_accumulation_dtype != "auto")
    return "gradient_accumulation_dtype = " + recipe.gradient_accumulation_dtype + " stores gradients";
  if (recipe.max_grad_norm > 0)
    return c10::str("max_grad_norm = ", recipe.max_grad_norm, " needs the norm of all gradients");
  if (recipe.max_grad_value > 0)
    return c10::str("max_grad_value = ", recipe.max_grad_value, " needs all gradients after backward");
  if (recipe.precision == "fp16") return "fp16 checks all gradients before each step";
  return recipe.on_nan == "skip" ? "on_nan = skip checks all gradients before each step" : "";
}

}  // namespace bellows::train
