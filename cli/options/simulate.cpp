#include <CLI/CLI.hpp>

#include "cli/help_texts.h"
#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

namespace {

void add_simulated_step(CLI::App* verb, SimulateArguments& arguments) {
  const CLI::Validator count = whole_number(1, int64_t{1} << 24);
  begin_group(verb, "Step");
  verb->add_option("--batch", arguments.job.batch, "Number of samples per step, over all ranks [default: 1]")
      ->type_name("N")
      ->check(count);
  verb->add_option("--seq", arguments.job.length, "Number of tokens per sample [default: the model's maximum]")
      ->type_name("N")
      ->check(count);
  verb->add_option("--micro-batches", arguments.job.micro_batches,
                   "Number of micro-batches of a pipeline, or of gradient accumulation steps [default: 1]")
      ->type_name("N")
      ->check(whole_number(1, 65536));
  verb->add_option("--dtype", arguments.job.dtype,
                   "Data type of matrix multiplications: fp32, bf16 or fp8 [default: bf16]")
      ->type_name("DTYPE");
  verb->add_option("--recompute", arguments.recompute,
                   "Activations that backward computes again: nothing, attention, half or blocks [default: nothing]")
      ->type_name("WHAT");
  verb->add_option("--state-bytes", arguments.job.state_bytes,
                   "Bytes of optimizer state per parameter [default: 8, which is AdamW in fp32]")
      ->type_name("BYTES")
      ->check(CLI::Range(0.0, 1024.0).description(""));
}

void add_simulated_ranks(CLI::App* verb, SimulateArguments& arguments) {
  begin_group(verb, "Ranks (exactly one of --mesh and --ranks)");
  verb->add_option(
          "--mesh", arguments.mesh,
          "Number of ranks of the axes data, shard, context, tensor and pipeline, such as \"{data: 2, tensor: 4}\"")
      ->type_name("MESH");
  verb->add_option("--ranks", arguments.ranks, "Compare all meshes with this many ranks")
      ->type_name("N")
      ->check(whole_number(1, 65536));
  verb->add_option("--zero", arguments.job.zero_stage,
                   "ZeRO stage from 0 (DDP) to 3. With --ranks, the lowest stage to try [default: 0]")
      ->type_name("STAGE")
      ->check(whole_number(0, 3));
  verb->add_option("--schedule", arguments.job.schedule,
                   "Schedule of pipelines: gpipe, 1f1b, interleaved or zero_bubble [default: 1f1b]")
      ->type_name("NAME");
  verb->add_option("--stages-per-rank", arguments.job.stages_per_rank,
                   "Number of stages per rank of the schedule interleaved [default: 2]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  verb->add_flag("--sequence-parallel", arguments.job.sequence_parallel,
                 "Ranks of the axis tensor also divide norms and dropout");
  verb->add_flag("--async-tensor", arguments.job.async_tensor,
                 "The exchange of the axis tensor overlaps with its matrix multiplications");
  verb->add_flag("--contiguous", arguments.contiguous,
                 "The axis context divides the sequence in contiguous order instead of zig-zag order");
}

}  // namespace

CLI::App* add_simulate(CLI::App& app, SimulateArguments& arguments) {
  CLI::App* verb = app.add_subcommand("simulate", "Predict the time and memory of a training step on a cluster")
                       ->footer(simulate_footer);
  begin_group(verb, "Model and cluster");
  verb->add_option(
      "MODEL", arguments.model,
      "Transformer: a registered name such as gpt2, or a config.json (BERT, DistilBERT, GPT-2, Llama, Mistral, "
      "Qwen2)");
  verb->add_option("--cluster", arguments.cluster, "Description of the cluster (YAML) [default: measure this machine]")
      ->type_name("FILE");
  CLI::Option* measure = verb->add_flag("--measure", arguments.measure,
                                        "Measure this machine, write its description to standard output and exit");
  add_simulated_step(verb, arguments);
  add_simulated_ranks(verb, arguments);
  begin_group(verb, "Output");
  add_json(verb, arguments.json);
  for (CLI::Option* other : verb->get_options()) {
    if (other != measure && other != verb->get_help_ptr()) measure->excludes(other);
  }
  return verb;
}

}  // namespace bellows::cli
