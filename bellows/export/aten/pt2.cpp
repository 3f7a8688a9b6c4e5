#include "bellows/export/aten/pt2.h"

#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "bellows/export/aten/pt2_json_impl.h"
#include "bellows/io/archives/zip.h"
#include "bellows/io/hash.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/system/file.h"

namespace bellows::aten_export {

namespace {

/// Writes the tensors of a folder of the archive, and lists them. Tensors that share their elements are written once.
class TensorFolder {
 public:
  TensorFolder(io::ZipWriter& zip, std::string folder, std::string prefix)
      : zip_(zip), folder_(std::move(folder)), prefix_(std::move(prefix)) {}

  void add(const std::string& name, const at::Tensor& given, bool is_parameter) {
    const at::Tensor tensor = stored(given);
    config_[name] = {{"path_name", file_of(tensor)},
                     {"is_param", is_parameter},
                     {"use_pickle", false},
                     {"tensor_meta", pt2_tensor_meta(tensor, is_parameter && tensor.is_floating_point())}};
  }
  std::string config() const { return Json{{"config", config_}}.dump(); }

 private:
  using Identity = std::tuple<const void*, c10::ScalarType, std::vector<int64_t>, std::vector<int64_t>>;

  /// A file holds a whole storage, which readers expect to begin with the first element.
  static at::Tensor stored(const at::Tensor& given) {
    const at::Tensor tensor = given.detach().cpu().resolve_conj().resolve_neg();
    const bool whole = tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
                       tensor.storage().nbytes() >= tensor.nbytes();
    return whole ? tensor : tensor.contiguous().clone();
  }

  std::string file_of(const at::Tensor& tensor) {
    const Identity identity{tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
                            tensor.strides().vec()};
    const bool shares = tensor.numel() > 0;
    if (const auto known = files_.find(identity); shares && known != files_.end()) return known->second;
    const std::string file = prefix_ + std::to_string(count_++);
    zip_.add(folder_ + file, io::ByteSpan(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()));
    if (shares) files_.emplace(identity, file);
    owners_.push_back(tensor);  // so that no other tensor gets the address
    return file;
  }

  io::ZipWriter& zip_;
  const std::string folder_, prefix_;
  std::map<Identity, std::string> files_;
  std::vector<at::Tensor> owners_;
  size_t count_ = 0;
  Json config_ = Json::object();
};

/// The positional and keyword arguments of a call, as torch.save writes them.
std::string sample_bytes(const std::vector<at::Tensor>& inputs, const std::string& path) {
  const io::PickleValue::Sequence tensors(inputs.begin(), inputs.end());
  const std::string file = path + ".sample";
  io::torch_save(file, io::PickleValue::tuple({io::PickleValue::tuple(tensors), io::PickleValue::dict()}));
  const MappedFile mapped(file);
  std::string bytes(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  std::filesystem::remove(file);
  return bytes;
}

/// 40 digits that identify the content.
std::string identity_of(const std::string& json) {
  constexpr size_t digits = 40;
  std::string identity = io::hash_hex("sha1", io::as_bytes(json));
  for (char& one : identity) one = static_cast<char>('0' + one % 10);
  identity.resize(digits, '0');
  return identity;
}

}  // namespace

void write_pt2(const AtenGraph& graph, const std::vector<ValueFacts>& facts, const std::vector<at::Tensor>& sample,
               const std::string& path) {
  const Pt2Program program = pt2_program(graph, facts);
  const std::string json = program.program.dump(), start = std::filesystem::path(path).stem().string() + "/";
  const std::string sample_file = sample_bytes(sample, path);
  io::ZipWriter zip(path);
  zip.add(start + "archive_format", std::string_view("pt2"));
  zip.add(start + "models/model.json", json);
  TensorFolder weights(zip, start + "data/weights/", "weight_");
  for (const Weight& weight : graph.weights) weights.add(weight.name, weight.tensor, weight.parameter);
  zip.add(start + "data/weights/model_weights_config.json", weights.config());
  TensorFolder constants(zip, start + "data/constants/", "tensor_");
  for (size_t i = 0; i < graph.constants.size(); ++i)
    constants.add(program.constant_names[i], graph.constants[i].tensor, false);
  zip.add(start + "data/constants/model_constants_config.json", constants.config());
  zip.add(start + "data/sample_inputs/model.pt", sample_file);
  zip.add(start + "archive_version", std::string_view("0"));
  zip.add(start + "byteorder", std::string_view("little"));
  zip.add(start + ".data/version", std::string_view("6\n"));
  zip.add(start + ".data/serialization_id", identity_of(json));
  zip.close();
}

}  // namespace bellows::aten_export
