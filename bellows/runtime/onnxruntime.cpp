#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <utility>

#include "bellows/core/text.h"
#include "bellows/runtime/async_queue.h"
#include "bellows/runtime/backends.h"
#include "bellows/runtime/call.h"
#include "bellows/runtime/file_kind.h"
#include "bellows/runtime/onnxruntime_api.h"

namespace bellows::runtime {

namespace {

using ort::Functions;

/// ONNX Runtime's numbers of dtypes (ONNXTensorElementDataType).
constexpr std::pair<int, c10::ScalarType> ort_dtypes[] = {
    {1, c10::kFloat},  {2, c10::kByte},    {3, c10::kChar},    {5, c10::kShort},         {6, c10::kInt},
    {7, c10::kLong},   {9, c10::kBool},    {10, c10::kHalf},   {11, c10::kDouble},       {16, c10::kBFloat16},
    {4, c10::kUInt16}, {12, c10::kUInt32}, {13, c10::kUInt64}, {14, c10::kComplexFloat}, {15, c10::kComplexDouble}};

c10::ScalarType dtype_of(int type, const std::string& what) {
  for (const auto& [number, dtype] : ort_dtypes) {
    if (number == type) return dtype;
  }
  TORCH_CHECK_VALUE(false, what, ": ONNX Runtime's dtype number ", type,
                    " has no dtype of libtorch. Tensors of texts and of "
                    "4-bit numbers are not supported.");
}

int type_of(c10::ScalarType dtype) {
  for (const auto& [number, one] : ort_dtypes) {
    if (one == dtype) return number;
  }
  TORCH_CHECK_VALUE(false, "ONNX Runtime has no dtype ", dtype, ".");
}

/// The library, and the environment that all sessions share.
class OrtLibrary {
 public:
  explicit OrtLibrary(const std::string& place) : library_(ort::open_library(place)) {}

  const std::string& missing() const { return library_.missing; }
  const std::string& version() const { return library_.version; }
  const Functions& call() const { return library_.call; }

  /// Throws: c10::ValueError with the status' message if it is an error
  void check(ort::Status* status, const std::string& what) const {
    if (!status) return;
    const std::string message = call().error_message(status);
    call().release_status(status);
    TORCH_CHECK_VALUE(false, what, ": ", message);
  }

  const ort::Env* env() {
    std::call_once(once_, [this] {
      // Errors are thrown, so nothing is logged.
      check(call().create_env(ort::log_fatal, "bellows", &env_), "ONNX Runtime");
      check(call().create_cpu_memory_info(ort::arena_allocator, ort::default_memory, &memory_), "ONNX Runtime");
      check(call().default_allocator(&allocator_), "ONNX Runtime");
    });
    return env_;
  }
  ort::Allocator* allocator() const { return allocator_; }
  const ort::MemoryInfo* memory() const { return memory_; }

  std::vector<std::string> providers() const {
    char** names = nullptr;
    int count = 0;
    check(call().available_providers(&names, &count), "ONNX Runtime");
    std::vector<std::string> result(names, names + count);
    check(call().release_available_providers(names, count), "ONNX Runtime");
    return result;
  }

 private:
  ort::Library library_;
  std::once_flag once_;
  ort::Env* env_ = nullptr;  ///< never released: sessions may still exist when the process ends
  ort::MemoryInfo* memory_ = nullptr;
  ort::Allocator* allocator_ = nullptr;
};

/// Options of a session, which are released in the destructor.
class OrtOptions {
 public:
  OrtOptions(const OrtLibrary& library, const std::string& path) : library_(library), path_(path) {
    check(library.call().create_session_options(&options_));
  }
  ~OrtOptions() { library_.call().release_session_options(options_); }
  OrtOptions(const OrtOptions&) = delete;
  OrtOptions& operator=(const OrtOptions&) = delete;

  const ort::SessionOptions* get() const { return options_; }

  void set(int64_t threads) {
    check(library_.call().set_log_severity(options_, ort::log_fatal));
    check(library_.call().set_optimization_level(options_, ort::optimize_all));
    check(library_.call().set_intra_op_threads(options_, static_cast<int>(threads)));
    check(library_.call().set_inter_op_threads(options_, 1));
  }

  void add_provider(const std::string& given) {
    const std::string name = lower_case(given);
    if (name == "cpu") return;
    static constexpr std::pair<const char*, const char*> known[] = {{"openvino", "OpenVINOExecutionProvider"},
                                                                    {"cuda", "CUDAExecutionProvider"},
                                                                    {"tensorrt", "TensorrtExecutionProvider"}};
    const auto* const found = std::ranges::find_if(known, [&](const auto& one) { return name == one.first; });
    TORCH_CHECK_VALUE(found != std::end(known), "unknown execution provider \"", given,
                      "\" of ONNX Runtime. Expected cpu, openvino, cuda or tensorrt.");
    check_available(given, found->second);
    if (name == "openvino") add_openvino();
    if (name == "cuda") add_cuda();
    if (name == "tensorrt") add_tensorrt();
  }

 private:
  void check(ort::Status* status) const { library_.check(status, path_); }

  void check_available(const std::string& name, const std::string& provider) const {
    std::string list;
    for (const std::string& one : library_.providers()) {
      if (one == provider) return;
      list += (list.empty() ? "" : ", ") + one;
    }
    TORCH_CHECK_VALUE(false, "this build of ONNX Runtime has no execution provider ", name, ". It has ", list,
                      ". Install ", name == "openvino" ? "onnxruntime-openvino" : "onnxruntime-gpu",
                      ", and set BELLOWS_ONNXRUNTIME to the folder of its libonnxruntime.so.");
  }

  void add_openvino() {
    const char* const key = "device_type";
    const char* const value = "CPU";
    check(library_.call().append_openvino(options_, &key, &value, 1));
  }

  void add_cuda() {
    ort::CudaOptions* cuda = nullptr;
    check(library_.call().create_cuda_options(&cuda));
    ort::Status* const status = library_.call().append_cuda(options_, cuda);
    library_.call().release_cuda_options(cuda);
    check(status);
  }

  void add_tensorrt() {
    ort::TensorRtOptions* tensorrt = nullptr;
    check(library_.call().create_tensorrt_options(&tensorrt));
    ort::Status* const status = library_.call().append_tensorrt(options_, tensorrt);
    library_.call().release_tensorrt_options(tensorrt);
    check(status);
  }

  const OrtLibrary& library_;
  const std::string& path_;
  ort::SessionOptions* options_ = nullptr;
};

/// The values of a call. The destructor releases them.
struct OrtValues {
  const Functions& call;
  std::vector<ort::Value*> values{};

  explicit OrtValues(const Functions& functions) : call(functions) {}
  OrtValues(const OrtValues&) = delete;
  OrtValues& operator=(const OrtValues&) = delete;
  ~OrtValues() {
    for (ort::Value* value : values) {
      if (value) call.release_value(value);
    }
  }
};

class OrtModel final : public InferenceModel {
 public:
  OrtModel(OrtLibrary& library, const std::string& path, const LoadOptions& options)
      : library_(library),
        path_(path),
        threads_(thread_count(options)),
        session_(nullptr, library.call().release_session) {
    const ort::Env* const env = library.env();
    OrtOptions session_options(library, path);
    session_options.set(threads_);
    for (const std::string& provider : options.providers) session_options.add_provider(provider);
    ort::Session* session = nullptr;
    check(call().create_session(env, path.c_str(), session_options.get(), &session));
    session_.reset(session);
    read_tensors(call().input_count, call().input_name, call().input_type, inputs_);
    read_tensors(call().output_count, call().output_name, call().output_type, outputs_);
    for (const TensorInfo& input : inputs_) input_names_.push_back(input.name.c_str());
    for (const TensorInfo& output : outputs_) output_names_.push_back(output.name.c_str());
  }
  ~OrtModel() override {
    UniqueLock lock(mutex_);
    idle_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return running_ == 0; });
  }

  const std::vector<TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<TensorInfo>& outputs() const override { return outputs_; }

  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) override {
    std::vector<at::Tensor> memory;
    OrtValues given(call()), results(call());
    add_inputs(inputs, memory, given.values);
    results.values.resize(outputs_.size(), nullptr);
    check(call().run(session_.get(), nullptr, input_names_.data(), given.values.data(), given.values.size(),
                     output_names_.data(), output_names_.size(), results.values.data()));
    return take_outputs(results.values);
  }

  std::future<std::vector<at::Tensor>> run_async(std::vector<at::Tensor> inputs) override {
    // Asynchronous calls of ONNX Runtime need a pool of threads, which it creates for two or more threads.
    if (threads_ < 2) return queue_.add([this, inputs = std::move(inputs)] { return run(inputs); });
    auto started = std::make_unique<AsyncCall>(*this);
    add_inputs(inputs, started->memory, started->given.values);
    started->results.values.resize(outputs_.size(), nullptr);
    std::future<std::vector<at::Tensor>> future = started->promise.get_future();
    {
      const MutexLock lock(mutex_);
      ++running_;
    }
    ort::Status* const status = call().run_async(
        session_.get(), nullptr, input_names_.data(), started->given.values.data(), input_names_.size(),
        output_names_.data(), output_names_.size(), started->results.values.data(), finish, started.get());
    if (status) end_call();
    check(status);
    started.release();  // NOLINT(bugprone-unused-return-value): finish() deletes it
    return future;
  }

 private:
  struct AsyncCall {
    explicit AsyncCall(OrtModel& owner) : model(owner), given(owner.call()), results(owner.call()) {}
    OrtModel& model;
    std::vector<at::Tensor> memory{};
    OrtValues given, results;
    std::promise<std::vector<at::Tensor>> promise{};
  };

  /// Called by ONNX Runtime on one of its threads.
  static void finish(void* user, ort::Value**, size_t, ort::Status* status) {
    OrtModel* model = nullptr;
    {
      const std::unique_ptr<AsyncCall> ended(static_cast<AsyncCall*>(user));
      model = &ended->model;
      try {
        model->check(status);
        ended->promise.set_value(model->take_outputs(ended->results.values));
      } catch (...) {
        ended->promise.set_exception(std::current_exception());
      }
    }
    model->end_call();
  }

  void end_call() {
    const MutexLock lock(mutex_);
    --running_;
    idle_.notify_all();
  }

  const Functions& call() const { return library_.call(); }
  void check(ort::Status* status) const { library_.check(status, path_); }

  template <class Count, class Name, class Type>
  void read_tensors(Count count_of, Name name_of, Type type_of_index, std::vector<TensorInfo>& infos) const {
    size_t count = 0;
    check(count_of(session_.get(), &count));
    for (size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      check(name_of(session_.get(), i, library_.allocator(), &name));
      TensorInfo info{.name = name};
      check(call().allocator_free(library_.allocator(), name));
      ort::TypeInfo* type = nullptr;
      check(type_of_index(session_.get(), i, &type));
      const std::unique_ptr<ort::TypeInfo, void (*)(ort::TypeInfo*)> owner(type, call().release_type);
      const ort::TensorInfo* tensor = nullptr;
      check(call().tensor_info_of_type(type, &tensor));
      TORCH_CHECK_VALUE(tensor, path_, ": \"", info.name,
                        "\" is a sequence, map or optional value. Only tensors are supported.");
      read_type(*tensor, info);
      infos.push_back(std::move(info));
    }
  }

  void read_type(const ort::TensorInfo& tensor, TensorInfo& info) const {
    int type = 0;
    size_t dims = 0;
    check(call().element_type(&tensor, &type));
    info.dtype = dtype_of(type, path_ + ": \"" + info.name + "\"");
    check(call().dim_count(&tensor, &dims));
    info.sizes.resize(dims);
    std::vector<const char*> names(dims);
    check(call().dims(&tensor, info.sizes.data(), dims));
    check(call().dim_names(&tensor, names.data(), dims));
    for (size_t i = 0; i < dims; ++i) info.axes.emplace_back(names[i] && info.sizes[i] < 0 ? names[i] : "");
  }

  /// Creates values over the memory of the inputs. Only inputs that are not row-major are copied.
  void add_inputs(std::span<const at::Tensor> inputs, std::vector<at::Tensor>& memory,
                  std::vector<ort::Value*>& values) const {
    check_inputs(path_, inputs_, inputs);
    for (const at::Tensor& input : inputs) {
      memory.push_back(input.contiguous());
      const at::Tensor& one = memory.back();
      static char nothing = 0;  // ONNX Runtime accepts no null pointer, not even for empty tensors
      void* const data = one.numel() > 0 ? const_cast<void*>(one.const_data_ptr()) : &nothing;
      ort::Value* value = nullptr;
      check(call().create_tensor(library_.memory(), data, one.nbytes(), one.sizes().data(), one.sizes().size(),
                                 type_of(one.scalar_type()), &value));
      values.push_back(value);
    }
  }

  /// Returns tensors over the memory of the values, which they own from then on.
  std::vector<at::Tensor> take_outputs(std::vector<ort::Value*>& values) const {
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < values.size(); ++i) {
      ort::TensorInfo* described = nullptr;
      check(call().tensor_info(values[i], &described));
      const std::unique_ptr<ort::TensorInfo, void (*)(ort::TensorInfo*)> owner(described, call().release_tensor_info);
      TensorInfo info{.name = outputs_[i].name};
      int type = 0;
      size_t dims = 0;
      check(call().element_type(described, &type));
      check(call().dim_count(described, &dims));
      info.sizes.resize(dims);
      check(call().dims(described, info.sizes.data(), dims));
      void* data = nullptr;
      check(call().tensor_data(values[i], &data));
      ort::Value* const value = std::exchange(values[i], nullptr);
      outputs.push_back(at::from_blob(
          data, info.sizes, [release = call().release_value, value](void*) { release(value); },
          at::TensorOptions().dtype(dtype_of(type, path_ + ": \"" + info.name + "\""))));
    }
    return outputs;
  }

  OrtLibrary& library_;
  std::string path_;
  int64_t threads_;
  std::unique_ptr<ort::Session, void (*)(ort::Session*)> session_;
  std::vector<TensorInfo> inputs_, outputs_;
  std::vector<const char*> input_names_, output_names_;
  Mutex mutex_;
  ConditionVariable idle_;
  int64_t running_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< asynchronous calls
  AsyncQueue queue_;                                ///< last member: it runs calls until it is destroyed
};

class OrtBackend final : public InferenceBackend {
 public:
  explicit OrtBackend(std::string place) : place_(std::move(place)) {}

  std::string name() const override { return "onnxruntime"; }
  std::string missing() const override { return library().missing(); }
  std::string version() const override { return library().missing().empty() ? library().version() : ""; }
  bool accepts(const std::string& path) const override { return file_kind(path) == FileKind::onnx; }
  std::unique_ptr<InferenceModel> load(const std::string& path, const LoadOptions& options) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(missing().empty(), missing());
    check_options(name(), options, /*autocast=*/false, /*providers=*/true);
    check_kind(path, name(), accepts(path));
    return std::make_unique<OrtModel>(library(), path, options);
  }

 private:
  /// The library is loaded when it is first needed. It is never unloaded.
  OrtLibrary& library() const {
    std::call_once(once_, [this] { library_ = std::make_unique<OrtLibrary>(place_); });
    return *library_;
  }

  std::string place_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<OrtLibrary> library_;  ///< models refer to it, so the back end must exist as long as they do
};

}  // namespace

std::unique_ptr<InferenceBackend> make_onnxruntime_backend(std::string place) {
  return std::make_unique<OrtBackend>(std::move(place));
}

}  // namespace bellows::runtime
