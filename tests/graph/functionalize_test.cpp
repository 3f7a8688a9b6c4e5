#include "bellows/graph/passes/functionalize.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>

#include "bellows/tap/op_tap.h"
#include "tests/graph/kept_programs.h"

namespace bellows::graph::testing {
namespace {

/// Runs the pure forms of a program of one operator beside it, on its inputs.
class PureBackend : public RunnerBackend {
 public:
  std::shared_ptr<Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override {
    pure = program;
    functionalize(pure);
    pure.check();
    computed.clear();
    now.clear();
    for (size_t i = 0; i < inputs.size(); ++i) now[pure.inputs[i]] = inputs[i];
    for (const Instruction& one : pure.instructions) {
      if (!one.op->writes.empty()) continue;
      const at::Tensor result = compute(one);
      now[one.results[0].operands[0].value] = result.storage();
      if (one.updates.size() == 1) computed.push_back(result);
    }
    return RunnerBackend::prepare(std::move(program), inputs);
  }
  graph::Program pure;
  Tensors computed;

 private:
  at::Tensor compute(const Instruction& one) {
    const auto tensor = [&](const Operand& operand) { return operand.geometry.over(now.at(operand.value)); };
    tap::Stack stack;
    for (const auto& argument : one.arguments)
      stack.push_back(argument.is_tensors() ? c10::IValue(tensor(argument.operands[0])) : argument.constant);
    tap::OpCall(*one.op->handle).next(stack);
    return stack[0].toTensor().clone();
  }

  std::map<ValueId, c10::Storage> now;
};

struct Case {
  const char* name;
  std::function<void(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z)> run;
};

const std::vector<Case> cases = {
    {"add", [](auto& x, auto& y, auto&) { x.add_(y, 0.3); }},
    {"add a number", [](auto& x, auto&, auto&) { x.add_(0.3); }},
    {"add a tensor of one number", [](auto& x, auto&, auto&) { x.add_(torch::full({}, 0.7, at::kDouble)); }},
    {"add a row", [](auto& x, auto& y, auto&) { x.add_(y[0]); }},
    {"sub", [](auto& x, auto& y, auto&) { x.sub_(y, 1.7); }},
    {"mul", [](auto& x, auto& y, auto&) { x.mul_(y); }},
    {"mul by a number", [](auto& x, auto&, auto&) { x.mul_(1.0 / 3); }},
    {"div", [](auto& x, auto& y, auto&) { x.div_(y); }},
    {"div by a number", [](auto& x, auto&, auto&) { x.div_(3); }},
    {"addcmul", [](auto& x, auto& y, auto& z) { x.addcmul_(y, z, 0.1); }},
    {"addcdiv", [](auto& x, auto& y, auto& z) { x.addcdiv_(y, z, -0.1); }},
    {"lerp by a number", [](auto& x, auto& y, auto&) { x.lerp_(y, 0.1); }},
    {"lerp", [](auto& x, auto& y, auto& z) { x.lerp_(y, z); }},
    {"copy", [](auto& x, auto& y, auto&) { x.copy_(y); }},
    {"copy of another dtype", [](auto& x, auto& y, auto&) { x.copy_(y.to(at::kLong)); }},
    {"zero", [](auto& x, auto&, auto&) { x.zero_(); }},
    {"fill", [](auto& x, auto&, auto&) { x.fill_(0.3); }},
    {"relu", [](auto& x, auto&, auto&) { x.relu_(); }},
    {"clamp", [](auto& x, auto&, auto&) { x.clamp_(-0.3, 0.4); }},
    {"clamp from below", [](auto& x, auto&, auto&) { x.clamp_min_(0.1); }},
    {"neg", [](auto& x, auto&, auto&) { x.neg_(); }},
    {"sqrt", [](auto& x, auto&, auto&) { x.sqrt_(); }},
    {"rsqrt", [](auto& x, auto&, auto&) { x.rsqrt_(); }},
    {"exp", [](auto& x, auto&, auto&) { x.exp_(); }},
    {"tanh", [](auto& x, auto&, auto&) { x.tanh_(); }},
    {"sigmoid", [](auto& x, auto&, auto&) { x.sigmoid_(); }},
    {"pow", [](auto& x, auto&, auto&) { x.pow_(3); }},
    {"masked_fill", [](auto& x, auto& y, auto&) { x.masked_fill_(y > 0, 0.25); }},
    {"leaky_relu", [](auto& x, auto&, auto&) { at::leaky_relu_(const_cast<at::Tensor&>(x), 0.1); }},
};

/// A tensor that has its elements close together, one that has not, and one that is turned.
std::vector<std::pair<const char*, std::function<at::Tensor(at::ScalarType)>>> layouts() {
  return {{"contiguous",
           [](at::ScalarType dtype) {
             return torch::randn({5, 17}).to(dtype);
           }},
          {"slice",
           [](at::ScalarType dtype) {
             return torch::randn({5, 40}).to(dtype).slice(1, 3, 37, 2);
           }},
          {"transposed", [](at::ScalarType dtype) {
             return torch::randn({17, 5}).to(dtype).t();
           }}};
}

void expect_pure_form_alike(const Case& one, const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
  const auto backend = std::make_shared<PureBackend>();
  graph::Region region({.backend = backend});
  const at::Tensor base = x.clone();
  for (int call = 0; call < 3; ++call) {
    x.copy_(base);
    region.run([&] { one.run(x, y, z); });
  }
  const auto written = [](const Instruction& instruction) { return !instruction.op->writes.empty(); };
  EXPECT_EQ(std::count_if(backend->pure.instructions.begin(), backend->pure.instructions.end(), written), 0)
      << backend->pure.to_text();
  ASSERT_EQ(backend->computed.size(), 1u) << backend->pure.to_text();
  EXPECT_EQ(backend->computed[0].scalar_type(), x.scalar_type());
  const at::Tensor got = x.contiguous(), pure = backend->computed[0].contiguous();
  EXPECT_TRUE(same_bits(pure, got)) << backend->pure.to_text();
}

TEST(Functionalize, PureOperatorsGiveTheSameBits) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto& [layout, make] : layouts()) {
      for (const Case& one : cases) {
        if (one.name == std::string("copy of another dtype")) continue;  // a cast comes first
        if (one.name == std::string("mul by a number") && at::isReducedFloatingType(dtype)) continue;
        SCOPED_TRACE(c10::str(one.name, " ", dtype, " ", layout));
        torch::manual_seed(1);
        const at::Tensor mask_or_y = make(dtype);
        expect_pure_form_alike(one, make(dtype), mask_or_y, make(dtype));
      }
    }
  }
}

struct ListCase {
  const char* name;
  std::function<void(const Tensors& x, const Tensors& y)> run;
};

const std::vector<ListCase>& list_cases() {
  static const std::vector<ListCase> all = {
      {"add", [](auto& x, auto& y) { at::_foreach_add_(x, y, 0.3); }},
      {"add a number", [](auto& x, auto&) { at::_foreach_add_(x, 0.3); }},
      {"mul by numbers",
       [](auto& x, auto&) {
         at::_foreach_mul_(x, std::vector<at::Scalar>{0.1, 0.2, 3});
       }},
      {"addcdiv", [](auto& x, auto& y) { at::_foreach_addcdiv_(x, y, y, 0.5); }},
      {"addcmul",
       [](auto& x, auto& y) {
         at::_foreach_addcmul_(x, y, y, std::vector<at::Scalar>{0.1, 0.2, 3});
       }},
      {"lerp", [](auto& x, auto& y) { at::_foreach_lerp_(x, y, 0.1); }},
      {"sqrt", [](auto& x, auto&) { at::_foreach_sqrt_(x); }},
      {"zero", [](auto& x, auto&) { at::_foreach_zero_(x); }},
      {"copy", [](auto& x, auto& y) { at::_foreach_copy_(x, y); }},
      {"of each other", [](auto& x, auto&) {
         at::_foreach_add_(Tensors{x[0], x[0].t()}, Tensors{x[0].t() * 2, x[0] * 3});
       }}};
  return all;
}

Program program_of_list(const ListCase& one) {
  const Tensors x{torch::randn({3, 3}), torch::randn({5}), torch::randn({})};
  const Tensors y{torch::rand({3, 3}) + 1, torch::rand({5}) + 1, torch::rand({}) + 1};
  return {[=](int) -> Tensors {
            one.run(x, y);
            return {};
          },
          [=] { return x; }};
}

TEST(Functionalize, ListsBecomeSingleOperators) {
  for (const ListCase& one : list_cases()) {
    SCOPED_TRACE(one.name);
    const auto make = [&] { return program_of_list(one); };
    const Tensors plain = outcome(make, 3, nullptr);
    Region region({.backend = std::make_shared<RunnerBackend>()});
    EXPECT_EQ(first_difference(plain, outcome(make, 3, &region)), -1);
    const Program program = make();
    graph::Program lists_gone = program_of([&] { program.body(0); });
    functionalize(lists_gone);
    lists_gone.check();
    for (const Instruction& instruction : lists_gone.instructions) {
      const bool overlapping = one.name == std::string("of each other");
      EXPECT_TRUE(overlapping || instruction.op->name.find("_foreach") == std::string::npos) << lists_gone.to_text();
    }
  }
}

TEST(Functionalize, AListThatIsMadeBecomesSingleOperators) {
  const Tensors x{torch::randn({3}), torch::randn({5})};
  Tensors kept;
  graph::Program pure = program_of([&] { kept = at::_foreach_mul(x, 2); });
  functionalize(pure);
  ASSERT_EQ(pure.instructions.size(), 2u) << pure.to_text();
  EXPECT_EQ(pure.instructions[1].op->name, "aten::mul.Scalar");
}

TEST(Functionalize, WhereDtypeOrBitsWouldDifferOperatorsStay) {
  const at::Tensor half = torch::ones({4}, at::kHalf), single = torch::ones({4}), whole = torch::ones({4}, at::kLong);
  graph::Program program = program_of([&] {
    half.add_(single);
    whole.mul_(2);
    single.add_(half);
    half.mul_(1.0 / 3);  // mul would not round the number to 16 bits first
  });
  functionalize(program);
  for (const Instruction& one : program.instructions) EXPECT_EQ(one.op->writes.size(), 1u) << one.op->name;
}

}  // namespace
}  // namespace bellows::graph::testing
