#include "bellows/graph/recording/replay.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "bellows/graph/execution/program_runner.h"
#include "bellows/graph/recording/region.h"

namespace bellows::graph {
namespace {

c10::Storage copy_of(const c10::Storage& storage) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()));
  bytes.set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
  return bytes.clone().storage();
}

/// Keeps the most recent program, and the places of the last run's results.
class Witness : public Backend, public std::enable_shared_from_this<Witness> {
 public:
  std::shared_ptr<Executable> prepare(Program asked, std::span<const c10::Storage> its_inputs) override {
    program = asked;
    inputs.assign(its_inputs.begin(), its_inputs.end());
    unwritten.assign(inputs.size(), {});
    for (const Program::Output& output : program.outputs) {
      if (output.input >= 0) unwritten[output.input] = copy_of(inputs[output.input]);
    }
    return std::make_shared<Run>(shared_from_this(), std::move(asked));
  }
  std::string to_text() const override { return ""; }

  Program program;
  std::vector<c10::Storage> inputs;
  std::vector<c10::Storage> unwritten;  ///< copies of written inputs before the run
  std::vector<const void*> made;        ///< first bytes of the outputs of the last run

 private:
  class Run : public Executable {
   public:
    Run(std::shared_ptr<Witness> witness, Program program)
        : witness_(std::move(witness)), runner_(std::move(program)) {}
    void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
             std::span<c10::Storage> outputs) override {
      runner_.run(inputs, numbers, outputs);
      witness_->made.clear();
      for (const c10::Storage& output : outputs) witness_->made.push_back(output ? output.data() : nullptr);
    }

   private:
    std::shared_ptr<Witness> witness_;
    ProgramRunner runner_;
  };
};

void expect_replayable(const Region& region) {
  const auto recordings = region.recordings();
  TORCH_CHECK_VALUE(!recordings.empty(), "Replay: the function computes nothing.");
  TORCH_CHECK_VALUE(recordings.size() == 1,
                    "Replay: expected a function that calls the same operators in each call, found ", recordings.size(),
                    " different recordings.\n", region.explain().to_text());
  for (size_t i = 0; i < recordings[0].when.size(); ++i) {
    const When when = recordings[0].when[i];
    const OperatorFacts& op = *recordings[0].program.instructions[i].op;
    TORCH_CHECK_VALUE(when != When::flush, "Replay: ", op.name,
                      " needs a value on the host, or is an unknown operator. Replay does not support this.");
    TORCH_CHECK_VALUE(when != When::now || !op.random, "Replay: ", op.name,
                      " draws random numbers, which would be identical in each call.");
  }
}

}  // namespace

struct Replay::State {
  /// The source of a result: an output of the program, one of its inputs, an argument that it does not use, or none of
  /// these.
  struct Place {
    int output = -1, input = -1, argument = -1;
    at::Tensor kept{};
    Geometry geometry{};
  };

  std::vector<Geometry> examples;
  Program program;
  std::vector<int> arguments;      ///< for each input: the argument; -1: it is kept
  std::vector<c10::Storage> kept;  ///< for each input that is not an argument
  std::vector<bool> anew;          ///< of these: the function makes it in each call and then writes it
  std::vector<Place> results;
  std::vector<c10::IValue> numbers;
  std::shared_ptr<Executable> executable;

  std::vector<c10::Storage> inputs(const Tensors& tensors) const {
    std::vector<c10::Storage> result;
    result.reserve(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i] >= 0)
        result.push_back(tensors[arguments[i]].storage());
      else
        result.push_back(anew[i] ? copy_of(kept[i]) : kept[i]);
    }
    return result;
  }

  void find_inputs(const Tensors& tensors, const std::vector<c10::Storage>& inputs) {
    for (const c10::Storage& input : inputs) {
      const auto found = std::find_if(tensors.begin(), tensors.end(),
                                      [&](const at::Tensor& one) { return one.storage().is_alias_of(input); });
      arguments.push_back(found == tensors.end() ? -1 : static_cast<int>(found - tensors.begin()));
      kept.push_back(found == tensors.end() ? input : c10::Storage());
    }
  }

  /// Tensors that a factory made in the function, and that the function writes, are not referenced elsewhere at this
  /// point.
  void find_what_is_made_anew(const std::vector<c10::Storage>& unwritten) {
    for (size_t i = 0; i < kept.size(); ++i) {
      anew.push_back(kept[i] && unwritten[i] && kept[i].use_count() == 1);
      if (anew.back()) kept[i] = unwritten[i];
    }
  }

  void find_results(const Tensors& made, const Tensors& tensors, const Witness& witness) {
    const auto& outputs = witness.made;
    for (const at::Tensor& result : made) {
      TORCH_CHECK_VALUE(result.defined() && is_plain(result), "Replay: expected results that are plain tensors.");
      Place place{.geometry = Geometry::of(result.detach())};
      const void* const data = result.storage().data();
      const auto output = std::find(outputs.begin(), outputs.end(), data);
      const auto argument = std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& one) {
        return one.storage().is_alias_of(result.storage());
      });
      const auto input = std::find_if(witness.inputs.begin(), witness.inputs.end(),
                                      [&](const c10::Storage& one) { return one.is_alias_of(result.storage()); });
      if (input != witness.inputs.end()) place.input = static_cast<int>(input - witness.inputs.begin());
      if (data && output != outputs.end()) place.output = static_cast<int>(output - outputs.begin());
      if (argument != tensors.end()) place.argument = static_cast<int>(argument - tensors.begin());
      if (place.output < 0 && place.input < 0 && place.argument < 0) place.kept = result.detach();
      results.push_back(std::move(place));
    }
  }
};

Replay::Replay(const Function& function, const Tensors& examples, const std::shared_ptr<Backend>& backend)
    : state_(std::make_unique<State>()) {
  for (const at::Tensor& example : examples) {
    TORCH_CHECK_VALUE(example.defined() && is_plain(example), "Replay: expected examples that are plain tensors.");
    const auto shares = [&](const at::Tensor& other) { return other.storage().is_alias_of(example.storage()); };
    TORCH_CHECK_VALUE(std::count_if(examples.begin(), examples.end(), shares) == 1,
                      "Replay: two examples share memory. Clone one of them.");
    state_->examples.push_back(Geometry::of(example));
  }
  const auto witness = std::make_shared<Witness>();
  Region region({.backend = witness});
  Tensors results;
  for (int call = 0; call < 4; ++call) {
    const int64_t followed = region.explain().followed_calls;
    region.run([&] { results = function(examples); });
    if (region.explain().followed_calls > followed) break;
  }
  expect_replayable(region);
  TORCH_CHECK_VALUE(!witness->program.instructions.empty(), "Replay: the function computes nothing.");
  state_->program = witness->program;
  state_->numbers = witness->program.numbers;
  state_->find_inputs(examples, witness->inputs);
  state_->find_results(results, examples, *witness);
  results.clear();
  witness->inputs.clear();
  state_->find_what_is_made_anew(witness->unwritten);
  if (backend)
    state_->executable = backend->prepare(state_->program, state_->inputs(examples));
  else
    state_->executable = std::make_shared<ProgramRunner>(state_->program);
}

Replay::~Replay() = default;

const Program& Replay::program() const {
  return state_->program;
}

Replay::Tensors Replay::operator()(const Tensors& arguments) {
  State& state = *state_;
  TORCH_CHECK_VALUE(arguments.size() == state.examples.size(), "Replay: expected ", state.examples.size(),
                    " tensors, got ", arguments.size(), ".");
  for (size_t i = 0; i < arguments.size(); ++i) {
    TORCH_CHECK_VALUE(arguments[i].defined() && is_plain(arguments[i]) && state.examples[i].fits(arguments[i]),
                      "Replay: argument ", i, ": ",
                      arguments[i].defined() ? state.examples[i].difference(arguments[i]) : "undefined", ".");
  }
  const std::vector<c10::Storage> inputs = state.inputs(arguments);
  std::vector<c10::Storage> let_go = inputs, outputs(state.program.outputs.size());
  state.executable->run(let_go, state.numbers, outputs);
  Tensors results;
  results.reserve(state.results.size());
  for (const State::Place& place : state.results) {
    if (place.kept.defined()) {
      results.push_back(place.kept);
      continue;
    }
    const c10::Storage& there = place.output >= 0  ? outputs[place.output]
                                : place.input >= 0 ? inputs[place.input]
                                                   : arguments[place.argument].storage();
    results.push_back(place.geometry.over(there));
  }
  return results;
}

}  // namespace bellows::graph
