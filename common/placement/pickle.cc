// SPDX-License-Identifier: Apache-2.0
#include "common/placement/pickle.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/base/status.h"
#include "common/placement/byte_reader.h"

namespace kt {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kBytesMax = size_t{16} << 20;

// One pass over the instructions; values are only ever added, so indices stay valid and every
// instruction costs at most what it takes from the stack.
class Machine {
 public:
  explicit Machine(std::span<const uint8_t> bytes) : in_(bytes) {}

  // The value that is left at the end.
  absl::StatusOr<size_t> Run() {
    while (in_.left() > 0) {
      const uint8_t op = in_.Read<uint8_t>();
      if (op == '.') {
        if (stack_.size() != 1) return Broken("ends with another number of values than one");
        return stack_[0];
      }
      KT_RETURN_IF_ERROR(Execute(op));
      if (!in_.ok()) break;
    }
    return Broken("is cut short");
  }

  std::vector<PickleValue> values;

 private:
  static absl::Status Broken(const char* what) { return InvalidArgument("pickle: {}", what); }

  void Push(PickleValue value) {
    stack_.push_back(values.size());
    values.push_back(std::move(value));
  }
  void PushInt(int64_t number) { Push({.kind = Kind::kInt, .number = number}); }
  void PushText(uint64_t bytes) { Push({.kind = Kind::kText, .text = in_.Text(bytes)}); }

  std::string Line() {
    std::string line;
    for (char c; in_.left() > 0 && (c = static_cast<char>(in_.Read<uint8_t>())) != '\n';) line += c;
    return line;
  }

  // The last `count` values of the stack in the place of one.
  absl::Status Group(Kind kind, size_t count) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor || stack_.size() - floor < count)
      return Broken("takes more values than there are");
    PickleValue value{.kind = kind};
    value.items.assign(stack_.end() - static_cast<int64_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    Push(std::move(value));
    return absl::OkStatus();
  }

  // Moves what lies on the stack from `first` on to the sequence or dict below it.
  absl::Status AddItems(Kind kind, size_t first) {
    if (first == 0 || first > stack_.size()) return Broken("adds items to nothing");
    PickleValue& target = values[stack_[first - 1]];
    if (target.kind != kind || (kind == Kind::kDict && (stack_.size() - first) % 2 != 0))
      return Broken("adds items to another kind of value");
    target.items.insert(target.items.end(), stack_.begin() + static_cast<int64_t>(first),
                        stack_.end());
    stack_.resize(first);
    return absl::OkStatus();
  }

  absl::Status PopMark(size_t* mark) {
    if (marks_.empty()) return Broken("has no mark");
    *mark = marks_.back();
    marks_.pop_back();
    if (*mark > stack_.size()) return Broken("took values from below a mark");
    return absl::OkStatus();
  }

  absl::Status Remember(uint32_t slot) {
    if (stack_.empty()) return Broken("remembers nothing");
    memo_[slot] = stack_.back();
    return absl::OkStatus();
  }

  absl::Status Recall(uint32_t slot) {
    const auto it = memo_.find(slot);
    if (it == memo_.end()) return Broken("recalls what was not remembered");
    stack_.push_back(it->second);
    return absl::OkStatus();
  }

  absl::Status Execute(uint8_t op) {
    size_t mark = 0;
    switch (op) {
      case 0x80:  // PROTO
        if (in_.Read<uint8_t>() > 5) return Broken("has a protocol above 5");
        return absl::OkStatus();
      case 'N':
        Push({});
        return absl::OkStatus();
      case 0x88:  // NEWTRUE, NEWFALSE
      case 0x89:
        PushInt(op == 0x88);
        return absl::OkStatus();
      case 'K':
        PushInt(in_.Read<uint8_t>());
        return absl::OkStatus();
      case 'M':
        PushInt(in_.Read<uint16_t>());
        return absl::OkStatus();
      case 'J':
        PushInt(in_.Read<int32_t>());
        return absl::OkStatus();
      case 0x8a:  // LONG1
        return Long(in_.Read<uint8_t>());
      case 'G':
        in_.Take(8);
        Push({.kind = Kind::kFloat});
        return absl::OkStatus();
      case 'X':
        PushText(in_.Read<uint32_t>());
        return absl::OkStatus();
      case 0x8c:  // SHORT_BINUNICODE
        PushText(in_.Read<uint8_t>());
        return absl::OkStatus();
      case '}':
        return Group(Kind::kDict, 0);
      case ']':
      case ')':
        return Group(Kind::kSequence, 0);
      case 0x85:  // TUPLE1, TUPLE2, TUPLE3
      case 0x86:
      case 0x87:
        return Group(Kind::kSequence, op - 0x84u);
      case '(':
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case 't':
        KT_RETURN_IF_ERROR(PopMark(&mark));
        return Group(Kind::kSequence, stack_.size() - mark);
      case 'a':
        return AddItems(Kind::kSequence, stack_.size() - std::min<size_t>(stack_.size(), 1));
      case 'e':
        KT_RETURN_IF_ERROR(PopMark(&mark));
        return AddItems(Kind::kSequence, mark);
      case 's':
        return AddItems(Kind::kDict, stack_.size() - std::min<size_t>(stack_.size(), 2));
      case 'u':
        KT_RETURN_IF_ERROR(PopMark(&mark));
        return AddItems(Kind::kDict, mark);
      case 'q':
        return Remember(in_.Read<uint8_t>());
      case 'r':
        return Remember(in_.Read<uint32_t>());
      case 'h':
        return Recall(in_.Read<uint8_t>());
      case 'j':
        return Recall(in_.Read<uint32_t>());
      case 'c': {
        std::string module = Line();
        Push({.kind = Kind::kName, .text = module + "." + Line()});
        return absl::OkStatus();
      }
      case 'R':
        return Group(Kind::kCall, 2);
      case 'Q':
        return Group(Kind::kPersistentId, 1);
      default:
        return InvalidArgument("pickle: instruction 0x{:02x} is none of plain data", op);
    }
  }

  absl::Status Long(size_t bytes) {
    if (bytes > 8) return Broken("has a number of more than 64 bits");
    uint64_t value = 0;
    const std::span<const uint8_t> digits = in_.Take(bytes);
    for (size_t i = 0; i < digits.size(); ++i) value |= uint64_t{digits[i]} << (8 * i);
    if (!digits.empty() && digits.size() < 8 && digits.back() >= 0x80)
      value |= ~uint64_t{0} << (8 * digits.size());
    PushInt(static_cast<int64_t>(value));
    return absl::OkStatus();
  }

  ByteReader in_;
  std::vector<size_t> stack_, marks_;  // marks: sizes of the stack
  std::unordered_map<uint32_t, size_t> memo_;
};

}  // namespace

absl::StatusOr<Pickle> Pickle::Parse(std::span<const uint8_t> bytes) {
  if (bytes.size() > kBytesMax)
    return InvalidArgument("pickle: {} bytes, at most {} are read", bytes.size(), kBytesMax);
  Machine machine(bytes);
  Pickle pickle;
  KT_ASSIGN_OR_RETURN(pickle.root_, machine.Run());
  pickle.values_ = std::move(machine.values);
  return pickle;
}

const PickleValue* Pickle::Find(const PickleValue& dict, std::string_view key) const {
  if (dict.kind != Kind::kDict) return nullptr;
  for (size_t i = dict.items.size(); i > 0; i -= 2) {
    const PickleValue& name = at(dict.items[i - 2]);
    if (name.kind == Kind::kText && name.text == key) return &at(dict.items[i - 1]);
  }
  return nullptr;
}

}  // namespace kt
