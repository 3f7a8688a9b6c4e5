#include "bellows/io/tensors/unpickler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace bellows::io {

namespace {

constexpr int kMaxDepth = 256;

/// The pickle machine: a stack of values, a stack of marks, a memo.
class Unpickler {
 public:
  using Load = std::function<PickleValue(const PickleValue&)>;
  Unpickler(ByteSpan bytes, const std::string& where, const Load& load) : bytes_(bytes), where_(where), load_(load) {}
  ~Unpickler() {
    // Containers of a broken pickle may refer to each other in rings or in chains too deep to be destroyed one inside
    // the other.
    if (!finished_) {
      for (PickleValue& container : containers_) container.clear();
    }
  }

  PickleValue run() {
    for (;;) {
      const size_t at = position_;
      try {
        const auto code = static_cast<unsigned char>(*take(1).data());
        if (code == '.') return finish();
        TORCH_CHECK_VALUE(load_atom(code) || load_container(code) || load_memo(code) || load_object(code), "opcode ",
                          static_cast<int>(code), " is not one that torch.save writes");
      } catch (const c10::Error& error) {
        TORCH_CHECK_VALUE(false, where_, ": byte ", at, " of the pickle: ", error.what_without_backtrace());
      }
    }
  }

 private:
  ByteSpan take(size_t count) {
    TORCH_CHECK_VALUE(count <= bytes_.size() - position_, "truncated: expected ", count, " more bytes, found ",
                      bytes_.size() - position_);
    position_ += count;
    return bytes_.subspan(position_ - count, count);
  }
  template <class T>
  T number() {
    return load_little<T>(take(sizeof(T)));
  }
  std::string line() {
    const std::string_view rest = as_text(bytes_.subspan(position_));
    const size_t end = rest.find('\n');
    TORCH_CHECK_VALUE(end != std::string_view::npos && end < 1024,
                      "truncated: expected a name that ends in a new line");
    position_ += end + 1;
    return std::string(rest.substr(0, end));
  }
  std::string text(uint64_t length) { return std::string(as_text(take(length))); }

  void push(PickleValue value) { stack_.push_back(std::move(value)); }
  void push_container(PickleValue value) {
    containers_.push_back(value);
    push(std::move(value));
  }
  PickleValue pop() {
    TORCH_CHECK_VALUE(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "corrupt: the stack is empty");
    PickleValue value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    TORCH_CHECK_VALUE(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "corrupt: the stack is empty");
    return stack_.back();
  }
  PickleValue::Sequence pop_to_mark() {
    TORCH_CHECK_VALUE(!marks_.empty() && marks_.back() <= stack_.size(), "corrupt: no mark on the stack");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    PickleValue::Sequence values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }
  PickleValue::Sequence pop_many(size_t count) {
    PickleValue::Sequence values(count);
    for (size_t i = count; i-- > 0;) values[i] = pop();
    return values;
  }

  bool load_atom(unsigned char code);
  bool load_text(unsigned char code);
  bool load_container(unsigned char code);
  bool load_memo(unsigned char code);
  bool load_object(unsigned char code);
  PickleValue integer(ByteSpan digits) const;
  void set_items(PickleValue::Sequence values);
  void build();
  PickleValue call(const PickleValue& function, const PickleValue& arguments);
  PickleValue finish();
  void check_shape(const PickleValue& value, int depth, bool in_result);

  ByteSpan bytes_;
  const std::string& where_;
  const Load& load_;
  size_t position_ = 0;
  PickleValue::Sequence stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, PickleValue> memo_;
  PickleValue::Sequence containers_;
  std::unordered_map<const void*, int> depth_below_;  // of a container; -1 while it is being walked
  size_t called_bytes_ = 0;
  bool finished_ = false;
};

/// Two's complement, lowest byte first.
PickleValue Unpickler::integer(ByteSpan digits) const {
  TORCH_CHECK_VALUE(digits.size() <= 8, "an int of ", digits.size(), " bytes does not fit into 64 bits");
  uint64_t value = 0;
  for (size_t i = 0; i < digits.size(); ++i) value |= std::to_integer<uint64_t>(digits[i]) << (8 * i);
  const bool negative = !digits.empty() && (digits.back() & std::byte{0x80}) != std::byte{0};
  if (negative && digits.size() < 8) value |= ~uint64_t{0} << (8 * digits.size());
  return static_cast<int64_t>(value);
}

bool Unpickler::load_atom(unsigned char code) {
  switch (code) {
    case 0x80: {  // PROTO
      const int protocol = number<uint8_t>();
      TORCH_CHECK_VALUE(protocol >= 2 && protocol <= 5, "pickle protocol ", protocol, "; 2 to 5 are understood");
      return true;
    }
    case 0x95:  // FRAME: only a hint for reading ahead
      take(8);
      return true;
    case 'N':
      return push({}), true;
    case 0x88:
      return push(true), true;
    case 0x89:
      return push(false), true;
    case 'J':
      return push(integer(take(4))), true;
    case 'K':
      return push(static_cast<int64_t>(number<uint8_t>())), true;
    case 'M':
      return push(static_cast<int64_t>(number<uint16_t>())), true;
    case 0x8a:
      return push(integer(take(number<uint8_t>()))), true;
    case 'G': {  // big-endian
      uint64_t bits = 0;
      for (const std::byte b : take(8)) bits = bits << 8 | std::to_integer<uint64_t>(b);
      return push(std::bit_cast<double>(bits)), true;
    }
    default:
      return load_text(code);
  }
}

bool Unpickler::load_text(unsigned char code) {
  switch (code) {
    case 'X':
      return push(text(number<uint32_t>())), true;
    case 0x8c:
    case 'U':  // a str of Python 2
      return push(text(number<uint8_t>())), true;
    case 'T':
      return push(text(number<uint32_t>())), true;
    case 0x8d:
      return push(text(number<uint64_t>())), true;
    case 'B':
      return push(PickleValue::bytes(text(number<uint32_t>()))), true;
    case 'C':
      return push(PickleValue::bytes(text(number<uint8_t>()))), true;
    case 0x8e:
      return push(PickleValue::bytes(text(number<uint64_t>()))), true;
    default:
      return false;
  }
}

bool Unpickler::load_container(unsigned char code) {
  switch (code) {
    case '(':
      return marks_.push_back(stack_.size()), true;
    case '}':
      return push_container(PickleValue::dict()), true;
    case ']':
    case 0x8f:  // a set, read as a list
      return push_container(PickleValue::list()), true;
    case ')':
      return push(PickleValue::tuple()), true;
    case 't':
      return push_container(PickleValue::tuple(pop_to_mark())), true;
    case 0x85:
    case 0x86:
    case 0x87:
      return push_container(PickleValue::tuple(pop_many(code - 0x84U))), true;
    case 'l':
      return push_container(PickleValue::list(pop_to_mark())), true;
    case 'd': {
      PickleValue::Sequence values = pop_to_mark();
      push_container(PickleValue::dict());
      return set_items(std::move(values)), true;
    }
    case 'a': {
      PickleValue value = pop();
      return top().push_back(std::move(value)), true;
    }
    case 'e':
    case 0x90:
      for (PickleValue::Sequence values = pop_to_mark(); PickleValue & value : values)
        top().push_back(std::move(value));
      return true;
    case 's':
      return set_items(pop_many(2)), true;
    case 'u':
      return set_items(pop_to_mark()), true;
    default:
      return false;
  }
}

void Unpickler::set_items(PickleValue::Sequence values) {
  TORCH_CHECK_VALUE(values.size() % 2 == 0, "corrupt: a key without a value");
  for (size_t i = 0; i < values.size(); i += 2) top().set(values[i], std::move(values[i + 1]));
}

bool Unpickler::load_memo(unsigned char code) {
  const auto get = [&](uint32_t index) {
    const auto found = memo_.find(index);
    TORCH_CHECK_VALUE(found != memo_.end(), "corrupt: nothing was remembered under number ", index);
    push(found->second);
    return true;
  };
  switch (code) {
    case 'q':
      return memo_[number<uint8_t>()] = top(), true;
    case 'r':
      return memo_[number<uint32_t>()] = top(), true;
    case 0x94:
      return memo_[static_cast<uint32_t>(memo_.size())] = top(), true;
    case 'h':
      return get(number<uint8_t>());
    case 'j':
      return get(number<uint32_t>());
    case '0':
      return pop(), true;
    case '1':
      return pop_to_mark(), true;
    default:
      return false;
  }
}

bool Unpickler::load_object(unsigned char code) {
  switch (code) {
    case 'c': {
      const std::string module = line();
      return push(resolve_pickle_global(module, line())), true;
    }
    case 0x93: {
      const PickleValue::Sequence names = pop_many(2);
      return push(resolve_pickle_global(names[0].as_string(), names[1].as_string())), true;
    }
    case 'Q':
      return push(load_(pop())), true;
    case 'R':
    case 0x81: {
      const PickleValue::Sequence parts = pop_many(2);
      return push_container(call(parts[0], parts[1])), true;
    }
    case 'b':
      return build(), true;
    default:
      return false;
  }
}

PickleValue Unpickler::call(const PickleValue& function, const PickleValue& arguments) {
  PickleValue result = call_pickle_global(function, arguments);
  // What a call copies stands in the pickle; more in all means that a little is copied over and over to fill the
  // memory.
  if (result.is_dict()) called_bytes_ += result.size();
  if (result.kind() == PickleValue::Kind::bytes) called_bytes_ += result.as_string().size();
  TORCH_CHECK_VALUE(called_bytes_ <= bytes_.size(), "corrupt: calls produce more than the pickle has");
  return result;
}

/// Attributes of an object. An OrderedDict's (a state dict's `_metadata`, versions of modules) are not kept.
void Unpickler::build() {
  const PickleValue state = pop();
  TORCH_CHECK_VALUE(top().is_dict() || top().is_tensor(), "attributes are set on ", top().describe(),
                    "; only tensors and plain containers are understood");
}

PickleValue Unpickler::finish() {
  PickleValue result = pop();
  TORCH_CHECK_VALUE(stack_.empty() && marks_.empty(), "corrupt: values are left on the stack at the end");
  check_shape(result, 0, true);
  // What the result does not hold may still be a ring.
  for (const PickleValue& container : containers_) check_shape(container, 0, false);
  finished_ = true;
  return result;
}

/// No rings, no chains too deep to be walked or destroyed by recursion and, in the result, nothing but data.
void Unpickler::check_shape(const PickleValue& value, int depth, bool in_result) {
  TORCH_CHECK_VALUE(depth < kMaxDepth, "containers are nested deeper than ", kMaxDepth);
  if (in_result && value.as_opaque()) {
    const auto* global = dynamic_cast<const PickleGlobal*>(value.as_opaque());
    TORCH_CHECK_VALUE(false, "expected data, found ",
                      global ? "the class or function " + global->name : "a bare storage");
  }
  const void* identity = value.identity();
  if (!identity) return;
  const auto [place, is_new] = depth_below_.emplace(identity, -1);
  if (!is_new) {
    TORCH_CHECK_VALUE(place->second >= 0, "a container contains itself");
    TORCH_CHECK_VALUE(depth + place->second < kMaxDepth, "containers are nested deeper than ", kMaxDepth);
    return;
  }
  int below = 0;
  const auto visit = [&](const PickleValue& child) {
    check_shape(child, depth + 1, in_result);
    const auto found = depth_below_.find(child.identity());
    if (found != depth_below_.end()) below = std::max(below, found->second + 1);
  };
  if (value.is_dict()) {
    for (const auto& [key, child] : value.items()) visit(key), visit(child);
  } else {
    for (const PickleValue& child : value.elements()) visit(child);
  }
  depth_below_[identity] = below;
}

}  // namespace

PickleValue unpickle(ByteSpan bytes, const std::string& where,
                     const std::function<PickleValue(const PickleValue& id)>& persistent_load) {
  return Unpickler(bytes, where, persistent_load).run();
}

}  // namespace bellows::io
