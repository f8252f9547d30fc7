// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/stop_tokens.h"

#include <algorithm>

namespace kt {

std::vector<int32_t> StopTokenIds(std::vector<int32_t> model_ids, const Tokenizer& tokenizer,
                                  const std::string& eos_token, int vocab) {
  std::optional<int32_t> eos = tokenizer.TokenId(eos_token);
  if (eos && *eos < vocab &&
      std::find(model_ids.begin(), model_ids.end(), *eos) == model_ids.end()) {
    model_ids.push_back(*eos);
  }
  return model_ids;
}

}  // namespace kt
