#include "cli/verb_options.h"

#include <c10/util/StringUtil.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cli/deploy/arguments.h"
#include "cli/help_format.h"
#include "cli/help_texts.h"
#include "cli/job_options.h"
#include "cli/option_checks.h"
#include "cli/placement_options.h"
#include "cli/size_option.h"

namespace bellows::cli {

namespace {

template <class Arguments>
void add_resuming(CLI::App* verb, Arguments& arguments) {
  begin_group(verb, "Resuming");
  verb->add_flag("--resume", arguments.resume, "Resume from the newest checkpoint in --out");
  verb->add_flag("--accept-changes", arguments.accept_changes,
                 "Resume even if changes in settings, data or machine make the results differ from the original run. "
                 "A different model or optimizer is still an error. If the checkpoint was saved in the middle of an "
                 "epoch, different data, a different seed and a different batch size are errors, too");
}

}  // namespace

CLI::App* add_train(CLI::App& app, TrainArguments& arguments) {
  CLI::App* verb = app.add_subcommand("train", "Train a model from a recipe")->footer(train_footer);
  add_job(verb, arguments);
  add_resuming(verb, arguments);
  begin_group(verb, "Output");
  verb->add_option("--out", arguments.out,
                   "Save checkpoints, logs and the recipe in this run folder [default: `run_folder` of the recipe]")
      ->type_name("DIR");
  add_json(verb, arguments.json);
  verb->add_flag("--keys", arguments.keys, "List all recipe keys with their defaults and exit");
  return verb;
}

namespace {

void add_ladder_goal(CLI::App* verb, LadderArguments& arguments) {
  begin_group(verb, "Goal");
  verb->add_option(
          "--target-accuracy", arguments.target_accuracy,
          "Accuracy on held-out data that training must reach, such as 0.97 [default: from the recipe, otherwise 0.97]")
      ->type_name("SHARE")
      ->check(CLI::Validator(share_problem, ""));
  verb->add_flag("--memory", arguments.memory,
                 "Measure the techniques that save memory, even if they make training slower");
  add_size(verb, "--memory-target", arguments.memory_target,
           "Find the fastest recipe whose peak memory is at most this size, such as 2GB");
}

void add_ladder_inference(CLI::App* verb, LadderArguments& arguments) {
  begin_group(verb, "Inference");
  verb->add_option("--inference", arguments.inference,
                   "Measure techniques for inference instead of training. The value is a run folder, a recipe file or "
                   "a model, like "
                   "those of --run, --recipe and --model")
      ->type_name("[RUN|RECIPE|MODEL]")
      ->expected(0, 1)
      ->default_str("-");
  verb->add_option("--run", arguments.run,
                   "Run folder that provides the recipe and the newest checkpoint. Cannot be combined with --recipe, "
                   "--model and --weights")
      ->type_name("DIR");
  verb->add_option("--weights", arguments.weights,
                   "Weights: a safetensors file, a torch.save file or a checkpoint [default: `weights` of the recipe, "
                   "or random]")
      ->type_name("FILE");
  verb->add_option("--split", arguments.split, "Split of --data, or of the recipe's dataset [default: test]")
      ->type_name("NAME");
  verb->add_option(
          "--batch-size", arguments.batch_size,
          "Number of samples per batch. By default, `batch_size` of the recipe, but at least 16 and at most 256. "
          "With synthetic inputs, the default is 8")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--max-drop", arguments.max_drop,
                   "Largest loss of accuracy in percentage points, compared with eager [default: 0.5]")
      ->type_name("POINTS")
      ->check(CLI::Validator(points_problem, ""));
}

}  // namespace

CLI::App* add_ladder(CLI::App& app, LadderArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("ladder", "Measure the speedup of each technique on your model")->footer(ladder_footer);
  add_job(verb, arguments);
  add_ladder_goal(verb, arguments);
  add_ladder_comparison(verb, arguments);
  add_ladder_inference(verb, arguments);
  begin_group(verb, "Measurement");
  verb->add_option("--eval-every-steps", arguments.eval_every_steps,
                   "Number of steps between evaluations on held-out data [default: automatic]")
      ->type_name("STEPS")
      ->check(whole_number(1, 1000000));
  verb->add_option("--max-seconds", arguments.max_seconds,
                   "Stop adding techniques after this many seconds [default: no limit]")
      ->type_name("SECONDS")
      ->check(CLI::Validator(seconds_problem, ""));
  verb->add_option("--max-epochs", arguments.max_epochs,
                   "Maximum number of epochs per training run. A run that needs more epochs does not reach the target "
                   "[default: 30]")
      ->type_name("EPOCHS")
      ->check(whole_number(1, 1000000));
  verb->add_flag(
      "--quick", arguments.quick,
      "Measure each technique for a shorter time and with only one seed. The ladder then takes less time, but its "
      "results are less precise");
  begin_group(verb, "Output");
  verb->add_option("--html", arguments.html, "Write a report with charts to this HTML file")->type_name("FILE");
  verb->add_option("--write-recipe", arguments.write_recipe, "Write the resulting recipe to this YAML file")
      ->type_name("FILE");
  add_json(verb, arguments.json);
  verb->add_flag("--list", arguments.list, "Describe all techniques in Markdown and exit");
  return verb;
}

CLI::App* add_plan(CLI::App& app, PlanArguments& arguments) {
  CLI::App* verb = app.add_subcommand("plan", "Predict a training step's peak memory")->footer(plan_footer);
  add_job(verb, arguments);
  add_planned_step(verb, arguments);
  add_plan_limits(verb, arguments);
  add_device_map(verb, arguments);
  begin_group(verb, "Output");
  verb->add_option("--html", arguments.html,
                   "Write an HTML page to this file. The page shows the lifetime of each tensor")
      ->type_name("FILE");
  verb->add_option("--trace", arguments.trace,
                   "Write the lifetime of each tensor as a Chrome trace (ui.perfetto.dev) to this file")
      ->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_import(CLI::App& app, ImportArguments& arguments) {
  CLI::App* verb = app.add_subcommand("import", "Convert a DeepSpeed configuration to a recipe")->footer(import_footer);
  verb->add_option("FILE", arguments.file, "JSON configuration of DeepSpeed, such as ds_config.json")->required();
  begin_group(verb, "Job");
  verb->add_option("--ranks", arguments.ranks,
                   "Number of ranks (GPUs) that train together. `batch_size` of a recipe counts the samples of all "
                   "ranks [default: 1]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  begin_group(verb, "Output");
  verb->add_option("--out", arguments.out, "Write the recipe to this YAML file [default: standard output]")
      ->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

namespace {

/// Exactly one option of each part has to be given.
void add_selection_parts(CLI::App* verb, SelectArguments& arguments) {
  CLI::App* from = verb->add_option_group("samples from")->require_option(1);
  begin_group(from, "Data");
  from->add_option(
          "--run", arguments.run,
          "Run folder that provides the dataset, the model and the sample statistics. Cannot be combined with --data")
      ->type_name("DIR");
  from->add_option(
          "--data", arguments.data,
          "Dataset to choose from if there is no run. Works only with --by random. Cannot be combined with --run")
      ->type_name("PATH");
  CLI::App* how_many = verb->add_option_group("how many")->require_option(1);
  begin_group(how_many, "Number of samples (exactly one of these)");
  how_many
      ->add_option("--keep", arguments.keep,
                   "Keep this share of the samples, such as 0.6. With --by random, random samples are kept, otherwise "
                   "the hardest ones")
      ->type_name("SHARE")
      ->check(CLI::Validator(share_problem, ""));
  how_many
      ->add_option("--count", arguments.count,
                   "Keep this many samples. With --by random, random samples are kept, otherwise the hardest ones")
      ->type_name("N")
      ->check(whole_number(1, INT64_MAX));
  how_many
      ->add_option(
          "--add", arguments.add,
          "Choose this many samples to label next. The file also contains the samples on which the run was trained")
      ->type_name("N")
      ->check(whole_number(1, INT64_MAX));
}

}  // namespace

CLI::App* add_select(CLI::App& app, SelectArguments& arguments) {
  CLI::App* verb = app.add_subcommand("select", "Choose samples to train on or to label")->footer(select_footer);
  add_selection_parts(verb, arguments);
  begin_group(verb, "Data");
  verb->add_option("--split", arguments.split, "Split of --data, if the dataset has several splits [default: train]")
      ->type_name("NAME");
  add_plugins(verb, arguments.plugins);
  begin_group(verb, "Selection");
  verb->add_option("--by", arguments.by, "Rule by which samples are chosen. The rules are listed below")
      ->type_name("RULE")
      ->required();
  verb->add_flag("--per-class", arguments.per_class, "Preserve the proportions of the classes");
  verb->add_option("--passes", arguments.passes, "Number of Monte Carlo dropout passes for --by bald [default: 20]")
      ->type_name("N")
      ->check(whole_number(2, 1000000));
  verb->add_option("--seed", arguments.seed, "Seed for random choices [default: 1]")
      ->type_name("N")
      ->check(whole_number(0, INT64_MAX));
  begin_group(verb, "Output");
  verb->add_option(
          "--out", arguments.out,
          "Write the chosen samples to this subset file. An existing file is replaced only if it is a subset file")
      ->type_name("FILE")
      ->required();
  add_json(verb, arguments.json);
  return verb;
}

namespace {

/// Adds the options that describe a trained model and its data.
void add_trained(CLI::App* verb, TrainedArguments& arguments) {
  begin_group(verb, "Model");
  verb->add_option("--run", arguments.run,
                   "Run folder that provides the recipe and the newest checkpoint. Cannot be combined with --recipe, "
                   "--model and --weights")
      ->type_name("DIR");
  verb->add_option("--recipe", arguments.recipe, "Recipe with which the weights were trained")->type_name("FILE");
  verb->add_option("--model", arguments.model,
                   "Model: a registered name, or a TorchScript, .pt2 or config.json file [default: from the recipe]")
      ->type_name("NAME|FILE");
  verb->add_option("--weights", arguments.weights,
                   "Weights: a safetensors file (also from `bellows quantize`), a torch.save file or a checkpoint "
                   "[default: `weights` of the recipe]")
      ->type_name("FILE");
  add_plugins(verb, arguments.plugins);
  verb->add_option("--set", arguments.set,
                   "Set a recipe key, such as data=PATH if the training data was moved. You can repeat this option")
      ->type_name("KEY=VALUE")
      ->expected(1, 1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  begin_group(verb, "Samples");
  verb->add_option("--data", arguments.data,
                   "Dataset: a folder, a file, or a pattern such as \"test-{000..003}.tar\" [default: from the recipe]")
      ->type_name("PATH");
  verb->add_option("--split", arguments.split, "Split of --data, or of the recipe's dataset [default: test]")
      ->type_name("NAME");
}

/// Adds the options that determine how fast a trained model runs.
void add_inference(CLI::App* verb, TrainedArguments& arguments) {
  begin_group(verb, "Speed");
  verb->add_option("--batch-size", arguments.batch_size,
                   "Number of samples per batch [default: as in training, from 16 to 256]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--dtype", arguments.dtype,
                   "Type of the weights and of matmuls: fp32, or bf16 with norm layers in fp32 [default: from the "
                   "recipe]")
      ->type_name("fp32|bf16")
      ->check(CLI::Validator(dtype_problem, ""));
  verb->add_flag("--compile", arguments.compile,
                 "Compile the forward pass with frozen weights. The first batch of each size waits for the compiler");
}

/// Accepts one of several words.
CLI::Validator one_of(std::vector<std::string> words) {
  const auto problem = [words = std::move(words)](const std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
    std::string list;
    for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
    return c10::str("expected one of ", list, ", got ", text);
  };
  return {problem, ""};
}

void add_weights(CLI::App* verb, QuantizeArguments& arguments) {
  verb->add_option("--bits", arguments.bits, "Bits of a weight, with --method weight-only [default: 8]")
      ->type_name("N")
      ->check(whole_number(2, 8));
  verb->add_option("--group", arguments.group,
                   "Number of neighboring weights with one scale, with --method weight-only [default: all weights of "
                   "an output channel]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--rounding", arguments.rounding,
                   "How the integers of linears are chosen: nearest, hqq, gptq, awq or auto_round [default: nearest]")
      ->type_name("RULE")
      ->check(one_of({"nearest", "hqq", "gptq", "awq", "auto_round"}));
  verb->add_flag("--correct-bias", arguments.correct_bias, "Correct the bias of linears after rounding");
}

void add_activations(CLI::App* verb, QuantizeArguments& arguments) {
  verb->add_option("--range", arguments.range,
                   "How ranges of activations are chosen, with --method static: min_max, moving_average, percentile, "
                   "mse or entropy. If the model was trained with the recipe key quantize, the ranges of training are "
                   "used without this option [default: min_max]")
      ->type_name("RULE")
      ->check(one_of({"min_max", "moving_average", "percentile", "mse", "entropy"}));
  verb->add_option("--smooth", arguments.smooth,
                   "Move outliers from the inputs of linears to their weights (SmoothQuant), with this share, such as "
                   "0.5")
      ->type_name("SHARE")
      ->check(CLI::Validator(share_problem, ""));
  verb->add_option("--samples", arguments.samples, "Number of training samples for calibration [default: 256]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
}

void add_kept_layers(CLI::App* verb, QuantizeArguments& arguments) {
  verb->add_option("--skip", arguments.skip,
                   "Keep this layer in floating point. \"*\" matches any text. You can repeat this option")
      ->type_name("NAME")
      ->expected(1, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_flag("--no-embeddings", arguments.keep_embeddings, "Keep the weights of embeddings in floating point");
  verb->add_flag("--strict", arguments.strict, "Fail if a layer that is not skipped cannot be quantized");
  verb->add_option("--max-drop", arguments.max_drop,
                   "Largest loss of accuracy in percentage points. Sensitive layers stay in floating point to reach it")
      ->type_name("POINTS")
      ->check(CLI::Validator(points_problem, ""));
}

void add_quantization(CLI::App* verb, QuantizeArguments& arguments) {
  begin_group(verb, "Quantization");
  verb->add_option("--method", arguments.method, "How layers compute. The methods are listed below [default: static]")
      ->type_name("METHOD")
      ->check(one_of({"static", "dynamic", "weight-only"}));
  add_weights(verb, arguments);
  add_activations(verb, arguments);
  add_kept_layers(verb, arguments);
}

void add_graph(CLI::App* verb, ExportArguments& arguments) {
  begin_group(verb, "Graph");
  verb->add_option(
          "--format", arguments.format,
          "Format of the file: onnx, pt2 for torch.export.load(), torchscript for torch.jit.load(), or bellows "
          "for a compiled program [default: onnx]")
      ->type_name("FORMAT")
      ->check(one_of({"onnx", "pt2", "torchscript", "bellows"}));
  verb->add_option("--dynamic", arguments.dynamic,
                   "Let an axis of the inputs vary, such as 1=tokens or input_ids:1=tokens. You can repeat this option "
                   "[default: 0=batch]")
      ->type_name("[INPUT:]AXIS=NAME")
      ->expected(1, 1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_option("--sizes", arguments.sizes,
                   "Three sizes of a dynamic axis with which the model is recorded, such as height=64,96,128. You can "
                   "repeat this option [default: sizes near that of the example]")
      ->type_name("NAME=A,B,C")
      ->expected(1, 1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_option("--length", arguments.length,
                   "Tokens, time steps, or height and width of images of the example input [default: the model's]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--batch-size", arguments.batch_size, "Number of samples of the example input [default: 2]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--dtype", arguments.dtype,
                   "Type of the weights: fp32, or bf16 with norm layers in fp32 [default: from the recipe]")
      ->type_name("fp32|bf16")
      ->check(CLI::Validator(dtype_problem, ""));
}

}  // namespace

CLI::App* add_export(CLI::App& app, ExportArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("export", "Write a trained model as a file for other runtimes")->footer(export_footer);
  verb->add_option("MODEL", arguments.subject, "A run folder like --run, or a model like --model");
  add_trained(verb, arguments);
  add_graph(verb, arguments);
  begin_group(verb, "Output");
  verb->add_option("--output", arguments.output, "The file to write")->type_name("FILE");
  add_size(verb, "--external-data-above", arguments.external_data_above,
           "Write the weights to a second file, FILE.data, if they are larger than this, such as 500MB [default: 2GB]");
  verb->add_flag("--no-check", arguments.no_check,
                 "With --format onnx, pt2 or torchscript: do not run the written file and compare it with the model");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_deploy(CLI::App& app, DeployArguments& arguments) {
  CLI::App* verb = app.add_subcommand("deploy", "Choose the fastest correct form of a model, and write a repository")
                       ->footer(deploy_footer);
  verb->add_option("MODEL", arguments.subject, "A run folder like --run, a model like --model, or an exported file");
  add_trained(verb, arguments);
  add_deployment(verb, arguments);
  return verb;
}

CLI::App* add_quantize(CLI::App& app, QuantizeArguments& arguments) {
  CLI::App* verb = app.add_subcommand("quantize", "Make a trained model smaller and faster with integer weights")
                       ->footer(quantize_footer);
  add_trained(verb, arguments);
  add_quantization(verb, arguments);
  begin_group(verb, "Speed");
  verb->add_option("--batch-size", arguments.batch_size, "Number of samples per batch of the evaluations")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  begin_group(verb, "Output");
  verb->add_option("--out", arguments.out, "Save the quantized model to this safetensors file")->type_name("FILE");
  verb->add_option("--html", arguments.html, "Write a page with a chart of the layers' sensitivity to this file")
      ->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

namespace {

void add_student(CLI::App* verb, DistillArguments& arguments) {
  begin_group(verb, "Student");
  verb->add_option("--student", arguments.student,
                   "Model that learns: a registered name, or a TorchScript, .pt2 or config.json file")
      ->type_name("NAME|FILE");
  verb->add_option("--recipe", arguments.recipe,
                   "Settings of the student's training [default: the recipe of the teacher]")
      ->type_name("FILE");
  verb->add_option("--data", arguments.data, "Dataset of the student's training [default: from the recipe]")
      ->type_name("PATH");
  add_plugins(verb, arguments.plugins);
  verb->add_option("--set", arguments.set, "Set a recipe key of the student's training. You can repeat this option")
      ->type_name("KEY=VALUE")
      ->expected(1, 1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_distillation(CLI::App* verb, DistillArguments& arguments) {
  begin_group(verb, "Distillation");
  verb->add_option(
          "--weight", arguments.weight,
          "Weight of the teacher's loss. The loss of the targets has the rest [default: `distill` of the recipe]")
      ->type_name("SHARE")
      ->check(CLI::Validator(share_problem, ""));
  verb->add_option("--temperature", arguments.temperature,
                   "Divides the logits of both models before they are compared [default: `distill_temperature` of the "
                   "recipe]")
      ->type_name("T")
      ->check(CLI::Validator(positive_problem, ""));
  verb->add_flag("--compare", arguments.compare,
                 "Also train the same student without the teacher, to show how much the teacher helps");
}

}  // namespace

CLI::App* add_distill(CLI::App& app, DistillArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("distill", "Train a small model to imitate a trained one")->footer(distill_footer);
  verb->add_option("TEACHER", arguments.teacher,
                   "Run folder of the trained model. With --resume, you can leave it out");
  add_student(verb, arguments);
  add_distillation(verb, arguments);
  add_resuming(verb, arguments);
  begin_group(verb, "Output");
  verb->add_option("--out", arguments.out, "Save checkpoints, logs and the recipe in this run folder")
      ->type_name("DIR")
      ->required();
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_evaluate(CLI::App& app, EvaluateArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("evaluate", "Measure the accuracy and speed of a trained model")->footer(evaluate_footer);
  add_trained(verb, arguments);
  add_inference(verb, arguments);
  add_weight_memory(verb, arguments);
  begin_group(verb, "Output");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_predict(CLI::App& app, PredictArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("predict", "Predict files or a dataset with a trained model")->footer(predict_footer);
  verb->add_option("FILES", arguments.files, "Images, folders of images, or files with texts or rows of numbers");
  add_trained(verb, arguments);
  add_inference(verb, arguments);
  add_weight_memory(verb, arguments);
  begin_group(verb, "Output");
  verb->add_option("--top", arguments.top, "Also print the K most probable classes with their probabilities")
      ->type_name("K")
      ->check(whole_number(1, 1000000));
  verb->add_option("--output", arguments.output,
                   "Write the predictions to this file. It appears when it is complete [default: standard output]")
      ->type_name("FILE");
  return verb;
}

namespace {

void add_pack_output(CLI::App* verb, PackArguments& arguments) {
  begin_group(verb, "Output");
  verb->add_option("--format", arguments.format, "Output format [default: from the suffix of DST, otherwise pack]")
      ->type_name("NAME");
  auto* size = add_size(verb, "--shard-size", arguments.shard_bytes, "Size of a shard, such as 256MB [default: 1GB]");
  verb->add_option("--shard-samples", arguments.shard_samples,
                   "Number of samples per shard. Cannot be combined with --shard-size")
      ->type_name("N")
      ->check(whole_number(1, INT64_MAX))
      ->excludes(size);
  verb->add_flag(
      "--verify", arguments.verify,
      "At the end, compare all written samples with those of SRC. Without this option, only some samples are "
      "compared");
  add_json(verb, arguments.json);
}

}  // namespace

CLI::App* add_pack(CLI::App& app, PackArguments& arguments) {
  CLI::App* verb = app.add_subcommand("pack", "Convert a dataset to another format")->footer(pack_footer);
  verb->add_option("SRC", arguments.source,
                   "Dataset to convert: a folder, a file, or a pattern such as \"train-{000..015}.tar\"")
      ->required();
  verb->add_option("DST", arguments.destination, "File or folder to write")->required();
  begin_group(verb, "Samples");
  verb->add_option("--split", arguments.split, "Split of SRC. Required if SRC has several splits")->type_name("NAME");
  verb->add_option("--select", arguments.select, "Convert only the samples of this subset file (see `bellows select`)")
      ->type_name("FILE");
  begin_group(verb, "Images");
  verb->add_option(
          "--resize", arguments.resize,
          "Shrink images so that the shorter side has this many pixels, or resize them to HEIGHTxWIDTH, such as "
          "224x224")
      ->type_name("SIDE|HxW");
  verb->add_option("--encode", arguments.encode,
                   "Image encoding: jpg[:QUALITY], png, raw (pixels), restart (JPEG with restart markers) or keep "
                   "(unchanged) [default: keep]")
      ->type_name("CODING");
  add_pack_output(verb, arguments);
  begin_group(verb, "Parallelism");
  verb->add_option("--threads", arguments.threads,
                   "Number of threads that read, resize and encode samples [default: one per core]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  return verb;
}

namespace {

void add_loader(CLI::App* verb, BenchDataArguments& arguments) {
  begin_group(verb, "Loader");
  verb->add_option("--batch", arguments.batch, "Number of samples per batch [default: 64]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option(
          "--threads", arguments.threads,
          "Number of worker threads in addition to the calling thread. With `auto`, threads are added as long as "
          "they make loading faster [default: auto]")
      ->type_name("N|auto");
  verb->add_option("--prefetch", arguments.prefetch, "Number of batches that are loaded in advance [default: 4]")
      ->type_name("N")
      ->check(whole_number(1, 65536));
  verb->add_option("--cache-mb", arguments.cache_mb, "Size of the decoded-image cache in MiB [default: 0]")
      ->type_name("MIB")
      ->check(whole_number(0, 1 << 24));
}

}  // namespace

CLI::App* add_bench_data(CLI::App& app, BenchDataArguments& arguments) {
  CLI::App* verb = app.add_subcommand("bench-data", "Measure how fast a dataset loads, and what limits the throughput")
                       ->footer(bench_data_footer);
  verb->add_option("URL", arguments.url,
                   "Dataset to load: a folder, a file, or a pattern such as \"train-{000..015}.tar\"")
      ->required();
  begin_group(verb, "Samples");
  verb->add_option("--split", arguments.split, "Split of the dataset. Required if the dataset has several splits")
      ->type_name("NAME");
  verb->add_option("--crop", arguments.crop,
                   "Apply a random resized crop with this side length in pixels, and a random horizontal flip")
      ->type_name("SIDE")
      ->check(whole_number(1, 16384));
  verb->add_flag("--shuffle", arguments.shuffle, "Shuffle the samples in each epoch");
  add_loader(verb, arguments);
  begin_group(verb, "Duration");
  auto* seconds = verb->add_option("--seconds", arguments.seconds, "Measure for this many seconds [default: 10]")
                      ->type_name("SECONDS")
                      ->check(CLI::Validator(seconds_problem, ""));
  verb->add_option("--epochs", arguments.epochs, "Load the dataset this many times. Cannot be combined with --seconds")
      ->type_name("N")
      ->check(whole_number(1, 1000000))
      ->excludes(seconds);
  begin_group(verb, "Output");
  verb->add_option("--trace", arguments.trace, "Write a Chrome trace (ui.perfetto.dev) to this file")
      ->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

namespace {

void add_restarts(CLI::App* verb, comm::LaunchOptions& options) {
  begin_group(verb, "Restarts");
  verb->add_option("--max-restarts", options.max_restarts,
                   "Maximum number of restarts. After a failure, all ranks are restarted [default: 0]")
      ->type_name("K")
      ->check(whole_number(0, 1000000));
  verb->add_flag("--replace-lost", options.replace_lost,
                 "If a rank fails, the other replicas of the model continue, and a new process takes its place. For "
                 "`bellows train` with DDP or hybrid sharding, on one node");
  verb->add_option(
          "--min-ranks", options.min_ranks,
          "After each failure, restart with one rank fewer, but never with fewer than M ranks. Works only on one node. "
          "Requires --max-restarts [default: N, so the number stays the same]")
      ->type_name("M")
      ->check(whole_number(1, 1000000));
  verb->add_option("--min-nodes", options.min_nodes,
                   "After a failure, restart without the lost nodes if at least M nodes are left. Requires "
                   "--max-restarts [default: all]")
      ->type_name("M")
      ->check(whole_number(1, 1000000));
  verb->add_option("--node-timeout", options.node_timeout_s,
                   "Seconds without a heartbeat after which a node counts as lost [default: 30]")
      ->type_name("S")
      ->check(CLI::Validator(seconds_problem, ""));
}

}  // namespace

CLI::App* add_launch(CLI::App& app, LaunchArguments& arguments) {
  CLI::App* verb = app.add_subcommand("launch", "Start a program in several processes")->footer(launch_footer);
  comm::LaunchOptions& options = arguments.options;
  begin_group(verb, "Processes");
  verb->add_option("-n,--ranks", options.ranks, "Number of processes on this machine")
      ->type_name("N")
      ->required()
      ->check(whole_number(1, 1000000));
  verb->add_option("--nnodes", options.nodes, "Number of machines [default: 1]")
      ->type_name("N")
      ->check(whole_number(1, 1000000));
  verb->add_option("--node-rank", options.node_rank, "Rank of this machine, starting at 0 [default: 0]")
      ->type_name("R")
      ->check(whole_number(0, 1000000));
  verb->add_option("--rdzv", options.rendezvous, "Address of node 0 [default: a free port on the loopback interface]")
      ->type_name("HOST:PORT");
  add_restarts(verb, options);
  verb->add_option("COMMAND", options.command, "Program to start, with its arguments")->required();
  return verb;
}

CLI::App* add_checkpoint(CLI::App& app, CheckpointArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("checkpoint", "Inspect a checkpoint or export its weights")->footer(checkpoint_footer);
  verb->require_subcommand(1);
  CLI::App* info =
      verb->add_subcommand("info", "Show the step and the contents of a checkpoint")->footer(checkpoint_info_footer);
  CLI::App* exported = verb->add_subcommand("export", "Write the model's weights to a safetensors file")
                           ->footer(checkpoint_export_footer);
  for (CLI::App* action : {info, exported}) {
    action
        ->add_option(
            "PATH", arguments.path,
            "Checkpoint or run folder. For a run folder, the command uses the newest checkpoint in this folder")
        ->required();
    begin_group(action, "Output");
    add_json(action, arguments.json);
  }
  begin_group(info, "Checks");
  info->add_flag("--verify", arguments.verify, "Read all data and verify the checksums");
  exported->add_option("FILE", arguments.out, "safetensors file to write")->required();
  add_size(
      exported, "--max-file-size", arguments.max_file_size,
      "Divide the weights among numbered files of at most this size, such as 5GB, with an index [default: one file]");
  return verb;
}

CLI::App* add_cache(CLI::App& app, CacheArguments& arguments) {
  CLI::App* verb = app.add_subcommand("cache", "List, clear, export or import compiled kernels")->footer(cache_footer);
  verb->require_subcommand(1);
  CLI::App* list = verb->add_subcommand("list", "List the entries of the kernel cache")->footer(cache_list_footer);
  CLI::App* clear = verb->add_subcommand("clear", "Delete all entries of the kernel cache")->footer(cache_clear_footer);
  CLI::App* keygen =
      verb->add_subcommand("keygen", "Create a pair of keys for signing bundles")->footer(cache_keygen_footer);
  CLI::App* exported =
      verb->add_subcommand("export", "Write the kernels to a signed bundle")->footer(cache_export_footer);
  CLI::App* imported =
      verb->add_subcommand("import", "Add the kernels of a signed bundle to the cache")->footer(cache_import_footer);
  keygen->add_option("KEYFILE", arguments.key, "New file for the private key")->required();
  exported->add_option("BUNDLE", arguments.bundle, "File to write")->required();
  imported->add_option("BUNDLE", arguments.bundle, "Bundle to import")->required();
  begin_group(exported, "Signature");
  exported->add_option("--key", arguments.key, "File with your private key (PEM, Ed25519)")
      ->type_name("KEYFILE")
      ->required();
  begin_group(imported, "Signature");
  imported
      ->add_option("--key", arguments.key,
                   "File with the public keys of publishers that you trust [default: the file in BELLOWS_TRUSTED_KEYS]")
      ->type_name("PUBKEY");
  for (CLI::App* action : {list, clear, keygen, exported, imported}) {
    begin_group(action, "Output");
    add_json(action, arguments.json);
  }
  return verb;
}

CLI::App* add_doctor(CLI::App& app, DoctorArguments& arguments) {
  CLI::App* verb = app.add_subcommand("doctor", "Check the machine and libtorch")->footer(doctor_footer);
  begin_group(verb, "Output");
  add_json(verb, arguments.json);
  return verb;
}

}  // namespace bellows::cli
