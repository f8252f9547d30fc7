// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json from anywhere is loaded or refused; one that loads turns any text into ids and
// back.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "coordinator/tokenizer/tokenizer_json.h"
#include "coordinator/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  auto tokenizer = kt::ParseTokenizerJson(text, kt::Json());
  if (!tokenizer.ok()) return 0;
  // The file's own text is the input: it has the words of its vocabulary.
  auto ids = (*tokenizer)->Encode(kt::ReplaceInvalidUtf8(text.substr(0, 4096)));
  if (!ids.ok()) return 0;
  std::string decoded = (*tokenizer)->Decode(*ids, false), streamed;
  kt::StreamDecoder stream(tokenizer->get(), false);
  for (int32_t id : *ids) streamed += stream.Push(id);
  if (streamed + stream.Flush() != decoded) std::abort();
  return 0;
}
