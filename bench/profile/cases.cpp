#include "bench/profile/cases.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <torch/nn.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "bellows/core/error.h"
#include "bellows/core/seed.h"
#include "bellows/data/dataset.h"
#include "bellows/train/loss.h"

namespace bellows::bench {

namespace {

using train::Job;
using train::Recipe;
using train::StepOutput;

class SlowSource final : public data::Source {
 public:
  SlowSource(data::SourcePtr source, double milliseconds) : source_(std::move(source)), milliseconds_(milliseconds) {}
  int64_t size() const override { return source_->size(); }
  void read(int64_t index, data::Sample& sample) const override {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds_));
    source_->read(index, sample);
  }
  std::string describe() const override { return "slow samples"; }

 private:
  data::SourcePtr source_;
  double milliseconds_;
};

/// Memory that does not stay resident, like that of a process which swaps: pages of a file, which each step drops from
/// the page cache and reads again.
class SwappedMemory {
 public:
  SwappedMemory(const std::string& folder, int64_t pages) : bytes_(static_cast<size_t>(pages) * page) {
    std::string path = folder + "/bellows-swapped-XXXXXX";
    file_ = ::mkstemp(path.data());
    TORCH_CHECK(file_ >= 0, path, ": cannot create the file: ", errno_message(errno), ".");
    ::unlink(path.c_str());
    const std::string content(bytes_, '1');
    TORCH_CHECK(::write(file_, content.data(), bytes_) == static_cast<ssize_t>(bytes_) && ::fsync(file_) == 0, path,
                ": cannot write the file: ", errno_message(errno), ".");
    memory_ = static_cast<char*>(::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_, 0));
    TORCH_CHECK(memory_ != MAP_FAILED, "cannot map the file: ", errno_message(errno), ".");
    ::madvise(memory_, bytes_, MADV_RANDOM);  // no read-ahead: one fault per page
  }
  ~SwappedMemory() {
    ::munmap(memory_, bytes_);
    ::close(file_);
  }
  SwappedMemory(const SwappedMemory&) = delete;
  SwappedMemory& operator=(const SwappedMemory&) = delete;

  void read_again() const {
    ::madvise(memory_, bytes_, MADV_DONTNEED);
    ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
    volatile char sum = 0;
    for (size_t at = 0; at < bytes_; at += page) sum = static_cast<char>(sum + memory_[at]);
  }

 private:
  static constexpr size_t page = 4096;
  size_t bytes_;
  int file_ = -1;
  char* memory_ = nullptr;
};

Recipe base_recipe(const Options& options, int64_t batch_size) {
  Recipe recipe;
  recipe.data = options.data;
  recipe.eval_split = "none";
  recipe.batch_size = batch_size;
  recipe.num_workers = 0;
  return recipe;
}

/// Calls `work` in the loss of each batch.
Job with_work(Job job, std::function<void(const data::Batch&, const StepOutput&)> work) {
  job.loss = [loss = job.loss, work = std::move(work)](const data::Batch& batch) {
    StepOutput output = loss(batch);
    work(batch, output);
    return output;
  };
  return job;
}

Job job_of_recipe(const Recipe& recipe) {
  return train::make_job(recipe);
}

std::function<Job(const Recipe&)> features(int64_t inputs, int64_t hidden, int64_t layers) {
  return [=](const Recipe& recipe) { return feature_job(recipe, inputs, hidden, layers); };
}

Recipe with_settings(Recipe recipe, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

ProfileCase slow_loader(const Options& options) {
  return {"slow loader", "slow_loader", base_recipe(options, 16), [](const Recipe& recipe) {
            Job job = feature_job(recipe, 64, 64, 2);
            job.train = job.train.with_source(slow_source(job.train.source(), 1));
            return job;
          }};
}

ProfileCase item_in_the_loop(const Options& options) {
  return {"item() in the loop", "synchronizations", base_recipe(options, 16),
          [](const Recipe& recipe) {
            return with_work(feature_job(recipe, 64, 64, 2), [](const data::Batch&, const StepOutput& output) {
              for (int i = 0; i < 16; ++i) output.loss.item<double>();
            });
          },
          features(64, 64, 2)};
}

ProfileCase copy_after_permute(const Options& options) {
  const at::Tensor large = at::ones({1024, 1024});
  const auto job_with = [large](bool copies) {
    return [large, copies](const Recipe& recipe) {
      return with_work(feature_job(recipe, 64, 64, 2), [large, copies](const data::Batch&, const StepOutput&) {
        const at::Tensor turned = large.t();
        (copies ? turned.contiguous() : turned).sum();
      });
    };
  };
  return {"copy after a permutation", "copies_after_permute", base_recipe(options, 16), job_with(true),
          job_with(false)};
}

/// A batch of 32 needs memory that is not resident, and half of it does not.
ProfileCase swapping(const Options& options, const std::string& folder) {
  return {"swapping", "swapping", base_recipe(options, 32), [folder](const Recipe& recipe) {
            const auto memory = std::make_shared<SwappedMemory>(folder, 128);
            return with_work(feature_job(recipe, 64, 64, 2), [memory](const data::Batch& batch, const StepOutput&) {
              if (batch.size() > 16) memory->read_again();
            });
          }};
}

}  // namespace

data::SourcePtr slow_source(data::SourcePtr source, double milliseconds) {
  return std::make_shared<SlowSource>(std::move(source), milliseconds);
}

Job feature_job(const Recipe& recipe, int64_t features, int64_t hidden, int64_t layers) {
  seed_everything(3);
  const at::Tensor x = torch::randn({1024, features});
  const data::Dataset data = data::Dataset(data::from_tensors({{"image", x}, {"label", x.slice(1, 0, 3).argmax(1)}}))
                                 .batch(recipe.batch_size)
                                 .threads(recipe.num_workers)
                                 .prefetch(recipe.prefetch);
  torch::nn::Sequential net;
  for (int64_t layer = 0; layer < layers; ++layer) {
    net->push_back(torch::nn::Linear(layer == 0 ? features : hidden, hidden));
    net->push_back(torch::nn::ReLU());
  }
  net->push_back(torch::nn::Linear(hidden, 3));
  const Model model = Model::of(net, "net");
  return Job{recipe, model, {train::make_optimizer(recipe, model)}, train::cross_entropy_loss(model), data};
}

std::vector<ProfileCase> profile_cases(const Options& options, const std::string& folder) {
  return {
      slow_loader(options),
      item_in_the_loop(options),
      {"tiny batch", "small_batch", base_recipe(options, 2), features(64, 64, 8)},
      {"contiguous convolutions", "contiguous_convolutions",
       with_settings(base_recipe(options, 32), {"model=digits_resnet", "channels_last=false"}), job_of_recipe},
      {"unfused optimizer", "unfused_optimizer",
       with_settings(base_recipe(options, 32), {"optimizer=adamw", "lr=0.001", "optimizer_impl=loop"}),
       features(64, 64, 40)},
      {"needless recomputation", "needless_recomputation",
       with_settings(base_recipe(options, 32), {"model=digits_resnet", "recompute=blocks", "channels_last=true"}),
       job_of_recipe},
      swapping(options, folder),
      {.name = "fp32 where bf16 works",
       .finding = "fp32_matmuls",
       .recipe = base_recipe(options, 128),
       .slow = features(512, 512, 4),
       .setting = "precision=bf16"},
      {"odd sizes", "odd_sizes", base_recipe(options, 32), features(1001, 1001, 3), features(1008, 1008, 3)},
      copy_after_permute(options),
      {"batch of 2 with batch norm", "small_norm_batch",
       with_settings(base_recipe(options, 2), {"model=digits_resnet"}), job_of_recipe},
  };
}

}  // namespace bellows::bench
