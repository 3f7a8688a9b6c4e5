#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "bellows/compile/backend.h"
#include "bellows/compile/jit/kernel_library.h"
#include "bellows/core/mutex.h"
#include "bellows/export/program.h"
#include "bellows/export/program_template.h"

namespace bellows::export_detail {

/// All that a program consists of, except kernels.
struct ProgramContent {
  /// Where an input of the program comes from.
  struct Source {
    int argument = -1;       ///< index of the argument; -1 for a weight
    std::string weight{};    ///< name of the weight
    c10::Storage storage{};  ///< of the weight
  };

  ProgramTemplate program{};
  std::vector<Source> sources{};  ///< for each input of the program
  std::vector<ProgramTensor> inputs{}, outputs{};
  /// For each symbol, the input and the axis that have its size.
  std::vector<std::pair<size_t, size_t>> places{};
  std::optional<c10::ScalarType> autocast{};

  /// The content as two texts of JSON, without the data of weights.
  struct Json {
    std::string operators{}, rest{};
  };
  Json to_json() const;
  /// Params: storage_of – returns the storage of a weight
  /// Throws: c10::ValueError or an exception of the JSON library if the JSON is not from to_json()
  static ProgramContent from_json(const Json& json,
                                  const std::function<c10::Storage(const std::string& weight)>& storage_of);
};

/// Runs a program. It is prepared once for each combination of sizes.
/// Threads: thread-safe
class ProgramSession {
 public:
  /// Params: options      – see LoadedProgram
  ///         check_weight – called once for each weight that a prepared program reads in its original order, so that its
  ///                        bytes can be checked; may be empty
  ProgramSession(ProgramContent content, std::shared_ptr<compile_detail::KernelProvider> kernels,
                 const std::shared_ptr<graph::ConstantStore>& constants, const LoadProgramOptions& options,
                 std::function<void(const std::string& weight)> check_weight);
  ~ProgramSession();

  const ProgramContent& content() const { return content_; }
  /// Returns: the results; see LoadedProgram::run()
  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs);
  std::string explain() const { return backend_.to_text(); }

 private:
  struct Instance;
  using Sizes = std::vector<int64_t>;

  /// Returns: the size of each symbol
  void find_sizes(std::span<const at::Tensor> inputs, Sizes& sizes) const;
  void check_input(size_t index, const at::Tensor& input, const Sizes& sizes) const;
  Instance& instance_for(const Sizes& sizes, std::span<const at::Tensor> inputs) BELLOWS_REQUIRES(mutex_);
  std::unique_ptr<Instance> prepared(const Sizes& sizes) BELLOWS_REQUIRES(mutex_);
  void check_weights(const std::vector<size_t>& before) BELLOWS_REQUIRES(mutex_);

  const ProgramContent content_;
  compile_detail::CpuBackend backend_;
  const std::function<void(const std::string& weight)> check_weight_;
  std::set<std::string> checked_ BELLOWS_GUARDED_BY(mutex_);
  Mutex mutex_;
  Sizes sizes_ BELLOWS_GUARDED_BY(mutex_);
  std::map<Sizes, std::unique_ptr<Instance>> instances_ BELLOWS_GUARDED_BY(mutex_);
  Instance* last_ BELLOWS_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace bellows::export_detail
