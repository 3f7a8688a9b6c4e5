#include "bellows/data/source.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/data/formats/torch_adapter.h"

namespace bellows::data {

namespace {

class TensorSource final : public Source {
 public:
  using Source::read;

  explicit TensorSource(NamedTensors tensors) : tensors_(std::move(tensors)) {
    TORCH_CHECK_VALUE(!tensors_.empty(), "from_tensors: expected at least one tensor, got none.");
    for (auto& [name, tensor] : tensors_) {
      TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() > 0, "from_tensors: expected \"", name,
                        "\" to have a first dimension that counts samples, got ",
                        tensor.defined() ? "a scalar." : "an undefined tensor.");
      TORCH_CHECK_VALUE(tensor.size(0) == tensors_.front().second.size(0), "from_tensors: \"", name, "\" has ",
                        tensor.size(0), " rows, but \"", tensors_.front().first, "\" has ",
                        tensors_.front().second.size(0), ". All tensors need the same number of rows.");
      tensor = tensor.detach().to(c10::kCPU).contiguous();
    }
  }

  int64_t size() const override { return tensors_.front().second.size(0); }

  void read(int64_t index, Sample& sample) const override {
    sample.clear();
    sample.id = index;
    for (const auto& [name, tensor] : tensors_) {
      Field field = Field::of(name, tensor);
      const size_t row_bytes = field.bytes.size() / static_cast<size_t>(size());
      field.bytes = field.bytes.subspan(static_cast<size_t>(index) * row_bytes, row_bytes);
      field.sizes = field.sizes.slice(1);
      sample.fields.push_back(field);
    }
  }

  std::string describe() const override { return c10::str(size(), " samples in memory"); }
  bool stored() const override { return true; }

 private:
  NamedTensors tensors_;
};

class SubsetSource final : public Source {
 public:
  using Source::read;

  SubsetSource(SourcePtr source, std::vector<int64_t> indices)
      : source_(std::move(source)), indices_(std::move(indices)) {
    for (int64_t index : indices_) {
      TORCH_CHECK_VALUE(index >= 0 && index < source_->size(), "subset: expected indices in [0, ", source_->size(),
                        "), got ", index, " (", source_->describe(), ").");
    }
  }

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  void read(int64_t index, Sample& sample) const override {
    source_->read(indices_[static_cast<size_t>(index)], sample);
  }
  bool prefetch(int64_t index) const override { return source_->prefetch(indices_[static_cast<size_t>(index)]); }
  int64_t id_bound() const override { return source_->id_bound(); }
  std::string describe() const override { return c10::str(size(), " samples of ", source_->describe()); }
  bool stored() const override { return source_->stored(); }

 private:
  SourcePtr source_;
  std::vector<int64_t> indices_;
};

class SubrangeSource final : public Source {
 public:
  using Source::read;

  SubrangeSource(SourcePtr source, int64_t begin, int64_t end) : source_(std::move(source)), begin_(begin), end_(end) {
    TORCH_CHECK_VALUE(0 <= begin && begin <= end && end <= source_->size(),
                      "subrange: expected 0 <= begin <= end <= ", source_->size(), ", got [", begin, ", ", end, ") (",
                      source_->describe(), ").");
  }

  int64_t size() const override { return end_ - begin_; }
  int64_t id_bound() const override { return source_->id_bound(); }
  void read(int64_t index, Sample& sample) const override { source_->read(begin_ + index, sample); }
  bool prefetch(int64_t index) const override { return source_->prefetch(begin_ + index); }
  std::string describe() const override {
    return c10::str("samples [", begin_, ", ", end_, ") of ", source_->describe());
  }
  bool stored() const override { return source_->stored(); }
  std::vector<int64_t> block_starts() const override {
    std::vector<int64_t> starts;
    for (const int64_t start : source_->block_starts()) {
      if (start >= end_) break;
      if (!starts.empty() && start <= begin_) starts.pop_back();  // the previous block ends before the range
      starts.push_back(std::max<int64_t>(start - begin_, 0));
    }
    return starts;
  }

 private:
  SourcePtr source_;
  int64_t begin_, end_;
};

/// Examples that a function creates on demand; each sample owns its tensors.
class ExampleSource final : public Source {
 public:
  using Source::read;

  ExampleSource(int64_t size, std::vector<std::string> names, detail::ReadExample read_example)
      : size_(size), names_(std::move(names)), read_example_(std::move(read_example)) {}

  int64_t size() const override { return size_; }

  void read(int64_t index, Sample& sample) const override {
    sample.clear();
    sample.id = index;
    auto tensors = std::make_shared<std::vector<at::Tensor>>(read_example_(index));
    for (size_t i = 0; i < tensors->size(); ++i) {
      at::Tensor& tensor = (*tensors)[i];
      TORCH_CHECK_VALUE(tensor.defined(), "from_torch_dataset: example ", index, " has an undefined \"", names_[i],
                        "\".");
      if (i == 1 && tensor.dim() == 1 && tensor.size(0) == 1) tensor = tensor.squeeze(0);
      tensor = tensor.detach().to(c10::kCPU).contiguous();
      sample.fields.push_back(Field::of(names_[i], tensor));
    }
    sample.owner = std::move(tensors);
  }

  std::string describe() const override { return c10::str(size_, " examples of a torch::data dataset"); }

 private:
  int64_t size_;
  std::vector<std::string> names_;
  detail::ReadExample read_example_;
};

}  // namespace

SourcePtr from_tensors(NamedTensors tensors) {
  return std::make_shared<TensorSource>(std::move(tensors));
}

SourcePtr subset(SourcePtr source, std::vector<int64_t> indices) {
  return std::make_shared<SubsetSource>(std::move(source), std::move(indices));
}

SourcePtr subrange(SourcePtr source, int64_t begin, int64_t end) {
  return std::make_shared<SubrangeSource>(std::move(source), begin, end);
}

SourcePtr detail::from_examples(int64_t size, std::vector<std::string> names, ReadExample read) {
  return std::make_shared<ExampleSource>(size, std::move(names), std::move(read));
}

}  // namespace bellows::data
