#include "bellows/train/teacher/teacher_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include "bellows/checkpoint/rng.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/data/fingerprint.h"
#include "bellows/io/hash.h"
#include "bellows/models/registry.h"
#include "bellows/nn/distillation.h"
#include "bellows/system/file.h"
#include "bellows/system/stop.h"
#include "bellows/train/job.h"
#include "bellows/train/step/batch_placement.h"
#include "bellows/train/teacher/cached_source.h"

namespace bellows::train {

namespace {

constexpr const char* hash_name = "xxh3_128";

/// Waits until no other process or thread computes the same file. The kernel releases the lock when the process ends.
class CacheLock {
 public:
  explicit CacheLock(const std::string& path)
      : fd_(::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
    TORCH_CHECK(fd_ >= 0, "teacher_cache: cannot write ", path, ".lock: ", errno_message(errno),
                ". Choose another folder.");
    LongWait wait("another process that computes " + path);
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        log_warn("teacher_cache: ", path, ".lock cannot be locked: ", errno_message(errno),
                 ". If several ranks start without the file, each of them computes it.");
        return;
      }
      wait_or_close(wait);
    }
    held_ = true;
  }
  ~CacheLock() { ::close(fd_); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

  /// False if the file system does not support locks.
  bool held() const { return held_; }

 private:
  void wait_or_close(LongWait& wait) {
    try {
      wait.sleep(std::chrono::milliseconds(20));
    } catch (...) {
      ::close(fd_);  // the destructor does not run
      throw;
    }
  }

  int fd_;
  bool held_ = false;
};

/// Removes the unfinished files of killed processes. Only the holder of the lock may write such files.
void remove_unfinished(const std::filesystem::path& path) {
  std::error_code error;
  const std::string prefix = path.filename().string() + ".tmp-";
  std::vector<std::filesystem::path> unfinished;
  for (const auto& entry :
       std::filesystem::directory_iterator(path.has_parent_path() ? path.parent_path() : ".", error)) {
    if (entry.path().filename().string().starts_with(prefix)) unfinished.push_back(entry.path());
  }
  for (const auto& file : unfinished) std::filesystem::remove(file, error);
}

std::string file_hash(const std::string& path) {
  return io::hash_hex(hash_name, MappedFile(path).bytes());
}

/// Keys that change the inputs of the teacher.
void add_input_facts(const ResolvedJob& job, CacheFacts& facts) {
  const Recipe& recipe = job.recipe;
  std::error_code error;
  const bool has_file = std::filesystem::is_regular_file(recipe.tokenizer, error);
  facts.emplace_back("input_width", std::to_string(job.input_width()));
  facts.emplace_back("tokenizer", has_file ? file_hash(recipe.tokenizer) : recipe.tokenizer);
  facts.emplace_back("text_field", recipe.text_field);
  facts.emplace_back("max_length", std::to_string(job.max_length()));
  facts.emplace_back("image_size", std::to_string(recipe.image_size));
  facts.emplace_back("features", recipe.features);
  if (job.task.loss == LossKind::next_token) facts.emplace_back("seed", std::to_string(recipe.seed));  // of the rows
}

void check_facts(const CacheFile& cache, const CacheFacts& expected) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : expected) {
    std::string found = "nothing";
    for (const auto& [key, old] : cache.facts()) {
      if (key == name) found = old;
    }
    const bool better = name == "precision" && found == "fp32";  // so that runs in any precision can share a file
    if (found != value && !better)
      differences.push_back(c10::str(name, ": \"", found, "\" in the file, \"", value, "\" now"));
  }
  TORCH_CHECK_VALUE(differences.empty(), "teacher_cache = ", cache.path(),
                    ": the file was computed with other settings (", c10::Join("; ", differences),
                    "). Choose another file, or delete this one, and the next run computes it again.");
}

/// The rows of a batch, from the teacher's outputs [N, C, …] or [N, T, C].
CacheRows rows_of(const at::Tensor& output, const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  if (recipe.teacher_top == 0) return {.logits = output};
  const at::Tensor logits = job.task.per_pixel ? output.movedim(1, -1) : output;
  const nn::TopLogits top = nn::top_logits(logits, recipe.teacher_top, recipe.distill_temperature);
  return {.logits = top.values, .classes = top.indices, .rest = top.rest};
}

/// Runs the teacher once for each sample.
void compute(const ResolvedJob& job, const Distillation& distillation, const data::Dataset& train,
             const CacheFacts& facts) {
  const Recipe& recipe = job.recipe;
  const amp::Policy policy = precision_policy(recipe);
  data::Loader loader = train.sequential().batch(recipe.batch_size).channels_last(recipe.channels_last).loader();
  Progress progress("teacher", train.size(), "samples");
  std::optional<CacheWriter> writer;
  loader.start(0);
  while (auto next = loader.next()) {
    throw_if_stopped("computing the teacher's outputs");
    const data::Batch batch = placed(std::move(*next), recipe, job.device);
    if (batch.size() == 0) continue;
    const auto precision = make_precision_guard(policy, job.device);
    const at::Tensor output = distillation.output(model_inputs(distillation.teacher, batch));
    const CacheRows rows = rows_of(output, job);
    if (!writer) {
      const CacheLayout layout{rows.logits.sizes().slice(1).vec(), rows.logits.scalar_type(), recipe.teacher_top};
      writer.emplace(recipe.teacher_cache, facts, layout);
    }
    writer->add(batch.ids(), rows);
    progress.advance(batch.size());
  }
  TORCH_CHECK_VALUE(writer, "teacher_cache: no training sample could be used. Check the data.");
  writer->finish();
}

}  // namespace

std::string weights_hash(const Model& model) {
  std::string text;
  for (const auto& [name, tensor] : model.state_dict()) {
    const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
    const io::ByteSpan bytes(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes());
    text += c10::str(name, " ", values.scalar_type(), " ", values.sizes(), " ", io::hash_hex(hash_name, bytes), "\n");
  }
  return io::hash_hex(hash_name, io::as_bytes(text));
}

CacheFacts cache_facts(const ResolvedJob& job, const Distillation& distillation, const data::Dataset& train) {
  const Recipe& recipe = job.recipe;
  const bool program = models::is_program_path(recipe.teacher);
  CacheFacts facts{{"teacher", recipe.teacher},
                   {"teacher_weights", distillation.weights_hash + (program ? " " + file_hash(recipe.teacher) : "")},
                   {"teacher_dtype", recipe.teacher_dtype},
                   {"precision", recipe.precision == "fp32" ? "fp32" : recipe.precision + " " + recipe.amp_level},
                   {"data", data::fingerprint(train)},
                   {"outputs", job.task.per_pixel                      ? "pixels"
                               : job.task.loss == LossKind::next_token ? "tokens"
                                                                       : "samples"},
                   {"teacher_top", std::to_string(recipe.teacher_top)}};
  if (recipe.teacher_top > 0) facts.emplace_back("distill_temperature", c10::str(recipe.distill_temperature));
  add_input_facts(job, facts);
  return facts;
}

data::Dataset with_teacher_outputs(const ResolvedJob& job, const Distillation& distillation,
                                   const data::Dataset& train) {
  const std::string& path = job.recipe.teacher_cache;
  const CacheFacts facts = cache_facts(job, distillation, train);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);  // CacheLock reports the error
  if (!std::filesystem::exists(path, error)) {
    const CacheLock lock(path);
    if (!std::filesystem::exists(path, error)) {
      if (lock.held()) remove_unfinished(path);
      const checkpoint::RngGuard restores_generators;
      compute(job, distillation, train, facts);
      log_info("teacher_cache: stored the teacher's outputs for ", train.size(), " samples in ", path, ".");
    }
  }
  const auto cache = std::make_shared<const CacheFile>(path);
  check_facts(*cache, facts);
  return train.with_source(cached_outputs(train.source(), cache));
}

}  // namespace bellows::train
