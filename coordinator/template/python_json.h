// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TEMPLATE_PYTHON_JSON_H_
#define KT_COORDINATOR_TEMPLATE_PYTHON_JSON_H_

#include <string>

#include "common/base/json.h"

namespace kt {

// `value` as Python's json.dumps(value, ensure_ascii=False) writes it, which is what models saw in
// training: ", " and ": " between the parts, keys in their order, floats as repr() has them.
std::string PythonJson(const Json& value);

}  // namespace kt

#endif  // KT_COORDINATOR_TEMPLATE_PYTHON_JSON_H_
