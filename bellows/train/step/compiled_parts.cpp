#include "bellows/train/step/compiled_parts.h"

#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

void call_body(const CompiledParts::Body& body) {
  body();
}

void run(auto& part, const CompiledParts::Body& body) {
  if (part)
    (*part)(body);
  else
    body();
}

}  // namespace

CompiledParts::CompiledParts(const Recipe& recipe) {
  // Always: without the tensors of a batch as arguments, which calls run eagerly would depend on earlier batches.
  if (recipe.compile == "none" || pipeline_ranks(recipe) > 1) return;
  evaluation_.emplace(compile(&call_body, {.always = true}));
  (recipe.compile == "step" ? step_ : forward_)
      .emplace(compile(&call_body, {.always = true, .memory_budget = recipe.memory_budget}));
}

void CompiledParts::step(const Body& body) {
  run(step_, body);
}

void CompiledParts::forward(const Body& body) {
  run(forward_, body);
}

void CompiledParts::evaluation(const Body& body) {
  run(evaluation_, body);
}

bool CompiledParts::ready() const {
  return (!step_ || step_->ready()) && (!forward_ || forward_->ready());
}

CompiledStages::CompiledStages(const Recipe& recipe) {
  if (recipe.compile == "none") return;
  forward_.emplace(compile(&call_body, {.always = true}));
  if (recipe.compile == "step") backward_.emplace(compile(&call_body, {.always = true}));
}

void CompiledStages::forward(const Body& body) {
  run(forward_, body);
}

void CompiledStages::backward(const Body& body) {
  run(backward_, body);
}

std::string compile_conflict(const Recipe& recipe) {
  if (recipe.data_parallel == "dp")
    return "data_parallel = dp runs each replica on a thread of its own, and a compiled function records one thread";
  return recipe.device.starts_with("cpu") ? "" : "code is generated for the CPU only, got device = " + recipe.device;
}

}  // namespace bellows::train
