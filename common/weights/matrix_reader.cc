// SPDX-License-Identifier: Apache-2.0
#include "common/weights/matrix_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/base/status.h"
#include "common/weights/safetensors.h"

namespace kt {
namespace {

constexpr int kMxfp4Group = 32;  // columns of a scale, 16 bytes of codes

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::optional<WeightCode> PlainCode(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return WeightCode::kBf16;
    case DType::kF16:
      return WeightCode::kF16;
    case DType::kF32:
      return WeightCode::kF32;
    default:
      return std::nullopt;
  }
}

std::optional<ScaleType> ScaleTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ScaleType::kF32;
    case DType::kBF16:
      return ScaleType::kBf16;
    case DType::kF16:
      return ScaleType::kF16;
    case DType::kF8E8M0:
      return ScaleType::kE8m0;
    default:
      return std::nullopt;
  }
}

std::string RuleName(const QuantizationRule& rule) {
  switch (rule.scheme) {
    case WeightScheme::kPlain:
      return "plain";
    case WeightScheme::kFp8Block:
      return fmt::format("FP8 block {}x{}", rule.block_rows, rule.block_columns);
    case WeightScheme::kFp8Channel:
      return "FP8 per channel";
    case WeightScheme::kPackedInt:
      return rule.group == 0 ? fmt::format("INT{} per channel", rule.bits)
                             : fmt::format("INT{} group {}", rule.bits, rule.group);
    case WeightScheme::kMxfp4Fused:
      return "MXFP4";
  }
  return "";
}

bool IsFp8(const QuantizationRule& rule) {
  return rule.scheme == WeightScheme::kFp8Block || rule.scheme == WeightScheme::kFp8Channel;
}

// The shape of the scales beside an [n, k] matrix. A scale a row may lack the last dimension.
TensorShape ScaleShape(const QuantizationRule& rule, int n, int k) {
  switch (rule.scheme) {
    case WeightScheme::kFp8Block:
      return {CeilDiv(n, rule.block_rows), CeilDiv(k, rule.block_columns)};
    case WeightScheme::kPackedInt:
      return {n, rule.group == 0 ? 1 : CeilDiv(k, rule.group)};
    default:
      return {n, 1};
  }
}

bool ScalePerRow(const QuantizationRule& rule) {
  return rule.scheme == WeightScheme::kFp8Channel ||
         (rule.scheme == WeightScheme::kPackedInt && rule.group == 0);
}

bool FitsScales(const QuantizationRule& rule, const TensorInfo& scales, int n, int k) {
  return scales.shape == ScaleShape(rule, n, k) ||
         (ScalePerRow(rule) && scales.shape == TensorShape{n});
}

TensorShape PackedShape(int bits, DType dtype, int n, int k) {
  return {n, CeilDiv(int64_t{k} * bits, dtype == DType::kU8 ? 8 : 32)};
}

bool FitsPacked(const QuantizationRule& rule, const TensorInfo& packed, int n, int k) {
  return packed.shape == PackedShape(rule.bits, packed.dtype, n, k);
}

// The view without its scales; rows lie one after another.
MatrixView RowMajor(const TensorInfo& codes, WeightCode code, int n, int k, int64_t row_bytes) {
  MatrixView view;
  view.n = n;
  view.k = k;
  view.code = code;
  view.codes = codes.data.data();
  view.code_row_stride = row_bytes;
  return view;
}

void AttachScales(MatrixView& view, const TensorInfo& scales, ScaleType type, int block_rows,
                  int block_columns) {
  view.scale = type;
  view.block_rows = block_rows;
  view.block_columns = block_columns;
  view.scales = scales.data.data();
  view.scale_column_stride = ScaleBytes(type);
  view.scale_row_stride = CeilDiv(view.k, block_columns) * ScaleBytes(type);
}

}  // namespace

MatrixView EveryOtherRow(const MatrixView& view, int first) {
  MatrixView v = view.Rows(first, view.n);
  v.n = (view.n - first + 1) / 2;
  v.code_row_stride *= 2;
  v.scale_row_stride *= 2;
  return v;
}

StoredMatrix MatrixReader::Bank::Expert(int e) const {
  StoredMatrix m = first;
  if (!m) return m;
  m.view.codes += e * code_stride;
  if (m.scales != nullptr) m.view.scales += e * scale_stride;
  return m;
}

const TensorInfo* MatrixReader::Take(const std::string& name) {
  const TensorInfo* tensor = checkpoint_.Find(name);
  if (tensor != nullptr) used_.insert(tensor);
  return tensor;
}

template <typename Fits>
const QuantizationRule* MatrixReader::Declared(const std::string& module, Fits fits) const {
  const auto& rules = quantization_.rules;
  if (rules.size() > 1) {
    const QuantizationRule* own = quantization_.RuleOf(module);
    if (own != nullptr && fits(*own)) return own;
  }
  auto it = std::find_if(rules.begin(), rules.end(), fits);
  return it == rules.end() ? nullptr : &*it;
}

void MatrixReader::RefuseUndeclared(const TensorInfo& codes, std::string_view scheme) {
  std::vector<std::string> declared;
  for (const QuantizationRule& rule : quantization_.rules) declared.push_back(RuleName(rule));
  faults_.Add(
      "undeclared schemes",
      fmt::format("{}: tensor {} is {}, stored as {}, but config.json {}", codes.file,
                  Quoted(codes.name), DescribeTensor(codes.dtype, codes.shape), scheme,
                  declared.empty() ? "has no quantization_config"
                                   : fmt::format("declares only {}", fmt::join(declared, ", "))));
}

void MatrixReader::RefuseMissing(const std::string& module, int n, int k) {
  const QuantizationRule* rule = quantization_.RuleOf(module);
  if (rule != nullptr && rule->scheme == WeightScheme::kPackedInt) {
    faults_.Missing(module + ".weight_packed", DType::kI32,
                    PackedShape(rule->bits, DType::kI32, n, k));
  } else {
    faults_.Missing(module + ".weight",
                    rule != nullptr && IsFp8(*rule) ? DType::kF8E4M3 : DType::kBF16, {n, k});
  }
}

StoredMatrix MatrixReader::Matrix(const std::string& module, int n, int k) {
  const TensorInfo* packed = Take(module + ".weight_packed");
  const TensorInfo* weight = Take(module + ".weight");
  if (packed != nullptr && weight != nullptr) {
    faults_.Add("stored twice", fmt::format("{}: {} is there both as .weight and .weight_packed",
                                            packed->file, Quoted(module)));
    return {};
  }
  if (packed != nullptr) return PackedInt(module, *packed, n, k);
  if (weight == nullptr) {
    RefuseMissing(module, n, k);
    return {};
  }
  return weight->dtype == DType::kF8E4M3 ? Fp8(module, *weight, n, k) : Plain(*weight, n, k);
}

StoredMatrix MatrixReader::PlainMatrix(const std::string& module, int n, int k) {
  const std::string name = module + ".weight";
  const TensorInfo* weight = Take(name);
  if (weight != nullptr) return Plain(*weight, n, k);
  faults_.Missing(name, DType::kBF16, {n, k});
  return {};
}

StoredMatrix MatrixReader::Plain(const TensorInfo& weight, int n, int k) {
  const std::optional<WeightCode> code = PlainCode(weight.dtype);
  if (weight.shape != TensorShape{n, k}) {
    faults_.WrongShape(weight, DescribeTensor(code ? weight.dtype : DType::kBF16, {n, k}));
  } else if (!code) {
    faults_.WrongDType(weight, "BF16, F16 or F32 (or a scheme that config.json declares)");
  } else {
    return {RowMajor(weight, *code, n, k, int64_t{k} * CodeBits(*code) / 8), &weight, nullptr};
  }
  return {};
}

StoredMatrix MatrixReader::Fp8(const std::string& module, const TensorInfo& weight, int n, int k) {
  const TensorInfo* scales = Take(module + ".weight_scale_inv");
  const bool block_only = scales != nullptr;
  if (scales == nullptr) scales = Take(module + ".weight_scale");
  const auto named = [&](const QuantizationRule& rule) {
    return IsFp8(rule) && !(block_only && rule.scheme == WeightScheme::kFp8Channel);
  };
  const QuantizationRule* rule = Declared(module, [&](const QuantizationRule& candidate) {
    return named(candidate) && scales != nullptr && FitsScales(candidate, *scales, n, k);
  });
  const bool fits = rule != nullptr;
  if (!fits) rule = Declared(module, named);
  if (rule == nullptr) {
    RefuseUndeclared(weight, block_only ? "FP8 with block scales" : "FP8");
    return {};
  }
  if (weight.shape != TensorShape{n, k}) {
    faults_.WrongShape(weight, DescribeTensor(weight.dtype, {n, k}));
    return {};
  }
  const bool block = rule->scheme == WeightScheme::kFp8Block;
  const TensorShape expected = ScaleShape(*rule, n, k);
  if (scales == nullptr) {
    faults_.Missing(module + (block ? ".weight_scale_inv" : ".weight_scale"), DType::kF32,
                    expected);
    return {};
  }
  const std::optional<ScaleType> type = ScaleTypeOf(scales->dtype);
  if (!fits) {
    faults_.WrongShape(*scales,
                       fmt::format("{} for the scales of {}", DescribeTensor(DType::kF32, expected),
                                   RuleName(*rule)));
  } else if (!type) {
    faults_.WrongDType(*scales, "F32, BF16, F16 or F8_E8M0");
  } else {
    MatrixView view = RowMajor(weight, WeightCode::kFp8E4m3, n, k, k);
    AttachScales(view, *scales, *type, block ? rule->block_rows : 1,
                 block ? rule->block_columns : k);
    return {view, &weight, scales};
  }
  return {};
}

bool MatrixReader::CheckWeightShape(const std::string& module, int n, int k) {
  const TensorInfo* tensor = Take(module + ".weight_shape");
  if (tensor == nullptr) {
    faults_.Missing(module + ".weight_shape", DType::kI64, {2});
    return false;
  }
  const bool wide = tensor->dtype == DType::kI64;
  if (tensor->shape != TensorShape{2} || (!wide && tensor->dtype != DType::kI32)) {
    faults_.WrongShape(*tensor, "I64 [2] or I32 [2]");
    return false;
  }
  int64_t stored[2] = {};
  for (size_t i = 0; i < 2; ++i) {
    int32_t narrow = 0;
    if (wide) {
      std::memcpy(&stored[i], tensor->data.data() + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      std::memcpy(&narrow, tensor->data.data() + i * sizeof(narrow), sizeof(narrow));
      stored[i] = narrow;
    }
  }
  if (stored[0] != n || stored[1] != k) {
    faults_.Add("wrong shapes",
                fmt::format("{}: tensor {} says [{}, {}], expected [{}, {}]", tensor->file,
                            Quoted(tensor->name), stored[0], stored[1], n, k));
    return false;
  }
  return true;
}

StoredMatrix MatrixReader::PackedInt(const std::string& module, const TensorInfo& packed, int n,
                                     int k) {
  const TensorInfo* scales = Take(module + ".weight_scale");
  const bool shape_fits = CheckWeightShape(module, n, k);
  const auto is_packed = [](const QuantizationRule& r) {
    return r.scheme == WeightScheme::kPackedInt;
  };
  const auto bits_fit = [&](const QuantizationRule& r) {
    return is_packed(r) && FitsPacked(r, packed, n, k);
  };
  const QuantizationRule* rule = Declared(module, [&](const QuantizationRule& r) {
    return bits_fit(r) && scales != nullptr && FitsScales(r, *scales, n, k);
  });
  const bool scales_fit = rule != nullptr;
  if (rule == nullptr) rule = Declared(module, bits_fit);
  if (rule == nullptr) rule = Declared(module, is_packed);
  if (rule == nullptr) {
    RefuseUndeclared(packed, "packed integers");
    return {};
  }
  const TensorShape expected = ScaleShape(*rule, n, k);
  if (scales == nullptr) faults_.Missing(module + ".weight_scale", DType::kBF16, expected);
  if (packed.dtype != DType::kI32 && packed.dtype != DType::kU8) {
    faults_.WrongDType(packed, "I32 or U8");
    return {};
  }
  if (!bits_fit(*rule)) {
    faults_.WrongShape(
        packed,
        fmt::format("{} for {} of {} columns",
                    DescribeTensor(packed.dtype, PackedShape(rule->bits, packed.dtype, n, k)),
                    RuleName(*rule), k));
    return {};
  }
  if (scales == nullptr || !shape_fits) return {};
  const std::optional<ScaleType> type = ScaleTypeOf(scales->dtype);
  if (!scales_fit) {
    faults_.WrongShape(
        *scales, fmt::format("{} for the scales of {}", DescribeTensor(scales->dtype, expected),
                             RuleName(*rule)));
  } else if (!type) {
    faults_.WrongDType(*scales, "BF16, F16 or F32");
  } else {
    const WeightCode code = rule->bits == 4 ? WeightCode::kInt4 : WeightCode::kInt8;
    const int64_t row = packed.shape[1] * static_cast<int64_t>(DTypeBytes(packed.dtype));
    MatrixView view = RowMajor(packed, code, n, k, row);
    AttachScales(view, *scales, *type, 1, rule->group == 0 ? k : rule->group);
    return {view, &packed, scales};
  }
  return {};
}

MatrixReader::Bank MatrixReader::FusedMatrices(const std::string& name, int experts, int n, int k,
                                               bool transposed) {
  const auto is_mxfp4 = [](const QuantizationRule& r) {
    return r.scheme == WeightScheme::kMxfp4Fused;
  };
  const TensorInfo* blocks = Take(name + "_blocks");
  const TensorInfo* weight = Take(name);
  if (blocks != nullptr && weight != nullptr) {
    faults_.Add("stored twice", fmt::format("{}: {} is there both plainly and as _blocks",
                                            blocks->file, Quoted(name)));
    return {};
  }
  if (blocks != nullptr) {
    if (Declared(name, is_mxfp4) != nullptr) return Mxfp4(name, *blocks, experts, n, k);
    RefuseUndeclared(*blocks, "MXFP4");
    return {};
  }
  const TensorShape shape = transposed ? TensorShape{experts, k, n} : TensorShape{experts, n, k};
  if (weight == nullptr) {
    if (Declared(name, is_mxfp4) != nullptr) {
      faults_.Missing(name + "_blocks", DType::kU8, {experts, n, CeilDiv(k, kMxfp4Group), 16});
    } else {
      faults_.Missing(name, DType::kBF16, shape);
    }
    return {};
  }
  const std::optional<WeightCode> code = PlainCode(weight->dtype);
  if (weight->shape != shape) {
    faults_.WrongShape(*weight, DescribeTensor(weight->dtype, shape));
  } else if (!code || (transposed && CodeBits(*code) > 16)) {
    faults_.WrongDType(*weight, "BF16 or F16");
  } else {
    const int64_t element = CodeBits(*code) / 8;
    MatrixView view = RowMajor(*weight, *code, n, k, k * element);
    if (transposed) {
      view.code_row_stride = element;
      view.code_column_stride = n * element;
    }
    return {{view, weight, nullptr}, int64_t{n} * k * element, 0};
  }
  return {};
}

MatrixReader::Bank MatrixReader::Mxfp4(const std::string& name, const TensorInfo& blocks,
                                       int experts, int n, int k) {
  const int64_t groups = CeilDiv(k, kMxfp4Group);
  const TensorShape scale_shape = {experts, n, groups};
  const TensorInfo* scales = Take(name + "_scales");
  if (scales == nullptr) {
    faults_.Missing(name + "_scales", DType::kU8, scale_shape);
  } else if (blocks.shape != TensorShape{experts, n, groups, kMxfp4Group / 2}) {
    faults_.WrongShape(blocks, DescribeTensor(DType::kU8, {experts, n, groups, kMxfp4Group / 2}));
  } else if (scales->shape != scale_shape) {
    faults_.WrongShape(*scales, DescribeTensor(DType::kU8, scale_shape));
  } else if (blocks.dtype != DType::kU8) {
    faults_.WrongDType(blocks, "U8");
  } else if (scales->dtype != DType::kU8 && scales->dtype != DType::kF8E8M0) {
    faults_.WrongDType(*scales, "U8 or F8_E8M0");
  } else {
    MatrixView view = RowMajor(blocks, WeightCode::kFp4E2m1, n, k, groups * kMxfp4Group / 2);
    AttachScales(view, *scales, ScaleType::kE8m0, 1, kMxfp4Group);
    return {{view, &blocks, scales}, n * view.code_row_stride, n * view.scale_row_stride};
  }
  return {};
}

StoredVector MatrixReader::Vector(const std::string& name, const TensorShape& shape) {
  const TensorInfo* tensor = Take(name);
  if (tensor == nullptr) {
    faults_.Missing(name, DType::kBF16, shape);
  } else if (tensor->shape != shape) {
    faults_.WrongShape(*tensor, DescribeTensor(tensor->dtype, shape));
  } else if (!PlainCode(tensor->dtype)) {
    faults_.WrongDType(*tensor, "BF16, F16 or F32");
  } else {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    return {.tensor = tensor, .n = n};
  }
  return {};
}

int64_t StoredVector::size() const {
  int64_t values = n;
  for (const StoredVector& v : more) values += v.size();
  return values;
}

void StoredVector::Read(float* out) const {
  const auto bytes = static_cast<int64_t>(DTypeBytes(tensor->dtype));
  MatrixView value;
  value.n = value.k = 1;
  value.code = *PlainCode(tensor->dtype);
  for (int64_t i = 0; i < n; ++i) {
    value.codes = tensor->data.data() + (first + i * step) * bytes;
    out[i] = value.At(0, 0);
  }
  out += n;
  for (const StoredVector& v : more) {
    v.Read(out);
    out += v.size();
  }
}

}  // namespace kt
