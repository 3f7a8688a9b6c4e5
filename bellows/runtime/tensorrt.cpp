// Compiled only if BELLOWS_TENSORRT is on. It has not run on a GPU yet.
#include <ATen/ops/empty.h>
#include <NvInfer.h>
#include <NvOnnxParser.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "bellows/core/mutex.h"
#include "bellows/runtime/async_queue.h"
#include "bellows/runtime/backends.h"
#include "bellows/runtime/call.h"
#include "bellows/runtime/file_kind.h"

namespace bellows::runtime {

namespace {

/// Sizes of axes that may vary: smallest, usual and largest size of the first axis, and of all other axes.
constexpr int64_t batch_range[] = {1, 8, 64}, other_range[] = {1, 128, 512};

constexpr std::pair<nvinfer1::DataType, c10::ScalarType> trt_dtypes[] = {
    {nvinfer1::DataType::kFLOAT, c10::kFloat},   {nvinfer1::DataType::kHALF, c10::kHalf},
    {nvinfer1::DataType::kINT8, c10::kChar},     {nvinfer1::DataType::kINT32, c10::kInt},
    {nvinfer1::DataType::kBOOL, c10::kBool},     {nvinfer1::DataType::kUINT8, c10::kByte},
    {nvinfer1::DataType::kBF16, c10::kBFloat16}, {nvinfer1::DataType::kINT64, c10::kLong}};

c10::ScalarType dtype_of(nvinfer1::DataType type, const std::string& what) {
  for (const auto& [one, dtype] : trt_dtypes) {
    if (one == type) return dtype;
  }
  TORCH_CHECK_VALUE(false, what, ": TensorRT's dtype number ", static_cast<int>(type), " has no dtype of libtorch.");
}

/// Keeps the last error, which exceptions then state.
class ErrorLogger final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    if (severity > Severity::kERROR) return;
    const MutexLock lock(mutex_);
    last_ = message;
  }
  std::string last() {
    const MutexLock lock(mutex_);
    return last_;
  }

 private:
  Mutex mutex_;
  std::string last_ BELLOWS_GUARDED_BY(mutex_) = "unknown error of TensorRT";
};

ErrorLogger& logger() {
  static auto* const one = new ErrorLogger;  // engines may still use it when the process ends
  return *one;
}

void check(bool succeeded, const std::string& what) {
  TORCH_CHECK_VALUE(succeeded, what, ": ", logger().last());
}

void check(cudaError_t error, const std::string& what) {
  TORCH_CHECK(error == cudaSuccess, what, ": CUDA: ", cudaGetErrorString(error));
}

std::vector<int64_t> sizes_of(const nvinfer1::Dims& dims) {
  return {dims.d, dims.d + std::max<int32_t>(dims.nbDims, 0)};
}

/// Memory of the GPU that only grows.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* reserve(size_t bytes, const std::string& what) {
    if (bytes <= bytes_ && data_) return data_;
    cudaFree(std::exchange(data_, nullptr));
    bytes_ = std::max<size_t>(bytes, 1);
    check(cudaMalloc(&data_, bytes_), what);
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Sets the ranges of the axes that may vary.
void add_profile(nvinfer1::IBuilder& builder, const nvinfer1::INetworkDefinition& network,
                 nvinfer1::IBuilderConfig& config, const std::string& path) {
  nvinfer1::IOptimizationProfile* const profile = builder.createOptimizationProfile();
  check(profile != nullptr, path);
  static constexpr nvinfer1::OptProfileSelector selectors[] = {
      nvinfer1::OptProfileSelector::kMIN, nvinfer1::OptProfileSelector::kOPT, nvinfer1::OptProfileSelector::kMAX};
  for (int32_t i = 0; i < network.getNbInputs(); ++i) {
    const nvinfer1::ITensor* const input = network.getInput(i);
    for (int kind = 0; kind < 3; ++kind) {
      nvinfer1::Dims dims = input->getDimensions();
      for (int32_t axis = 0; axis < dims.nbDims; ++axis) {
        if (dims.d[axis] < 0) dims.d[axis] = axis == 0 ? batch_range[kind] : other_range[kind];
      }
      check(profile->setDimensions(input->getName(), selectors[kind], dims), path);
    }
  }
  check(config.addOptimizationProfile(profile) >= 0, path);
}

std::unique_ptr<nvinfer1::IHostMemory> built_engine(const std::string& path) {
  const std::unique_ptr<nvinfer1::IBuilder> builder(nvinfer1::createInferBuilder(logger()));
  check(builder != nullptr, path);
  const std::unique_ptr<nvinfer1::INetworkDefinition> network(builder->createNetworkV2(0));
  check(network != nullptr, path);
  const std::unique_ptr<nvonnxparser::IParser> parser(nvonnxparser::createParser(*network, logger()));
  check(parser != nullptr, path);
  if (!parser->parseFromFile(path.c_str(), static_cast<int>(nvinfer1::ILogger::Severity::kERROR)))
    TORCH_CHECK_VALUE(false, path, ": ", parser->getNbErrors() > 0 ? parser->getError(0)->desc() : logger().last());
  const std::unique_ptr<nvinfer1::IBuilderConfig> config(builder->createBuilderConfig());
  check(config != nullptr, path);
  add_profile(*builder, *network, *config, path);
  std::unique_ptr<nvinfer1::IHostMemory> engine(builder->buildSerializedNetwork(*network, *config));
  check(engine != nullptr, path);
  return engine;
}

class TensorRtModel final : public InferenceModel {
 public:
  explicit TensorRtModel(const std::string& path) : path_(path) {
    const std::unique_ptr<nvinfer1::IHostMemory> built = built_engine(path);
    runtime_.reset(nvinfer1::createInferRuntime(logger()));
    check(runtime_ != nullptr, path);
    engine_.reset(runtime_->deserializeCudaEngine(built->data(), built->size()));
    check(engine_ != nullptr, path);
    context_.reset(engine_->createExecutionContext());
    check(context_ != nullptr, path);
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      const char* const name = engine_->getIOTensorName(i);
      const bool input = engine_->getTensorIOMode(name) == nvinfer1::TensorIOMode::kINPUT;
      (input ? inputs_ : outputs_)
          .push_back({.name = name,
                      .dtype = dtype_of(engine_->getTensorDataType(name), path + ": \"" + name + "\""),
                      .sizes = sizes_of(engine_->getTensorShape(name))});
    }
    buffers_ = std::vector<DeviceBuffer>(inputs_.size() + outputs_.size());
    check(cudaStreamCreate(&stream_), path);
  }
  ~TensorRtModel() override { cudaStreamDestroy(stream_); }

  const std::vector<TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<TensorInfo>& outputs() const override { return outputs_; }

  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) override {
    check_inputs(path_, inputs_, inputs);
    const MutexLock lock(mutex_);
    std::vector<at::Tensor> memory, results;
    for (size_t i = 0; i < inputs.size(); ++i) memory.push_back(copy_input(i, inputs[i]));
    for (size_t i = 0; i < outputs_.size(); ++i) results.push_back(prepare_output(i));
    check(context_->enqueueV3(stream_), path_);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].numel() == 0) continue;
      void* const device = buffers_[inputs_.size() + i].reserve(results[i].nbytes(), path_);
      check(
          cudaMemcpyAsync(results[i].mutable_data_ptr(), device, results[i].nbytes(), cudaMemcpyDeviceToHost, stream_),
          path_);
    }
    check(cudaStreamSynchronize(stream_), path_);
    return results;
  }

  std::future<std::vector<at::Tensor>> run_async(std::vector<at::Tensor> inputs) override {
    return queue_.add([this, inputs = std::move(inputs)] { return run(inputs); });
  }

 private:
  /// Returns the row-major tensor, which must exist until the copy has ended.
  at::Tensor copy_input(size_t i, const at::Tensor& input) {
    at::Tensor one = input.contiguous();
    const char* const name = inputs_[i].name.c_str();
    nvinfer1::Dims dims{};
    dims.nbDims = static_cast<int32_t>(one.dim());
    std::ranges::copy(one.sizes(), dims.d);
    TORCH_CHECK_VALUE(context_->setInputShape(name, dims), path_, ": input \"", name, "\" of sizes ", one.sizes(),
                      ": expected ", batch_range[0], " to ", batch_range[2], " for axis 0, and ", other_range[0],
                      " to ", other_range[2], " for other axes that may vary.");
    void* const device = buffers_[i].reserve(one.nbytes(), path_);
    check(cudaMemcpyAsync(device, one.const_data_ptr(), one.nbytes(), cudaMemcpyHostToDevice, stream_), path_);
    check(context_->setTensorAddress(name, device), path_);
    return one;
  }

  at::Tensor prepare_output(size_t i) {
    const char* const name = outputs_[i].name.c_str();
    const std::vector<int64_t> sizes = sizes_of(context_->getTensorShape(name));
    TORCH_CHECK_VALUE(std::ranges::all_of(sizes, [](int64_t size) { return size >= 0; }), path_,
                      ": the sizes of output \"", name, "\" depend on values, which is not supported.");
    at::Tensor result = at::empty(sizes, outputs_[i].dtype);
    check(context_->setTensorAddress(name, buffers_[inputs_.size() + i].reserve(result.nbytes(), path_)), path_);
    return result;
  }

  std::string path_;
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  std::vector<TensorInfo> inputs_, outputs_;
  cudaStream_t stream_ = nullptr;
  Mutex mutex_;                        ///< calls run one after another
  std::vector<DeviceBuffer> buffers_;  ///< of the inputs and then of the outputs; used only under the mutex
  AsyncQueue queue_;                   ///< last member: it runs calls until it is destroyed
};

class TensorRtBackend final : public InferenceBackend {
 public:
  std::string name() const override { return "tensorrt"; }
  std::string missing() const override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess) return std::string("TensorRT: CUDA: ") + cudaGetErrorString(error) + ".";
    return devices > 0 ? "" : "TensorRT: there is no GPU.";
  }
  std::string version() const override {
    return c10::str(NV_TENSORRT_MAJOR, ".", NV_TENSORRT_MINOR, ".", NV_TENSORRT_PATCH);
  }
  bool accepts(const std::string& path) const override { return file_kind(path) == FileKind::onnx; }
  std::unique_ptr<InferenceModel> load(const std::string& path, const LoadOptions& options) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(missing().empty(), missing());
    check_options(name(), options);
    check_kind(path, name(), accepts(path));
    return std::make_unique<TensorRtModel>(path);
  }
};

}  // namespace

std::unique_ptr<InferenceBackend> make_tensorrt_backend() {
  return std::make_unique<TensorRtBackend>();
}

}  // namespace bellows::runtime
