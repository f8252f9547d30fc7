// SPDX-License-Identifier: Apache-2.0
#include "cli/version_command.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>
#include <spdlog/version.h>

#include <boost/version.hpp>
#include <memory>

namespace kt::cli {

void RegisterVersionCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("version", "Print the version");
  auto verbose = std::make_shared<bool>(false);
  command->add_flag("--verbose,-v", *verbose, "Compiler and libraries, too");
  command->callback([verbose, exit_code] {
    fmt::print("kt {}\n", KT_VERSION);
    if (*verbose) {
      fmt::print("compiler {}\nbuild type {}\nprotobuf {}\nboost {}\nspdlog {}.{}.{}\nfmt {}\n",
                 __VERSION__, KT_BUILD_TYPE,
                 google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION),
                 BOOST_LIB_VERSION, SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH,
                 FMT_VERSION);
    }
    *exit_code = 0;
  });
}

}  // namespace kt::cli
