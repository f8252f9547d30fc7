// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TOKENIZER_STOP_TOKENS_H_
#define KT_COORDINATOR_TOKENIZER_STOP_TOKENS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/tokenizer/tokenizer.h"

namespace kt {

// The ids that end an answer: those of config.json and generation_config.json (`model_ids`), and
// that of the tokenizer's own end token (eos_token of tokenizer_config.json; "": none), where it is
// among the model's `vocab` ids. Models name one in one place and another in the other.
std::vector<int32_t> StopTokenIds(std::vector<int32_t> model_ids, const Tokenizer& tokenizer,
                                  const std::string& eos_token, int vocab);

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_STOP_TOKENS_H_
