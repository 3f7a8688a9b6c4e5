#include <ATen/ops/empty.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "bellows/runtime/async_queue.h"
#include "bellows/runtime/backends.h"
#include "bellows/runtime/call.h"
#include "bellows/runtime/file_kind.h"
#include "bellows/runtime/openvino_api.h"

namespace bellows::runtime {

namespace {

using ov::Library;

/// An object of OpenVINO, which is released in the destructor.
template <class Object>
using Owned = std::unique_ptr<Object, void (*)(Object*)>;

c10::ScalarType dtype_of(const Library& library, int number, const std::string& what) {
  for (const auto& [one, dtype] : library.dtypes) {
    if (one == number) return dtype;
  }
  TORCH_CHECK_VALUE(false, what, ": OpenVINO's dtype number ", number, " has no dtype of libtorch.");
}

int number_of(const Library& library, c10::ScalarType dtype) {
  for (const auto& [number, one] : library.dtypes) {
    if (one == dtype) return number;
  }
  TORCH_CHECK_VALUE(false, "OpenVINO has no dtype ", dtype, ".");
}

/// A request with the tensors of its current call.
struct OpenvinoRequest {
  Owned<ov::Request> request;
  std::vector<at::Tensor> memory{};  ///< inputs, which the call reads
};

class OpenvinoModel final : public InferenceModel {
 public:
  OpenvinoModel(const Library& library, const std::string& path, const LoadOptions& options)
      : library_(library), path_(path), compiled_(nullptr, library.call.free_compiled) {
    ov::Model* read = nullptr;
    check(call().read_model(library.core, path.c_str(), nullptr, &read));
    const Owned<ov::Model> model(read, call().free_model);
    const std::string device = options.providers.empty() ? "CPU" : options.providers.front();
    const std::string threads = std::to_string(thread_count(options));
    // Without a hint, OpenVINO computes fp32 models in bf16 on some processors.
    const char* const precision = !options.autocast ? "f32" : *options.autocast == at::kHalf ? "f16" : "bf16";
    ov::CompiledModel* compiled = nullptr;
    check(device == "CPU"
              ? call().compile(library.core, read, device.c_str(), 6, &compiled, "PERFORMANCE_HINT", "LATENCY",
                               "INFERENCE_NUM_THREADS", threads.c_str(), "INFERENCE_PRECISION_HINT", precision)
              : call().compile(library.core, read, device.c_str(), 4, &compiled, "PERFORMANCE_HINT", "LATENCY",
                               "INFERENCE_PRECISION_HINT", precision));
    compiled_.reset(compiled);
    read_ports(call().input_count, call().input, "input", inputs_);
    read_ports(call().output_count, call().output, "output", outputs_);
  }

  const std::vector<TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<TensorInfo>& outputs() const override { return outputs_; }

  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) override {
    OpenvinoRequest request = take_request();
    set_inputs(request, inputs);
    check(call().infer(request.request.get()));
    return finish(std::move(request));
  }

  std::future<std::vector<at::Tensor>> run_async(std::vector<at::Tensor> inputs) override {
    auto request = std::make_shared<OpenvinoRequest>(take_request());
    set_inputs(*request, inputs);
    check(call().start(request->request.get()));
    // The thread of the queue only waits. Several requests may run at the same time.
    return queue_.add([this, request] {
      check(call().wait(request->request.get()));
      return finish(std::move(*request));
    });
  }

 private:
  const ov::Functions& call() const { return library_.call; }
  void check(int status) const { library_.check(status, path_); }

  template <class Count, class Port>
  void read_ports(Count count_of, Port port_of, std::string_view kind, std::vector<TensorInfo>& infos) const {
    size_t count = 0;
    check(count_of(compiled_.get(), &count));
    for (size_t i = 0; i < count; ++i) {
      ov::Port* opened = nullptr;
      check(port_of(compiled_.get(), i, &opened));
      const Owned<ov::Port> port(opened, call().free_port);
      TensorInfo info{.name = c10::str(kind, "_", i)};
      char* name = nullptr;
      if (call().port_name(opened, &name) == 0 && name) {
        info.name = name;
        call().free_text(name);
      }
      int number = 0;
      check(call().port_type(opened, &number));
      info.dtype = dtype_of(library_, number, path_ + ": \"" + info.name + "\"");
      ov::PartialShape shape{};
      check(call().port_shape(opened, &shape));
      const bool known = shape.rank.min == shape.rank.max;
      for (int64_t axis = 0; known && axis < shape.rank.max; ++axis)
        info.sizes.push_back(shape.dims[axis].min == shape.dims[axis].max ? shape.dims[axis].min : -1);
      call().free_partial_shape(&shape);
      TORCH_CHECK_VALUE(known || kind == "output", path_, ": input \"", info.name, "\" has no fixed number of axes.");
      infos.push_back(std::move(info));
    }
  }

  /// Returns a request that is not in use.
  OpenvinoRequest take_request() {
    {
      const MutexLock lock(mutex_);
      if (!idle_.empty()) {
        OpenvinoRequest request{std::move(idle_.back())};
        idle_.pop_back();
        return request;
      }
    }
    ov::Request* created = nullptr;
    check(call().create_request(compiled_.get(), &created));
    return {Owned<ov::Request>(created, call().free_request)};
  }

  /// Only inputs that are not row-major are copied.
  void set_inputs(OpenvinoRequest& request, std::span<const at::Tensor> inputs) const {
    check_inputs(path_, inputs_, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      request.memory.push_back(inputs[i].contiguous());
      const at::Tensor& one = request.memory.back();
      std::vector<int64_t> sizes = one.sizes().vec();
      static char nothing = 0;  // OpenVINO accepts no null pointer, not even for empty tensors
      void* const data = one.numel() > 0 ? const_cast<void*>(one.const_data_ptr()) : &nothing;
      ov::Tensor* created = nullptr;
      check(call().create_tensor(number_of(library_, one.scalar_type()),
                                 {static_cast<int64_t>(sizes.size()), sizes.data()}, data, &created));
      const Owned<ov::Tensor> tensor(created, call().free_tensor);
      check(call().set_input(request.request.get(), i, created));
    }
  }

  /// Copies the outputs, whose memory belongs to the request, and keeps the request for other calls.
  std::vector<at::Tensor> finish(OpenvinoRequest request) {
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      ov::Tensor* output = nullptr;
      check(call().get_output(request.request.get(), i, &output));
      const Owned<ov::Tensor> owner(output, call().free_tensor);
      ov::Shape shape{};
      int number = 0;
      void* data = nullptr;
      check(call().tensor_shape(output, &shape));
      const std::vector<int64_t> sizes(shape.dims, shape.dims + shape.rank);
      call().free_shape(&shape);
      check(call().tensor_type(output, &number));
      check(call().tensor_data(output, &data));
      at::Tensor result = at::empty(sizes, dtype_of(library_, number, path_));
      if (result.numel() > 0) std::memcpy(result.mutable_data_ptr(), data, result.nbytes());
      outputs.push_back(std::move(result));
    }
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(request.request));
    return outputs;
  }

  const Library& library_;
  std::string path_;
  Owned<ov::CompiledModel> compiled_;
  std::vector<TensorInfo> inputs_, outputs_;
  Mutex mutex_;
  std::vector<Owned<ov::Request>> idle_ BELLOWS_GUARDED_BY(mutex_);
  AsyncQueue queue_;  ///< last member: it runs calls until it is destroyed
};

class OpenvinoBackend final : public InferenceBackend {
 public:
  explicit OpenvinoBackend(std::string place) : place_(std::move(place)) {}

  std::string name() const override { return "openvino"; }
  std::string missing() const override { return library().missing; }
  std::string version() const override { return library().missing.empty() ? library().version : ""; }
  bool accepts(const std::string& path) const override {
    const FileKind kind = file_kind(path);
    return kind == FileKind::onnx || kind == FileKind::openvino;
  }
  std::unique_ptr<InferenceModel> load(const std::string& path, const LoadOptions& options) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(missing().empty(), missing());
    check_options(name(), options, /*autocast=*/true, /*providers=*/true);
    TORCH_CHECK_VALUE(options.providers.size() <= 1, name(), ": expected one device in `providers`, got ",
                      options.providers.size(), ".");
    check_kind(path, name(), accepts(path));
    return std::make_unique<OpenvinoModel>(library(), path, options);
  }

 private:
  /// The library is loaded when it is first needed. It is never unloaded.
  const Library& library() const {
    std::call_once(once_, [this] { library_ = std::make_unique<const Library>(ov::open_library(place_)); });
    return *library_;
  }

  std::string place_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<const Library>
      library_;  ///< models refer to it, so the back end must exist as long as they do
};

}  // namespace

std::unique_ptr<InferenceBackend> make_openvino_backend(std::string place) {
  return std::make_unique<OpenvinoBackend>(std::move(place));
}

}  // namespace bellows::runtime
