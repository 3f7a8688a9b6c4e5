#pragma once

#include "bellows/core/log.h"
#include "bellows/tap.h"

#include <ATen/autocast_mode.h>
#include <c10/core/CPUAllocator.h>

#include <torch/torch.h>

#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace bellows::tap::testing {

/// Notes the names of what it sees, and on which threads. Safe from all threads.
struct Notes {
  void add(std::string name) {
    std::lock_guard lock(mutex);
    names.push_back(std::move(name));
    threads.insert(std::this_thread::get_id());
  }
  size_t size() {
    std::lock_guard lock(mutex);
    return names.size();
  }
  size_t count(std::string_view name) {
    std::lock_guard lock(mutex);
    return std::count(names.begin(), names.end(), name);
  }
  bool has(std::string_view name) { return count(name) > 0; }
  size_t thread_count() {
    std::lock_guard lock(mutex);
    return threads.size();
  }

  std::mutex mutex;
  std::vector<std::string> names;
  std::set<std::thread::id> threads;
};

struct NotingObserver : Observer, Notes {
  explicit NotingObserver(ObserverNeeds what = {}) : wanted(what) {}
  ObserverNeeds needs() const override { return wanted; }
  void before(const OpEvent& event) override { add(event.qualified_name()); }
  ObserverNeeds wanted;
};

struct NotingTap : OpTap, Notes {
  void call(const OpCall& op, Stack& stack) override {
    add(op.qualified_name());
    op.next(stack);
  }
};

struct NotingCheck : OpCheck, Notes {
  void check(const OpRef& op, Stack&) override { add(op.qualified_name()); }
};

/// Keeps a copy, of another dtype if one is given.
struct CopyingTap : SavedTensorTap, Notes {
  explicit CopyingTap(std::optional<at::ScalarType> as = {}) : dtype(as) {}
  struct Copy : PackedTensor {
    at::Tensor kept;
    at::Tensor unpack() override { return kept; }
  };
  std::shared_ptr<PackedTensor> pack(const at::Tensor& tensor) override {
    add(c10::str(tensor.sizes()));
    auto copy = std::make_shared<Copy>();
    copy->kept = dtype && tensor.is_floating_point() ? tensor.to(*dtype, false, true) : tensor.clone();
    return copy;
  }
  std::optional<at::ScalarType> dtype;
};

/// Collects what the library logs while it lives.
class LogCapture : public LogSink {
 public:
  static std::shared_ptr<LogCapture> install() {
    auto made = std::make_shared<LogCapture>();
    made->before_ = set_log_sink(made);
    return made;
  }
  void restore() { set_log_sink(std::exchange(before_, nullptr)); }
  void write(LogLevel, std::string_view message) override { text += std::string(message) + "\n"; }
  std::string text;

 private:
  std::shared_ptr<LogSink> before_;
};

/// conv – batch norm – relu – linear: loss and gradients of one step, from fixed seeds.
inline std::vector<at::Tensor> conv_step() {
  torch::manual_seed(7);
  namespace nn = torch::nn;
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                       nn::MaxPool2d(2), nn::Flatten(), nn::Linear(8 * 16, 10), nn::Dropout(0.1));
  const auto x = torch::randn({4, 3, 8, 8});
  const auto y = torch::randint(0, 10, {4});
  const auto loss = nn::functional::cross_entropy(model->forward(x), y);
  loss.backward();
  std::vector<at::Tensor> result{loss.detach()};
  for (const auto& p : model->parameters()) result.push_back(p.grad());
  for (const auto& b : model->buffers()) result.push_back(b.clone());
  return result;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !(a[i].scalar_type() == b[i].scalar_type() && at::equal(a[i], b[i]))) return false;
  }
  return true;
}

/// Its backward runs another backward, `depth` levels deep.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, int64_t depth) {
    ctx->saved_data["depth"] = depth;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const int64_t depth = ctx->saved_data["depth"].toInt();
    if (depth > 0) {
      at::AutoGradMode on(true);
      auto x = torch::full({2}, 3.0, torch::requires_grad());
      Reentrant::apply(x.exp(), depth - 1).sum().backward();
      TORCH_CHECK(x.grad().defined());
    }
    return {grads[0] * 2, at::Tensor()};
  }
};

/// Runs a backward that re-enters itself 150 times: beyond 60 the engine goes on on other threads.
inline at::Tensor reentrant_gradient() {
  auto x = torch::ones({2}, torch::requires_grad());
  Reentrant::apply(x.exp(), 150).sum().backward();
  return x.grad();
}

}  // namespace bellows::tap::testing
