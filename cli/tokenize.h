// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_TOKENIZE_H_
#define KT_CLI_TOKENIZE_H_

#include <string>

namespace kt {

// kt tokenize: text on stdin becomes ids on one line; `decode`: ids on stdin become text. `path` is
// a model directory or a tokenizer.json. Returns the exit code; errors go to stderr as one line.
int TokenizeMain(const std::string& path, bool decode);

}  // namespace kt

#endif  // KT_CLI_TOKENIZE_H_
