// SPDX-License-Identifier: Apache-2.0
// Finds tensors of a checkpoint by the name of their module and tells from what lies there in which
// scheme a matrix is stored. config.json has to declare the scheme, but which module has it is told
// by the tensors.
#ifndef KT_COMMON_WEIGHTS_MATRIX_READER_H_
#define KT_COMMON_WEIGHTS_MATRIX_READER_H_

#include <initializer_list>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/model/quantization_config.h"
#include "common/weights/checkpoint.h"
#include "common/weights/stored_model.h"
#include "common/weights/tensor_faults.h"

namespace kt {

// Faults are recorded and reading goes on; what a faulty read gives is empty. The arguments outlive
// the reader.
class MatrixReader {
 public:
  MatrixReader(const QuantizationConfig& quantization, const Checkpoint& checkpoint)
      : quantization_(quantization), checkpoint_(checkpoint) {}

  // [n, k] of the module, in any scheme.
  StoredMatrix Matrix(const std::string& module, int n, int k);
  // The same, stored plainly.
  StoredMatrix PlainMatrix(const std::string& module, int n, int k);
  // All values of the tensor, which has exactly this shape.
  StoredVector Vector(const std::string& name, const TensorShape& shape);

  // The matrices [n, k] of all experts in one tensor [experts, n, k], or [experts, k, n] where
  // `transposed`, or in <name>_blocks and <name>_scales. Empty after a fault.
  struct Bank {
    StoredMatrix first;
    int64_t code_stride = 0, scale_stride = 0;  // bytes from one expert to the next
    StoredMatrix Expert(int e) const;
  };
  Bank FusedMatrices(const std::string& name, int experts, int n, int k, bool transposed);

  bool Has(const std::string& name) const { return checkpoint_.Find(name) != nullptr; }
  // Whether a tensor was looked at.
  bool Used(const TensorInfo& tensor) const { return used_.contains(&tensor); }
  TensorFaults& faults() { return faults_; }

 private:
  // nullptr: absent. A tensor that was taken is not unexpected.
  const TensorInfo* Take(const std::string& name);
  // The declared rule that `fits`: the module's own if it does, else the first.
  template <typename Fits>
  const QuantizationRule* Declared(const std::string& module, Fits fits) const;
  void RefuseUndeclared(const TensorInfo& codes, std::string_view scheme);
  void RefuseMissing(const std::string& module, int n, int k);

  StoredMatrix Plain(const TensorInfo& weight, int n, int k);
  StoredMatrix Fp8(const std::string& module, const TensorInfo& weight, int n, int k);
  StoredMatrix PackedInt(const std::string& module, const TensorInfo& packed, int n, int k);
  bool CheckWeightShape(const std::string& module, int n, int k);
  Bank Mxfp4(const std::string& name, const TensorInfo& blocks, int experts, int n, int k);

  const QuantizationConfig& quantization_;
  const Checkpoint& checkpoint_;
  TensorFaults faults_;
  std::unordered_set<const TensorInfo*> used_;
};

// Every other row of a matrix, from `first` on.
MatrixView EveryOtherRow(const MatrixView& view, int first);

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_MATRIX_READER_H_
