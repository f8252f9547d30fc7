// SPDX-License-Identifier: Apache-2.0
// A tiktoken vocabulary from anywhere is loaded or refused; one that loads turns any text into ids
// and back. The first line of the input is tokenizer_config.json, the rest the vocabulary.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "coordinator/tokenizer/tiktoken.h"
#include "coordinator/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t end = std::min(input.find('\n'), size);
  auto config = kt::ParseJson(input.substr(0, end));
  if (!config.ok()) return 0;
  auto tokenizer = kt::ParseKimiTiktoken(input.substr(std::min(end + 1, size)), *config);
  if (!tokenizer.ok()) return 0;
  // The input is the text too: it has the names of the config's tokens.
  auto ids = (*tokenizer)->Encode(kt::ReplaceInvalidUtf8(input.substr(0, 4096)));
  if (!ids.ok()) return 0;
  std::string decoded = (*tokenizer)->Decode(*ids, false), streamed;
  kt::StreamDecoder stream(tokenizer->get(), false);
  for (int32_t id : *ids) streamed += stream.Push(id);
  if (streamed + stream.Flush() != decoded) std::abort();
  return 0;
}
