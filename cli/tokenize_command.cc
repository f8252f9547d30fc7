// SPDX-License-Identifier: Apache-2.0
#include "cli/tokenize_command.h"

#include <memory>
#include <string>

#include "cli/model_registry.h"
#include "cli/tokenize.h"
#include "common/base/exit_code.h"

namespace kt::cli {

void RegisterTokenizeCommand(CLI::App& app, int* exit_code) {
  struct Options {
    std::string path;
    bool decode = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Turn the text on standard input into token ids");
  command
      ->add_option("MODEL_DIR|TOKENIZER_FILE", options->path, "Model directory or tokenizer.json")
      ->required();
  command->add_flag("--decode", options->decode, "Turn ids on standard input into text");
  command->callback([options, exit_code] {
    *exit_code = ResolveArgument("tokenize", &options->path)
                     ? TokenizeMain(options->path, options->decode)
                     : kExitBadModel;
  });
}

}  // namespace kt::cli
