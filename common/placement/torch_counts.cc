// SPDX-License-Identifier: Apache-2.0
// TorchExpertCounts: a zip archive ARCHIVE/data.pkl (a pickle in which a tensor is a call of
// torch._utils._rebuild_tensor_v2 on a storage named by a persistent id) and ARCHIVE/data/KEY (the
// storages, raw).
#include <cmath>
#include <cstring>

#include "common/base/status.h"
#include "common/placement/expert_counts.h"
#include "common/placement/pickle.h"
#include "common/placement/stored_zip.h"

namespace kt {
namespace {

using Bytes = std::span<const uint8_t>;
using Kind = PickleValue::Kind;

// The element at `index` of a storage that has it.
template <typename T>
double ReadElement(Bytes storage, uint64_t index) {
  T value;
  std::memcpy(&value, storage.data() + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

struct ElementType {
  std::string_view name;
  size_t bytes;
  double (*read)(Bytes storage, uint64_t index);
};
constexpr ElementType kTypes[] = {{"torch.LongStorage", 8, &ReadElement<int64_t>},
                                  {"torch.IntStorage", 4, &ReadElement<int32_t>},
                                  {"torch.DoubleStorage", 8, &ReadElement<double>},
                                  {"torch.FloatStorage", 4, &ReadElement<float>}};

struct Tensor {
  const ElementType* type = nullptr;
  std::string storage_key;
  uint64_t offset = 0;  // in elements
  std::vector<uint64_t> size, stride;
};

absl::Status Broken(const char* what) { return InvalidArgument("logical_count: {}", what); }

// Reads the values of one pickle.
class TensorReader {
 public:
  explicit TensorReader(const Pickle& pickle) : pickle_(pickle) {}

  absl::StatusOr<Tensor> Read(const PickleValue& value) const {
    if (value.kind != Kind::kCall || Item(value, 0).text != "torch._utils._rebuild_tensor_v2")
      return Broken("is not a plain tensor");
    const PickleValue& arguments = Item(value, 1);
    if (arguments.kind != Kind::kSequence || arguments.items.size() < 4)
      return Broken("is a tensor without storage, offset, size and stride");
    Tensor tensor;
    KT_RETURN_IF_ERROR(ReadStorage(Item(arguments, 0), &tensor));
    KT_ASSIGN_OR_RETURN(tensor.offset, Number(Item(arguments, 1)));
    KT_ASSIGN_OR_RETURN(tensor.size, Numbers(Item(arguments, 2)));
    KT_ASSIGN_OR_RETURN(tensor.stride, Numbers(Item(arguments, 3)));
    if (tensor.size.size() != tensor.stride.size()) return Broken("has not a stride for each size");
    return tensor;
  }

 private:
  const PickleValue& Item(const PickleValue& value, size_t i) const {
    return pickle_.at(value.items[i]);
  }

  // ('storage', TYPE, KEY, device, elements)
  absl::Status ReadStorage(const PickleValue& value, Tensor* tensor) const {
    if (value.kind != Kind::kPersistentId || Item(value, 0).kind != Kind::kSequence ||
        Item(value, 0).items.size() < 3)
      return Broken("has no storage");
    const PickleValue& id = Item(value, 0);
    for (const ElementType& type : kTypes) {
      if (Item(id, 1).kind == Kind::kName && Item(id, 1).text == type.name) tensor->type = &type;
    }
    if (tensor->type == nullptr) {
      return InvalidArgument(
          "logical_count: elements of {}; int64, int32, float64 and float32 are read",
          JsonExcerpt(Item(id, 1).text));
    }
    tensor->storage_key = Item(id, 2).text;
    return absl::OkStatus();
  }

  static absl::StatusOr<uint64_t> Number(const PickleValue& value) {
    if (value.kind != Kind::kInt || value.number < 0 || value.number > int64_t{1} << 40)
      return Broken("has an offset, size or stride out of range");
    return static_cast<uint64_t>(value.number);
  }

  absl::StatusOr<std::vector<uint64_t>> Numbers(const PickleValue& value) const {
    if (value.kind != Kind::kSequence || value.items.size() > 8)
      return Broken("has no size or stride");
    std::vector<uint64_t> numbers;
    for (size_t i = 0; i < value.items.size(); ++i) {
      KT_ASSIGN_OR_RETURN(numbers.emplace_back(), Number(Item(value, i)));
    }
    return numbers;
  }

  const Pickle& pickle_;
};

// Every element lies in the storage, and there are not more of them than it has: sizes and strides
// are what the file says, and bound the work. Numbers are at most 2^40, storages much smaller, so
// that nothing overflows.
absl::Status CheckExtent(const Tensor& tensor, uint64_t elements) {
  uint64_t count = 1, last = tensor.offset;
  for (size_t d = 0; d < tensor.size.size(); ++d) {
    if (tensor.size[d] == 0) return Broken("is empty");
    if (tensor.size[d] > elements || tensor.stride[d] > elements)
      return Broken("is larger than its storage");
    count *= tensor.size[d];
    last += (tensor.size[d] - 1) * tensor.stride[d];
    if (count > elements || last >= elements) return Broken("is larger than its storage");
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpertCounts> Sum(const Tensor& tensor, Bytes storage) {
  if (tensor.size.size() != 2 && tensor.size.size() != 3) {
    return InvalidArgument(
        "logical_count: {} dimensions, expected [passes, layers, experts] or [layers, experts]",
        tensor.size.size());
  }
  KT_RETURN_IF_ERROR(CheckExtent(tensor, storage.size() / tensor.type->bytes));
  std::vector<uint64_t> size = tensor.size, stride = tensor.stride;
  if (size.size() == 2) {
    size.insert(size.begin(), 1);
    stride.insert(stride.begin(), 0);
  }
  ExpertCounts sums(size[1], std::vector<double>(size[2]));
  for (uint64_t p = 0; p < size[0]; ++p) {
    for (uint64_t l = 0; l < size[1]; ++l) {
      for (uint64_t e = 0; e < size[2]; ++e) {
        const double count = tensor.type->read(
            storage, tensor.offset + p * stride[0] + l * stride[1] + e * stride[2]);
        if (!std::isfinite(count) || count < 0)
          return InvalidArgument("logical_count: {}, expected counts that are not negative", count);
        sums[l][e] += count;
      }
    }
  }
  return sums;
}

}  // namespace

absl::StatusOr<ExpertCounts> TorchExpertCounts(Bytes bytes) {
  KT_ASSIGN_OR_RETURN(const auto entries, ReadStoredZip(bytes));
  constexpr std::string_view kPickleName = "/data.pkl";
  std::string archive;
  for (const auto& [name, contents] : entries) {
    if (name.ends_with(kPickleName)) archive = name.substr(0, name.size() - kPickleName.size());
  }
  const auto entry = [&](const std::string& name) -> absl::StatusOr<Bytes> {
    const auto it = entries.find(archive + name);
    if (it == entries.end()) {
      return InvalidArgument("the archive has no {}; expected what torch.save writes",
                             JsonExcerpt(archive + name));
    }
    return it->second;
  };
  if (absl::StatusOr<Bytes> order = entry("/byteorder"); order.ok()) {
    if (std::string(order->begin(), order->end()) != "little")
      return InvalidArgument("its byte order is not little");
  }
  KT_ASSIGN_OR_RETURN(const Bytes instructions, entry(std::string(kPickleName)));
  KT_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::Parse(instructions));
  const PickleValue* value = &pickle.root();
  if (value->kind == Kind::kDict) {
    value = pickle.Find(*value, "logical_count");
    if (value == nullptr) return InvalidArgument("has no logical_count");
  }
  KT_ASSIGN_OR_RETURN(const Tensor tensor, TensorReader(pickle).Read(*value));
  KT_ASSIGN_OR_RETURN(const Bytes storage, entry("/data/" + tensor.storage_key));
  return Sum(tensor, storage);
}

}  // namespace kt
