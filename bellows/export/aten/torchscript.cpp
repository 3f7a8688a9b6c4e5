#include "bellows/export/aten/torchscript.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cctype>
#include <unordered_map>
#include <utility>

#include "bellows/system/file.h"

namespace bellows::aten_export {

namespace {

namespace jit = torch::jit;
using export_detail::SizeExpression;

/// A name of a class in TorchScript.
std::string identifier(const std::string& name) {
  std::string result = name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) ? "_" + name : name;
  for (char& one : result) {
    if (!std::isalnum(static_cast<unsigned char>(one))) one = '_';
  }
  return result;
}

/// The modules of a file by their paths, such as "layer1.0".
class ModuleTree {
 public:
  ModuleTree() : unit_(std::make_shared<jit::CompilationUnit>()) { modules_.emplace("", made("Model")); }

  jit::Module& root() { return modules_.at(""); }

  void add(const Weight& weight) {
    const auto [path, name] = divided(weight.name);
    jit::Module& owner = module(path);
    TORCH_CHECK_VALUE(!name.empty() && !owner.hasattr(name), "export_torchscript: the name of the weight \"",
                      weight.name, "\" is empty, used twice, or also the name of a module.");
    const bool trainable = weight.parameter && weight.tensor.is_floating_point();
    owner.register_parameter(name, trainable ? weight.tensor.detach().requires_grad_() : weight.tensor,
                             /*is_buffer=*/!weight.parameter);
  }

  /// Adds the nodes that read a weight.
  jit::Value* read(jit::Graph& graph, jit::Value* self, const std::string& name) {
    jit::Value* value = self;
    size_t begin = 0;
    for (size_t dot = name.find('.'); dot != std::string::npos; begin = dot + 1, dot = name.find('.', begin))
      value = graph.insertGetAttr(value, name.substr(begin, dot - begin));
    return graph.insertGetAttr(value, name.substr(begin));
  }

 private:
  static std::pair<std::string, std::string> divided(const std::string& name) {
    const size_t dot = name.rfind('.');
    return dot == std::string::npos ? std::pair(std::string(), name)
                                    : std::pair(name.substr(0, dot), name.substr(dot + 1));
  }

  jit::Module made(const std::string& name) {
    return {c10::QualifiedName("__torch__.bellows." + name), unit_, /*shouldMangle=*/true};
  }

  jit::Module& module(const std::string& path) {
    const auto known = modules_.find(path);
    if (known != modules_.end()) return known->second;
    const auto [parent_path, name] = divided(path);
    jit::Module& parent = module(parent_path);
    TORCH_CHECK_VALUE(!name.empty() && !parent.hasattr(name), "export_torchscript: the module \"", path,
                      "\" of a weight has an empty name, or the name of another weight.");
    jit::Module child = made(identifier(path));
    parent.register_module(name, child);
    return modules_.emplace(path, child).first->second;
  }

  std::shared_ptr<jit::CompilationUnit> unit_;
  std::unordered_map<std::string, jit::Module> modules_;
};

class GraphWriter {
 public:
  GraphWriter(const AtenGraph& graph, ModuleTree& modules)
      : graph_(graph), modules_(modules), jit_(std::make_shared<jit::Graph>()), values_(graph.values) {}

  std::shared_ptr<jit::Graph> write() {
    jit::Value* self = jit_->addInput("self");
    self->setType(modules_.root().type());
    for (const NamedValue& input : graph_.inputs) {
      jit::Value* value = jit_->addInput(input.name);
      value->setType(c10::TensorType::get());
      values_[index_of(input.value)] = value;
    }
    std::vector<bool> read(graph_.values);
    for (const Call& call : graph_.calls) for_each_read(call, [&](Value value) { read[index_of(value)] = true; });
    for (const NamedValue& output : graph_.outputs) read[index_of(output.value)] = true;
    for (const Weight& weight : graph_.weights) {
      if (read[index_of(weight.value)]) values_[index_of(weight.value)] = modules_.read(*jit_, self, weight.name);
    }
    for (const Weight& constant : graph_.constants)
      values_[index_of(constant.value)] = jit_->insertConstant(constant.tensor);
    for (const Call& call : graph_.calls) add(call);
    add_outputs();
    jit_->lint();
    return jit_;
  }

 private:
  jit::Value* tensor(Value value) { return values_[index_of(value)]; }

  jit::Value* arithmetic(const char* name, jit::Value* a, int64_t b) {
    return arithmetic(name, a, jit_->insertConstant(b));
  }
  jit::Value* arithmetic(const char* name, jit::Value* a, jit::Value* b) {
    jit::Node* node = jit_->insertNode(jit_->create(c10::Symbol::fromQualString(name), {a, b}, 1));
    node->output()->setType(c10::IntType::get());
    return node->output();
  }

  jit::Value* symbol(size_t index) {
    jit::Value*& size = symbols_[index];
    if (size) return size;
    const auto& [input, axis] = graph_.places[index];
    size = arithmetic("aten::size", tensor(graph_.inputs[input].value), axis);
    return size;
  }

  jit::Value* expression(const SizeExpression& one) {
    const bool product = one.form == SizeExpression::Form::product;
    jit::Value* result = nullptr;
    for (const auto& term : one.terms) {
      jit::Value* part = symbol(term.symbol);
      if (!product && term.factor != 1) part = arithmetic("aten::mul", part, term.factor);
      result = result ? arithmetic(product ? "aten::mul" : "aten::add", result, part) : part;
    }
    if (product && one.constant != 1) result = arithmetic("aten::mul", result, one.constant);
    if (!product && one.constant != 0) result = arithmetic("aten::add", result, one.constant);
    if (one.form == SizeExpression::Form::quotient) result = arithmetic("aten::floordiv", result, one.divisor);
    return result;
  }

  jit::Value* size(const SizeFormula& formula) {
    if (formula.constant()) return jit_->insertConstant(formula.factor);
    jit::Value* result = nullptr;
    for (const SizeExpression& part : formula.parts)
      result = result ? arithmetic("aten::mul", result, expression(part)) : expression(part);
    return formula.factor == 1 ? result : arithmetic("aten::mul", result, formula.factor);
  }

  jit::Value* list(const c10::TypePtr& element, const std::vector<jit::Value*>& values) {
    return jit_->insertNode(jit_->createList(element, values))->output();
  }

  jit::Value* tensor_list(const Argument& argument, const c10::TypePtr& element) {
    std::vector<jit::Value*> values;
    for (const Value value : argument.values)
      values.push_back(value == Value::none ? jit_->insertConstant(c10::IValue()) : tensor(value));
    return list(element, values);
  }

  jit::Value* argument(const Argument& one, const c10::Argument& formal) {
    switch (one.kind) {
      case Argument::Kind::constant:
        // TorchScript does not count bool as a number.
        if (one.constant.isBool() && formal.type()->kind() == c10::TypeKind::NumberType)
          return jit_->insertConstant(int64_t{one.constant.toBool()});
        return jit_->insertConstant(one.constant);
      case Argument::Kind::tensor:
        return tensor(one.values[0]);
      case Argument::Kind::tensors:
        return tensor_list(one, formal.type()->expectRef<c10::ListType>().getElementType());
      case Argument::Kind::size:
        return size(one.sizes[0]);
      case Argument::Kind::sizes:
        break;
    }
    std::vector<jit::Value*> values;
    for (const SizeFormula& formula : one.sizes) values.push_back(size(formula));
    return list(c10::IntType::get(), values);
  }

  void add(const Call& call) {
    std::vector<jit::Value*> inputs;
    for (size_t i = 0; i < call.arguments.size(); ++i)
      inputs.push_back(argument(call.arguments[i], call.op.schema().arguments()[i]));
    jit::Node* node = jit_->insertNode(
        jit_->create(c10::Symbol::fromQualString(call.op.schema().name()), inputs, call.results.size()));
    for (size_t i = 0; i < call.results.size(); ++i) {
      const c10::TypePtr& type = call.op.schema().returns()[i].type();
      node->outputs()[i]->setType(type);
      if (type->kind() != c10::TypeKind::ListType) {
        values_[index_of(call.results[i][0])] = node->outputs()[i];
        continue;
      }
      jit::Node* unpacked = jit_->insertNode(jit_->createListUnpack(node->outputs()[i], call.results[i].size()));
      for (size_t k = 0; k < call.results[i].size(); ++k)
        values_[index_of(call.results[i][k])] = unpacked->outputs()[k];
    }
  }

  void add_outputs() {
    std::vector<jit::Value*> outputs;
    for (const NamedValue& output : graph_.outputs) outputs.push_back(tensor(output.value));
    jit_->registerOutput(outputs.size() == 1 ? outputs[0] : jit_->insertNode(jit_->createTuple(outputs))->output());
  }

  const AtenGraph& graph_;
  ModuleTree& modules_;
  std::shared_ptr<jit::Graph> jit_;
  std::vector<jit::Value*> values_;
  std::unordered_map<size_t, jit::Value*> symbols_;
};

}  // namespace

void write_torchscript(const AtenGraph& graph, const std::string& path) {
  ModuleTree modules;
  for (const Weight& weight : graph.weights) modules.add(weight);
  jit::Module& root = modules.root();
  const auto code = GraphWriter(graph, modules).write();
  const c10::QualifiedName name(*root.type()->name(), "forward");
  root.type()->addMethod(root._ivalue()->compilation_unit()->create_function(name, code));
  AtomicFile file(path);
  jit::ExportModule(root, [&](const void* data, size_t size) {
    file.write(std::span(static_cast<const std::byte*>(data), size));
    return size;
  });
  file.commit();
}

std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> load_torchscript(const std::string& path) {
  const auto module = std::make_shared<jit::Module>(jit::load(path));
  return [module](const std::vector<at::Tensor>& inputs) {
    const c10::NoGradGuard no_gradients;
    const c10::IValue result = module->forward({inputs.begin(), inputs.end()});
    if (result.isTensor()) return std::vector<at::Tensor>{result.toTensor()};
    std::vector<at::Tensor> results;
    for (const c10::IValue& one : result.toTupleRef().elements()) results.push_back(one.toTensor());
    return results;
  };
}

}  // namespace bellows::aten_export
